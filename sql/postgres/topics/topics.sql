-- name: create_topic
-- Creates a topic and its partitions. Returns the topic's id. The strategy says how an event that names no partition
-- gets one. Raises PS001, PS003, PS005, PS006, PS007, PS018, PS030 to PS034.
CREATE OR REPLACE FUNCTION create_topic(topic text, partitions integer DEFAULT 1, strategy text DEFAULT 'crc32')
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    created bigint;
BEGIN
    PERFORM commit_durably();
    PERFORM require_address(topic);
    PERFORM require_partition_count(partitions);
    PERFORM require_strategy(strategy);
    PERFORM lock_names('create_topic()', false);
    created := make_topic((require_namespace(parent_of(topic), 'operate')).id, topic, partitions, strategy);
    IF created IS NULL THEN
        PERFORM refuse_taken('topic', topic);
    END IF;
    RETURN created;
END
$$;

-- name: ensure_topic
-- Creates a topic unless it exists, and with create_namespaces also the namespaces above it. Returns the topic's id.
-- A topic that exists must have this strategy and at least this many partitions; it may have been resized to more.
-- Raises PS001, PS003, PS005, PS006, PS007, PS018, PS030 to PS034.
CREATE OR REPLACE FUNCTION ensure_topic(
    topic text, partitions integer DEFAULT 1, strategy text DEFAULT 'crc32', create_namespaces boolean DEFAULT false
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    parent bigint;
    created bigint;
    own topics%ROWTYPE;
BEGIN
    PERFORM commit_durably();
    PERFORM require_address(topic);
    PERFORM require_partition_count(partitions);
    PERFORM require_strategy(strategy);
    PERFORM lock_names('ensure_topic()', false);
    IF create_namespaces THEN
        PERFORM ensure_namespaces(parent_of(topic));
    END IF;
    parent := (require_namespace(parent_of(topic), 'operate')).id;
    SELECT t.* INTO own FROM topics AS t WHERE t.address = ensure_topic.topic;
    IF NOT FOUND THEN
        created := make_topic(parent, topic, partitions, strategy);
        IF created IS NOT NULL THEN
            RETURN created;
        END IF;
        -- Another transaction has made it meanwhile.
        SELECT t.* INTO STRICT own FROM topics AS t WHERE t.address = ensure_topic.topic;
    END IF;
    IF own.strategy <> ensure_topic.strategy THEN
        PERFORM refuse('PS007', format('the topic "%s" exists already, with the strategy "%s"',
                                       left(topic, 200), own.strategy),
                       'Ask for that strategy, or choose another name.');
    ELSIF own.partitions < ensure_topic.partitions THEN
        PERFORM refuse('PS007', format('the topic "%s" exists already, with %s partitions, fewer than %s',
                                       left(topic, 200), own.partitions, ensure_topic.partitions),
                       'Ask for fewer, or give it more: penstock topic resize.');
    END IF;
    RETURN own.id;
END
$$;

-- name: rename_topic
-- Gives a topic another name in its namespace. Returns its new address. Its events, positions and subscriptions do
-- not change. Raises PS002, PS003, PS007, PS018, PS030 to PS034.
CREATE OR REPLACE FUNCTION rename_topic(topic text, new_name text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    own topics%ROWTYPE;
    parent namespaces%ROWTYPE;
BEGIN
    PERFORM commit_durably();
    PERFORM require_address(topic);
    PERFORM require_name(new_name, 'topic');
    PERFORM lock_names('rename_topic()', true);
    own := lock_topic(topic, 'operate');
    SELECT n.* INTO STRICT parent FROM namespaces AS n WHERE n.id = own.namespace_id;
    RETURN place_topic(own, parent, new_name);
END
$$;

-- name: move_topic
-- Moves a topic into another namespace, whose rights then apply to it. Returns its new address. Raises PS001, PS002,
-- PS003, PS007, PS018, PS030 to PS034.
CREATE OR REPLACE FUNCTION move_topic(topic text, namespace text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    own topics%ROWTYPE;
BEGIN
    PERFORM commit_durably();
    PERFORM require_address(topic);
    PERFORM require_path(namespace, 'namespace', 3998);
    PERFORM lock_names('move_topic()', true);
    own := lock_topic(topic, 'operate');
    RETURN place_topic(own, require_namespace(namespace, 'operate'), own.name);
END
$$;

-- name: resize_topic
-- Gives a topic more partitions, never fewer. Returns how many it had. Each subscription of the topic reads
-- the new partitions from their beginning. Takes effect between two passes of the sequencer. Events that were
-- published with the old number keep their partition; from then on a key may get another partition. Raises
-- PS002, PS003, PS005, PS018, PS030 to PS034.
CREATE OR REPLACE FUNCTION resize_topic(topic text, partitions integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    own topics%ROWTYPE;
    readers bigint[];
BEGIN
    PERFORM commit_durably();
    PERFORM require_address(topic);
    PERFORM require_partition_count(partitions);
    PERFORM require_read_committed('resize_topic()');
    own := lock_topic(topic, 'operate');
    IF resize_topic.partitions < own.partitions THEN
        PERFORM refuse('PS005', format('topic "%s" has %s partitions already', left(topic, 200), own.partitions),
                       'Partitions are only added: the events of a removed one would have no place.');
    ELSIF resize_topic.partitions = own.partitions THEN
        RETURN own.partitions;
    END IF;
    readers := lock_readers(ARRAY[own.id]);
    PERFORM hold_sequencer();
    PERFORM add_partitions(own.id, own.partitions, resize_topic.partitions);
    UPDATE topics AS t SET partitions = resize_topic.partitions WHERE t.id = own.id;
    INSERT INTO leases (subscription_id, partition_id)
    SELECT r, p.id FROM unnest(readers) AS r, partitions AS p WHERE p.topic_id = own.id AND p.number >= own.partitions;
    INSERT INTO positions (subscription_id, partition_id, position, lease_epoch, reason)
    SELECT r, p.id, 0, 0, 'start'
    FROM unnest(readers) AS r, partitions AS p
    WHERE p.topic_id = own.id AND p.number >= own.partitions;
    RETURN own.partitions;
END
$$;

-- name: delete_topic
-- Deletes a topic with its events. Refused (PS020) when a subscription reads it, unless with_subscriptions is
-- true: then its subscriptions continue without this topic. Always refused while a legal hold is on it, or a
-- subscription publishes its dead letters to it. Takes effect between two passes of the sequencer. Raises PS002,
-- PS003, PS018, PS020, PS030 to PS034.
CREATE OR REPLACE FUNCTION delete_topic(topic text, with_subscriptions boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM commit_durably();
    PERFORM require_address(topic);
    PERFORM require_read_committed('delete_topic()');
    PERFORM drop_topics(ARRAY[(lock_topic(topic, 'operate')).id], with_subscriptions);
END
$$;

-- name: list_topics
-- The topics at or below a namespace that the login may see; all such topics when the namespace is ''. In the order of
-- their addresses: those that come after one, and at most max_rows of them (NULL: all).
CREATE OR REPLACE FUNCTION list_topics(
    namespace text DEFAULT '', after text DEFAULT '', max_rows bigint DEFAULT NULL
)
RETURNS TABLE (topic text, partitions integer, created_at timestamptz, strategy text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off
SET enable_bitmapscan = off AS $$
DECLARE
    root text COLLATE "C" := CASE WHEN list_topics.namespace = '' THEN '' ELSE list_topics.namespace || '/' END;
    -- What the index holds of an address. '0' comes next to '/'.
    first text COLLATE "C" := left(GREATEST(list_topics.after, root), 600);
    last text COLLATE "C" := CASE
        WHEN root = '' THEN (SELECT max(left(t.address, 600)) FROM topics AS t)
        ELSE left(list_topics.namespace || '0', 600)
    END;
BEGIN
    RETURN QUERY
    SELECT t.address, t.partitions, t.created_at, t.strategy
    FROM topics AS t
    WHERE left(t.address, 600) BETWEEN first AND last AND t.address > list_topics.after
      AND starts_with(t.address, root)
      AND (NOT t.restricted AND (SELECT as_login()) OR has_right(t.namespace_id, 'any'))
    ORDER BY left(t.address, 600), t.address
    LIMIT max_rows;
END
$$;

-- name: describe_topic
-- What is set for a topic, and how many subscriptions that the login may see read it. known_as is the name by which
-- sinks and archives know the topic: it stays when the address changes, and is never given to a second topic. Raises
-- PS002.
CREATE OR REPLACE FUNCTION describe_topic(topic text)
RETURNS TABLE (
    partitions integer, strategy text, max_payload_bytes integer, max_unsequenced_events bigint,
    max_unsequenced_bytes bigint, restricted boolean, subscriptions bigint, created_at timestamptz, topic_id bigint,
    known_as text
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    own_id bigint := require_topic(topic);
BEGIN
    RETURN QUERY
    SELECT t.partitions, t.strategy, t.max_payload_bytes, t.max_unsequenced_events, t.max_unsequenced_bytes,
           t.restricted, (
               SELECT count(*) FROM subscription_topics AS s
               WHERE s.topic_id = t.id
                 AND ((SELECT no_walls()) OR NOT reads_hidden(s.subscription_id))),
           t.created_at, t.id, t.known_as
    FROM topics AS t
    WHERE t.id = own_id;
END
$$;

-- name: topic_lookup
-- What a publisher needs to know of a topic; no row when the topic does not exist or the login may not
-- publish to it.
CREATE OR REPLACE FUNCTION topic_lookup(topic text)
RETURNS TABLE (topic_id bigint, partitions integer, max_payload_bytes integer, history integer, strategy text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    RETURN QUERY
    SELECT t.id, t.partitions, t.max_payload_bytes, current_history(), t.strategy
    FROM topics AS t
    WHERE t.address = topic_lookup.topic
      AND (NOT t.restricted AND (SELECT as_login()) OR has_right(t.namespace_id, 'publish'));
END
$$;

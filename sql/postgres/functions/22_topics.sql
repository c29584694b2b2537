-- name: require_strategy
-- Checks the partition strategy of a topic: crc32, round_robin, explicit, or client:NAME; raises PS006.
CREATE OR REPLACE FUNCTION require_strategy(strategy text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF strategy IS NULL OR strategy !~ '^(crc32|round_robin|explicit|client:[A-Za-z0-9_.-]{1,100})$' THEN
        PERFORM refuse('PS006', format('there is no partition strategy "%s"', left(strategy, 200)),
                       'Use crc32, round_robin, explicit, or client:NAME for one that the publishers bring.');
    END IF;
END
$$;

-- name: require_partition_count
-- Checks a number of partitions; raises PS005.
CREATE OR REPLACE FUNCTION require_partition_count(partitions integer) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF partitions IS NULL OR partitions NOT BETWEEN 1 AND 65536 THEN
        PERFORM refuse('PS005', format('a topic cannot have %s partitions', partitions),
                       'Use 1 to 65,536; up to 1,024 is practical.');
    END IF;
END
$$;

-- name: require_address
-- Checks the address of a topic; raises PS003 and PS030 to PS034.
CREATE OR REPLACE FUNCTION require_address(topic text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM require_path(topic, 'topic', 4000);
    IF strpos(topic, '/') = 0 THEN
        PERFORM refuse('PS003', format('the topic "%s" has no namespace', left(topic, 200)), 'Write namespace/topic.');
    END IF;
END
$$;

-- name: make_topic
-- Makes a topic and its partitions in a namespace; NULL when its name is taken. The caller has checked everything,
-- and has waited for any other transaction that was making a topic of this name.
CREATE OR REPLACE FUNCTION make_topic(parent bigint, topic text, partitions integer, strategy text) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    created bigint;
BEGIN
    INSERT INTO topics (namespace_id, name, address, partitions, strategy, restricted)
    VALUES (parent, name_of(topic), make_topic.topic, make_topic.partitions, make_topic.strategy, is_restricted(parent))
    ON CONFLICT DO NOTHING
    RETURNING id INTO created;
    IF created IS NOT NULL THEN
        -- No address has an empty name in its path, so no earlier topic is known by this name.
        UPDATE topics AS t SET known_as = t.address || '//' || t.id WHERE t.id = created;
        PERFORM add_partitions(created, 0, partitions);
    END IF;
    RETURN created;
END
$$;

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

-- name: ensure_namespaces
-- Makes the namespaces of a path that do not exist yet, from the top; raises PS001. The caller has locked the names.
CREATE OR REPLACE FUNCTION ensure_namespaces(path text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    names text[] := string_to_array(path, '/');
    own_path text;
    parent bigint := 0;
BEGIN
    FOR depth IN 1 .. cardinality(names) LOOP
        own_path := array_to_string(names[1:depth], '/');
        CONTINUE WHEN EXISTS (SELECT FROM namespaces AS n WHERE n.path = own_path);
        IF depth > 1 THEN
            parent := (require_namespace(parent_of(own_path), 'operate')).id;
        END IF;
        INSERT INTO namespaces (parent_id, name, path) VALUES (parent, names[depth], own_path) ON CONFLICT DO NOTHING;
    END LOOP;
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

-- name: add_partitions
-- Makes the partitions of a topic from one number up to, but not including, another.
CREATE OR REPLACE FUNCTION add_partitions(topic_id bigint, first integer, count integer) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO partitions (id, topic_id, number)
    SELECT (add_partitions.topic_id << 16) | number, add_partitions.topic_id, number
    FROM generate_series(add_partitions.first, add_partitions.count - 1) AS number
$$;

-- name: place_topic
-- Gives a topic another namespace and name. Returns its new address. The caller has locked the whole tree for
-- itself.
CREATE OR REPLACE FUNCTION place_topic(own topics, parent namespaces, new_name text) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    new_address text := parent.path || '/' || new_name;
BEGIN
    IF new_address = own.address THEN
        RETURN new_address;
    END IF;
    PERFORM require_address(new_address);
    IF EXISTS (SELECT FROM topics AS t WHERE t.address = new_address) THEN
        PERFORM refuse_taken('topic', new_address);
    END IF;
    UPDATE topics AS t
    SET namespace_id = parent.id, name = new_name, address = new_address, restricted = is_restricted(parent.id)
    WHERE t.id = own.id;
    IF parent.id <> own.namespace_id THEN
        PERFORM refresh_policies('topic', own.id);
    END IF;
    RETURN new_address;
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

-- name: hold_sequencer
-- Waits for the pass of the sequencer that is under way and keeps the next one from beginning until the transaction
-- ends. The server ends a transaction that would delay the whole log for more than half a minute.
CREATE OR REPLACE FUNCTION hold_sequencer() RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM limit_transaction(30);
    PERFORM FROM sequencer FOR UPDATE;
END
$$;

-- name: readers_of
-- The subscriptions that read one of the topics, locked so that none of them is deleted meanwhile: an unsubscribe
-- that is under way has to end first, or what is written for the subscription would remain after it. The caller has
-- locked the topics, so no subscription is added.
CREATE OR REPLACE FUNCTION readers_of(topic_ids bigint[]) RETURNS bigint[]
LANGUAGE plpgsql AS $$
BEGIN
    RETURN ARRAY(
        SELECT s.id
        FROM subscriptions AS s
        WHERE s.id IN (SELECT r.subscription_id FROM subscription_topics AS r WHERE r.topic_id = ANY (topic_ids))
        ORDER BY s.id
        FOR KEY SHARE);
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
    readers := readers_of(ARRAY[own.id]);
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

-- name: drop_topics
-- Deletes topics that the caller has locked. Their subscriptions continue without them. Their events are logically
-- gone at once, and the sequencer discards what transactions that still saw the topics publish to them. The sequencer
-- is held last, so that the log never waits for a consumer. A legal hold on one of them is refused. Raises PS020.
CREATE OR REPLACE FUNCTION drop_topics(topic_ids bigint[], with_subscriptions boolean) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    readers bigint[] := readers_of(topic_ids);
    held record;
BEGIN
    SELECT h.name, t.address INTO held
    FROM legal_holds AS h JOIN topics AS t ON t.id = h.topic_id
    WHERE h.topic_id = ANY (topic_ids) AND h.released_at IS NULL
    ORDER BY h.placed_at, h.name
    LIMIT 1;
    IF FOUND THEN
        PERFORM refuse('PS020', format('the legal hold "%s" is on the topic "%s"', left(held.name, 200),
                                       left(held.address, 200)),
                       'Its events have to stay until the hold is released: penstock hold release.');
    END IF;
    IF readers <> '{}' AND with_subscriptions IS NOT TRUE THEN
        PERFORM refuse('PS020', format('subscription "%s" reads the topic', (
                           SELECT min(s.name) FROM subscriptions AS s WHERE s.id = ANY (readers))),
                       'Unsubscribe first, or pass with_subscriptions => true: they go on without the topic.');
    END IF;
    PERFORM FROM subscriptions AS s WHERE s.id = ANY (readers) ORDER BY s.id FOR NO KEY UPDATE;
    PERFORM FROM leases AS l
    WHERE l.subscription_id = ANY (readers)
      AND l.partition_id IN (SELECT p.id FROM partitions AS p WHERE p.topic_id = ANY (topic_ids))
    ORDER BY l.subscription_id, l.partition_id
    FOR UPDATE;
    DELETE FROM leases AS l
    WHERE l.subscription_id = ANY (readers)
      AND l.partition_id IN (SELECT p.id FROM partitions AS p WHERE p.topic_id = ANY (topic_ids));
    DELETE FROM archive_readers AS a
    WHERE a.subscription_id = ANY (readers)
      AND a.partition_id IN (SELECT p.id FROM partitions AS p WHERE p.topic_id = ANY (topic_ids));
    DELETE FROM attempts AS a
    WHERE a.subscription_id = ANY (readers)
      AND a.partition_id IN (SELECT p.id FROM partitions AS p WHERE p.topic_id = ANY (topic_ids));
    PERFORM forget_queue(r, ARRAY(SELECT p.id FROM partitions AS p WHERE p.topic_id = ANY (topic_ids)))
    FROM unnest(readers) AS r;
    -- After what the workers of queues have rejected until now.
    DELETE FROM dead_letters AS d
    WHERE d.subscription_id = ANY (readers)
      AND d.partition_id IN (SELECT p.id FROM partitions AS p WHERE p.topic_id = ANY (topic_ids));
    DELETE FROM subscription_topics AS s WHERE s.topic_id = ANY (topic_ids);
    DELETE FROM retention_policies AS r WHERE r.topic_id = ANY (topic_ids);
    DELETE FROM bookmarks AS b WHERE b.topic_id = ANY (topic_ids);
    DELETE FROM history_starts AS s
    WHERE s.partition_id IN (SELECT p.id FROM partitions AS p WHERE p.topic_id = ANY (topic_ids));
    DELETE FROM suspected_copies AS s
    WHERE s.partition_id IN (SELECT p.id FROM partitions AS p WHERE p.topic_id = ANY (topic_ids));
    -- The requests first: when they are gone, nothing is rehydrated any more.
    DELETE FROM backfill_requests AS b WHERE b.topic_id = ANY (topic_ids);
    DELETE FROM rehydrated_epochs AS e
    WHERE e.partition_id IN (SELECT p.id FROM partitions AS p WHERE p.topic_id = ANY (topic_ids));
    DELETE FROM rehydrated_events AS e
    WHERE e.partition_id IN (SELECT p.id FROM partitions AS p WHERE p.topic_id = ANY (topic_ids));
    -- This does not wait for publishers: a row that one still locks is left as it is.
    DELETE FROM strict_locks AS l WHERE (l.topic_id, l.bucket) IN (
        SELECT o.topic_id, o.bucket FROM strict_locks AS o WHERE o.topic_id = ANY (topic_ids) FOR UPDATE SKIP LOCKED);
    PERFORM forget_policies('topic', topic_ids);
    PERFORM refresh_policy(r) FROM unnest(readers) AS r;
    PERFORM hold_sequencer();
    INSERT INTO deleted_topics (topic_id, address)
    SELECT t.id, t.address FROM topics AS t WHERE t.id = ANY (topic_ids);
    UPDATE partitions AS p SET low_sequence = high_watermark(p.id) + 1 WHERE p.topic_id = ANY (topic_ids);
    DELETE FROM topics AS t WHERE t.id = ANY (topic_ids);
END
$$;

-- name: delete_topic
-- Deletes a topic with its events. Refused (PS020) when a subscription reads it, unless with_subscriptions is
-- true: then its subscriptions continue without this topic. Always refused while a legal hold is on it. Takes effect
-- between two passes of the sequencer. Raises PS002, PS003, PS018, PS020, PS030 to PS034.
CREATE OR REPLACE FUNCTION delete_topic(topic text, with_subscriptions boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM commit_durably();
    PERFORM require_address(topic);
    PERFORM require_read_committed('delete_topic()');
    PERFORM drop_topics(ARRAY[(lock_topic(topic, 'operate')).id], with_subscriptions);
END
$$;

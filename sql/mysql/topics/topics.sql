-- name: create_topic
-- Creates a topic and its partitions. Returns the topic's id. The strategy says how an event that names no partition
-- gets one. Raises PS001, PS003, PS005, PS006, PS007, PS018, PS030 to PS034.
CREATE PROCEDURE create_topic(topic LONGTEXT, partitions INT, strategy VARCHAR(255))
BEGIN
    DECLARE parent_path, own_name LONGTEXT;
    DECLARE parent, created BIGINT;
    DECLARE id_before BIGINT DEFAULT LAST_INSERT_ID();
    {{on error: CALL undo_call()}}
    CALL begin_call('create_topic()');
    CALL require_address(topic);
    CALL require_partition_count(partitions);
    CALL require_strategy(strategy);
    CALL lock_names('create_topic()', FALSE);
    CALL split_path(topic, parent_path, own_name);
    CALL require_namespace(parent_path, 'operate', parent);
    CALL make_topic(parent, topic, partitions, strategy, created);
    IF created IS NULL THEN
        CALL refuse('PS007', CONCAT('there is already a topic "', LEFT(topic, 80), '"'));
    END IF;
    DO LAST_INSERT_ID(id_before);
    SELECT created AS topic_id;
    CALL end_call();
END;

-- name: ensure_topic
-- Creates a topic unless it exists, and with create_namespaces also the namespaces above it. Returns the topic's id.
-- A topic that exists must have this strategy and at least this many partitions; it may have been resized to more.
-- Raises PS001, PS003, PS005, PS006, PS007, PS018, PS030 to PS034.
CREATE PROCEDURE ensure_topic(topic LONGTEXT, partitions INT, strategy VARCHAR(255), create_namespaces BOOLEAN)
BEGIN
    DECLARE parent_path, own_name LONGTEXT;
    DECLARE parent, own BIGINT;
    DECLARE own_partitions INT;
    DECLARE own_strategy VARCHAR(255);
    DECLARE id_before BIGINT DEFAULT LAST_INSERT_ID();
    {{on error: DO LAST_INSERT_ID(id_before); CALL undo_call()}}
    CALL begin_call('ensure_topic()');
    CALL require_address(topic);
    CALL require_partition_count(partitions);
    CALL require_strategy(strategy);
    CALL lock_names('ensure_topic()', FALSE);
    CALL split_path(topic, parent_path, own_name);
    IF create_namespaces THEN
        CALL ensure_namespaces(parent_path);
    END IF;
    CALL require_namespace(parent_path, 'operate', parent);
    CALL find_own_topic(topic, own, own_partitions, own_strategy);
    IF own IS NULL THEN
        CALL make_topic(parent, topic, partitions, strategy, own);
        IF own IS NULL THEN
            -- Another transaction has made it meanwhile.
            CALL find_own_topic(topic, own, own_partitions, own_strategy);
        END IF;
    END IF;
    IF CAST(own_strategy AS BINARY) <> CAST(strategy AS BINARY) THEN
        CALL refuse('PS007', CONCAT('the topic "', LEFT(topic, 50), '" exists already, with the strategy "',
                                    LEFT(own_strategy, 30), '"'));
    ELSEIF own_partitions < partitions THEN
        CALL refuse('PS007', CONCAT('the topic "', LEFT(topic, 50), '" exists already, with ', own_partitions,
                                    ' partitions, fewer than ', partitions));
    END IF;
    DO LAST_INSERT_ID(id_before);
    SELECT own AS topic_id;
    CALL end_call();
END;

-- name: rename_topic
-- Gives a topic another name in its namespace. Returns its new address. Its events, positions and subscriptions do
-- not change. Raises PS002, PS003, PS007, PS018, PS030 to PS034.
CREATE PROCEDURE rename_topic(topic LONGTEXT, new_name LONGTEXT)
BEGIN
    DECLARE own, parent BIGINT;
    DECLARE topic_partitions INT;
    DECLARE parent_path, own_name LONGTEXT;
    {{on error: CALL undo_call()}}
    CALL begin_call('rename_topic()');
    CALL require_address(topic);
    CALL require_name(new_name, 'topic');
    CALL lock_names('rename_topic()', TRUE);
    CALL lock_topic(topic, 'operate', own, topic_partitions);
    CALL split_path(topic, parent_path, own_name);
    CALL require_namespace(parent_path, 'operate', parent);
    CALL place_topic(own, topic, parent, CONCAT(parent_path, '/', new_name));
    CALL end_call();
END;

-- name: move_topic
-- Moves a topic into another namespace, whose rights then apply to it. Returns its new address. Raises PS001, PS002,
-- PS003, PS007, PS018, PS030 to PS034.
CREATE PROCEDURE move_topic(topic LONGTEXT, namespace LONGTEXT)
BEGIN
    DECLARE own, parent BIGINT;
    DECLARE topic_partitions INT;
    DECLARE parent_path, own_name LONGTEXT;
    {{on error: CALL undo_call()}}
    CALL begin_call('move_topic()');
    CALL require_address(topic);
    CALL require_path(namespace, 'namespace', 3998);
    CALL lock_names('move_topic()', TRUE);
    CALL lock_topic(topic, 'operate', own, topic_partitions);
    CALL require_namespace(namespace, 'operate', parent);
    CALL split_path(topic, parent_path, own_name);
    CALL place_topic(own, topic, parent, CONCAT(namespace, '/', own_name));
    CALL end_call();
END;

-- name: resize_topic
-- Gives a topic more partitions, never fewer. Returns how many it had. Each subscription of the topic reads
-- the new partitions from their beginning. Takes effect between two passes of the sequencer. Events that were
-- published with the old number keep their partition; from then on a key may get another partition. Raises
-- PS002, PS003, PS005, PS018, PS030 to PS034.
CREATE PROCEDURE resize_topic(topic LONGTEXT, partitions INT)
BEGIN
    DECLARE own BIGINT;
    DECLARE own_partitions INT;
    DECLARE readers JSON;
    {{on error: CALL undo_call()}}
    CALL begin_call('resize_topic()');
    CALL require_address(topic);
    CALL require_partition_count(partitions);
    CALL require_read_committed('resize_topic()');
    CALL lock_topic(topic, 'operate', own, own_partitions);
    IF partitions < own_partitions THEN
        CALL refuse('PS005',
                    CONCAT('topic "', LEFT(topic, 60), '" has ', own_partitions,
                           ' partitions already, and keeps them'));
    ELSEIF partitions > own_partitions THEN
        CALL lock_readers(JSON_ARRAY(own), readers);
        CALL hold_sequencer();
        CALL add_partitions(own, own_partitions, partitions);
        UPDATE topics AS t SET t.partitions = partitions WHERE t.id = own;
        INSERT INTO leases (subscription_id, partition_id)
        SELECT r.id, p.id
        FROM JSON_TABLE(readers, '$[*]' COLUMNS (id BIGINT PATH '$')) AS r
        JOIN partitions AS p ON p.topic_id = own AND p.number >= own_partitions;
        INSERT INTO positions (subscription_id, partition_id, position, lease_epoch, reason)
        SELECT r.id, p.id, 0, 0, 'start'
        FROM JSON_TABLE(readers, '$[*]' COLUMNS (id BIGINT PATH '$')) AS r
        JOIN partitions AS p ON p.topic_id = own AND p.number >= own_partitions;
    END IF;
    SELECT own_partitions AS partitions;
    CALL end_call();
END;

-- name: delete_topic
-- Deletes a topic with its events. Refused (PS020) when a subscription reads it, unless with_subscriptions is
-- true: then its subscriptions continue without this topic. Always refused while a legal hold is on it. Takes effect
-- between two passes of the sequencer. Raises PS002, PS003, PS018, PS020, PS030 to PS034.
CREATE PROCEDURE delete_topic(topic LONGTEXT, with_subscriptions BOOLEAN)
BEGIN
    DECLARE own BIGINT;
    DECLARE topic_partitions INT;
    {{on error: CALL undo_call()}}
    CALL begin_call('delete_topic()');
    CALL require_address(topic);
    CALL require_read_committed('delete_topic()');
    CALL lock_topic(topic, 'operate', own, topic_partitions);
    CALL drop_topics(JSON_ARRAY(own), with_subscriptions);
    CALL end_call();
END;

-- name: list_topics
-- The topics at or below a namespace that the login may see; all such topics when the namespace is ''. In the order of
-- their addresses: those that come after one, and at most max_rows of them (NULL: all). '0' comes next to '/'.
CREATE PROCEDURE list_topics(namespace LONGTEXT, after LONGTEXT, max_rows BIGINT)
READS SQL DATA
BEGIN
    DECLARE most BIGINT DEFAULT COALESCE(max_rows, 9223372036854775807);
    DECLARE first, last LONGTEXT;
    CALL refuse_serializable('list_topics()');
    IF CHAR_LENGTH(namespace) = 0 THEN
        SELECT '', MAX(t.address) INTO first, last FROM topics AS t;
    ELSE
        SET first = CONCAT(namespace, '/'), last = CONCAT(namespace, '0');
    END IF;
    SELECT t.address AS topic, t.partitions, t.created_at, t.strategy
    FROM topics AS t
    WHERE t.address > after AND t.address BETWEEN first AND last AND LEFT(t.address, CHAR_LENGTH(first)) = first
      AND (NOT t.restricted AND @penstock_acting IS NULL OR has_right(t.namespace_id, 'any'))
    ORDER BY CAST(t.address AS BINARY)
    LIMIT most;
END;

-- name: describe_topic
-- What is set for a topic, and how many subscriptions read it. known_as is the name by which sinks and archives know
-- the topic: it stays when the address changes, and is never given to a second topic. Raises PS002.
CREATE PROCEDURE describe_topic(topic VARCHAR(4000))
READS SQL DATA
BEGIN
    DECLARE own_id BIGINT;
    CALL refuse_serializable('describe_topic()');
    CALL require_topic(topic, own_id);
    SELECT t.partitions, t.strategy, t.max_payload_bytes, t.max_unsequenced_events, t.max_unsequenced_bytes,
           t.restricted, (
               SELECT COUNT(s.topic_id) FROM subscription_topics AS s
               WHERE s.topic_id = t.id AND NOT reads_hidden(s.subscription_id)) AS subscriptions, t.created_at,
           t.id AS topic_id, t.known_as
    FROM topics AS t
    WHERE t.id = own_id;
END;

-- name: topic_lookup
-- What a publisher needs to know of a topic; no row when the topic does not exist or the login may not
-- publish to it.
CREATE PROCEDURE topic_lookup(topic VARCHAR(4000))
READS SQL DATA
BEGIN
    CALL refuse_serializable('topic_lookup()');
    SELECT t.id AS topic_id, t.partitions, t.max_payload_bytes, (SELECT MAX(h.history) FROM histories AS h) AS history,
           t.strategy
    FROM topics AS t
    WHERE t.address_hash = UNHEX(SHA2(topic, 256))
      AND (NOT t.restricted AND @penstock_acting IS NULL OR has_right(t.namespace_id, 'publish'));
END;

-- name: require_partition_count
-- Checks a number of partitions; raises PS005.
CREATE PROCEDURE require_partition_count(partitions INT)
NO SQL
BEGIN
    IF partitions IS NULL OR partitions NOT BETWEEN 1 AND 65536 THEN
        CALL refuse('PS005',
                    CONCAT('a topic cannot have ', COALESCE(partitions, 'NULL'), ' partitions: use 1 to 65,536'));
    END IF;
END;

-- name: add_partitions
-- Makes the partitions of a topic from one number up to, but not including, another.
CREATE PROCEDURE add_partitions(topic_id BIGINT, first_number INT, new_count INT)
BEGIN
    INSERT INTO partitions (id, topic_id, number)
    SELECT topic_id * 65536 + s.n, topic_id, s.n FROM numbers AS s WHERE s.n >= first_number AND s.n < new_count;
END;

-- name: make_topic
-- Makes a topic and its partitions in a namespace; NULL when its name is taken. The caller has checked everything,
-- and has waited for any other transaction that was making a topic of this name. Changes LAST_INSERT_ID().
CREATE PROCEDURE make_topic(parent BIGINT, topic LONGTEXT, partitions INT, strategy VARCHAR(255), OUT created BIGINT)
BEGIN
    DECLARE parent_path, own_name LONGTEXT;
    DECLARE is_restricted BOOLEAN;
    SET created = NULL;
    CALL split_path(topic, parent_path, own_name);
    CALL find_restricted(parent, is_restricted);
    INSERT IGNORE INTO topics (namespace_id, name, address, partitions, strategy, restricted)
    VALUES (parent, own_name, topic, partitions, strategy, is_restricted);
    IF ROW_COUNT() > 0 THEN
        SET created = LAST_INSERT_ID();
        -- No address has an empty name in its path, so no earlier topic is known by this name.
        UPDATE topics AS t SET t.known_as = CONCAT(topic, '//', created) WHERE t.id = created;
        CALL add_partitions(created, 0, partitions);
    END IF;
END;

-- name: require_strategy
-- Checks the partition strategy of a topic: crc32, round_robin, explicit, or client:NAME; raises PS006.
CREATE PROCEDURE require_strategy(strategy VARCHAR(255))
NO SQL
BEGIN
    IF strategy IS NULL OR strategy NOT REGEXP '^(crc32|round_robin|explicit|client:[A-Za-z0-9_.-]{1,100})$' THEN
        CALL refuse('PS006', CONCAT('there is no partition strategy "', COALESCE(LEFT(strategy, 80), 'NULL'), '"'));
    END IF;
END;

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
    CALL find_namespace(parent_path, 'operate', parent);
    CALL make_topic(parent, topic, partitions, strategy, created);
    IF created IS NULL THEN
        CALL refuse('PS007', CONCAT('there is already a topic "', LEFT(topic, 80), '"'));
    END IF;
    DO LAST_INSERT_ID(id_before);
    SELECT created AS topic_id;
    CALL end_call();
END;

-- name: ensure_namespaces
-- Makes the namespaces of a path that do not exist yet, from the top; raises PS001. The caller has locked the names.
-- Changes LAST_INSERT_ID().
CREATE PROCEDURE ensure_namespaces(path LONGTEXT)
BEGIN
    DECLARE own_path, parent_path, own_name LONGTEXT;
    DECLARE parent, found BIGINT;
    DECLARE depth INT DEFAULT 0;
    REPEAT
        SET depth = depth + 1, parent = 0;
        SET own_path = SUBSTRING_INDEX(path, '/', depth);
        SELECT COUNT(n.id) INTO found FROM namespaces AS n WHERE n.path_hash = UNHEX(SHA2(own_path, 256));
        IF found = 0 THEN
            CALL split_path(own_path, parent_path, own_name);
            IF depth > 1 THEN
                CALL find_namespace(parent_path, 'operate', parent);
            END IF;
            INSERT IGNORE INTO namespaces (parent_id, name, path) VALUES (parent, own_name, own_path);
        END IF;
    UNTIL CHAR_LENGTH(own_path) = CHAR_LENGTH(path) END REPEAT;
END;

-- name: find_own_topic
-- What an existing topic has, even if another transaction made it a moment ago; NULL when there is none.
CREATE PROCEDURE find_own_topic(
    topic LONGTEXT, OUT topic_id BIGINT, OUT topic_partitions INT, OUT topic_strategy VARCHAR(255)
)
BEGIN
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    SET topic_id = NULL, topic_partitions = NULL, topic_strategy = NULL;
    SELECT t.id, t.partitions, t.strategy INTO topic_id, topic_partitions, topic_strategy
    FROM topics AS t WHERE t.address_hash = UNHEX(SHA2(topic, 256));
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
    CALL find_namespace(parent_path, 'operate', parent);
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

-- name: place_topic
-- Gives a topic another namespace and name. Returns its new address. The caller has locked the whole tree for
-- itself.
CREATE PROCEDURE place_topic(own BIGINT, own_address LONGTEXT, parent BIGINT, new_address LONGTEXT)
BEGIN
    DECLARE parent_path, new_name LONGTEXT;
    DECLARE is_restricted, is_taken BOOLEAN;
    IF CAST(new_address AS BINARY) <> CAST(own_address AS BINARY) THEN
        CALL require_address(new_address);
        SELECT COUNT(*) INTO is_taken FROM topics AS t WHERE t.address_hash = UNHEX(SHA2(new_address, 256));
        IF is_taken THEN
            CALL refuse('PS007', CONCAT('there is already a topic "', LEFT(new_address, 80), '"'));
        END IF;
        CALL split_path(new_address, parent_path, new_name);
        CALL find_restricted(parent, is_restricted);
        UPDATE topics AS t
        SET t.namespace_id = parent, t.name = new_name, t.address = new_address, t.restricted = is_restricted
        WHERE t.id = own;
        CALL refresh_policies('topic', own);
    END IF;
    SELECT new_address AS topic;
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
    CALL find_namespace(parent_path, 'operate', parent);
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
    CALL find_namespace(namespace, 'operate', parent);
    CALL split_path(topic, parent_path, own_name);
    CALL place_topic(own, topic, parent, CONCAT(namespace, '/', own_name));
    CALL end_call();
END;

-- name: hold_sequencer
-- Waits for the pass of the sequencer that is under way and keeps the next one from
-- beginning until the transaction ends.
CREATE PROCEDURE hold_sequencer()
BEGIN
    DECLARE locked BOOLEAN;
    SELECT s.singleton INTO locked FROM sequencer AS s FOR UPDATE;
END;

-- name: lock_readers
-- The subscriptions (a JSON array of ids) that read one of the topics, locked so that none of them is deleted
-- meanwhile: an unsubscribe that is under way has to end first. The caller has locked the topics, so no subscription
-- is added.
CREATE PROCEDURE lock_readers(topic_ids JSON, OUT readers JSON)
BEGIN
    DECLARE how_many INT;
    DECLARE limit_before BIGINT UNSIGNED DEFAULT @@SESSION.group_concat_max_len;
    {{on error: SET SESSION group_concat_max_len = limit_before}}
    SET SESSION group_concat_max_len = 4294967295;
    SELECT COALESCE(JSON_ARRAYAGG(l.id), JSON_ARRAY()), COUNT(l.id) INTO readers, how_many
    FROM (
        SELECT s.id
        FROM subscriptions AS s
        WHERE s.id IN (
            SELECT r.subscription_id
            FROM subscription_topics AS r
            WHERE r.topic_id IN (SELECT j.id FROM JSON_TABLE(topic_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS j))
        ORDER BY s.id
        -- The limit keeps MariaDB from merging the two queries.
        LIMIT 1000000
        FOR UPDATE
    ) AS l;
    SET SESSION group_concat_max_len = limit_before;
    IF JSON_LENGTH(readers) <> how_many THEN
        CALL refuse('PS019', 'not all subscriptions of the topics were found');
    END IF;
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

-- name: find_doomed
-- Puts the partitions of topics (a JSON array of ids) into the session's table doomed_partitions, with what
-- their low sequence will be. There may be millions of them, and the session's settings or max_allowed_packet
-- may leave no room for an array of them.
CREATE PROCEDURE find_doomed(topic_ids JSON)
BEGIN
    CREATE TEMPORARY TABLE IF NOT EXISTS doomed_partitions (
        id BIGINT NOT NULL PRIMARY KEY, low BIGINT NOT NULL
    ) ENGINE = InnoDB;
    DELETE FROM doomed_partitions;
    INSERT INTO doomed_partitions (id, low)
    SELECT STRAIGHT_JOIN p.id, COALESCE((
            SELECT c.first_sequence + c.event_count
            FROM chunks AS c
            WHERE c.partition_id = p.id
            ORDER BY c.partition_id DESC, c.first_sequence DESC
            LIMIT 1), 1)
    FROM JSON_TABLE(topic_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS j JOIN partitions AS p ON p.topic_id = j.id;
END;

-- name: drop_topics
-- Deletes topics (a JSON array of ids) that the caller has locked. Their subscriptions continue without them. Their
-- events are logically gone at once, and the sequencer discards what transactions that still saw the topics publish
-- to them. The sequencer is held last, so that the log never waits for a consumer. A legal hold on one of them is
-- refused. Raises PS020.
CREATE PROCEDURE drop_topics(topic_ids JSON, with_subscriptions BOOLEAN)
BEGIN
    DECLARE readers JSON;
    DECLARE a_reader, held_by VARCHAR(500);
    SELECT MIN(h.name) INTO held_by
    FROM JSON_TABLE(topic_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS j
    JOIN legal_holds AS h ON h.topic_id = j.id AND h.released_at IS NULL;
    IF held_by IS NOT NULL THEN
        CALL refuse('PS020', CONCAT('the legal hold "', LEFT(held_by, 60), '" is on the topic'));
    END IF;
    CALL lock_readers(topic_ids, readers);
    IF JSON_LENGTH(readers) > 0 AND with_subscriptions IS NOT TRUE THEN
        SELECT MIN(s.name) INTO a_reader FROM subscriptions AS s WHERE s.id = JSON_EXTRACT(readers, '$[0]');
        CALL refuse('PS020', CONCAT('subscription "', LEFT(a_reader, 60), '" reads the topic'));
    END IF;
    CALL find_doomed(topic_ids);
    -- DELETE and UPDATE lock all that they read. So they use ids that were selected before, and find the rows that
    -- they change by a key: a scan would wait for transactions that change other topics, and reading here what is
    -- changed below could deadlock with a merge.
    DELETE l
    FROM doomed_partitions AS p
    STRAIGHT_JOIN JSON_TABLE(readers, '$[*]' COLUMNS (id BIGINT PATH '$')) AS r
    STRAIGHT_JOIN leases AS l FORCE INDEX (PRIMARY) ON l.subscription_id = r.id AND l.partition_id = p.id;
    DELETE a
    FROM doomed_partitions AS p
    STRAIGHT_JOIN JSON_TABLE(readers, '$[*]' COLUMNS (id BIGINT PATH '$')) AS r
    STRAIGHT_JOIN archive_readers AS a FORCE INDEX (PRIMARY) ON a.subscription_id = r.id AND a.partition_id = p.id;
    DELETE a
    FROM doomed_partitions AS p
    STRAIGHT_JOIN JSON_TABLE(readers, '$[*]' COLUMNS (id BIGINT PATH '$')) AS r
    STRAIGHT_JOIN attempts AS a FORCE INDEX (PRIMARY) ON a.subscription_id = r.id AND a.partition_id = p.id;
    CALL forget_doomed(readers);
    -- After what the workers of queues have rejected until now.
    DELETE d
    FROM doomed_partitions AS p
    STRAIGHT_JOIN JSON_TABLE(readers, '$[*]' COLUMNS (id BIGINT PATH '$')) AS r
    STRAIGHT_JOIN dead_letters AS d FORCE INDEX (PRIMARY) ON d.subscription_id = r.id AND d.partition_id = p.id;
    DELETE s
    FROM JSON_TABLE(topic_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS j
    STRAIGHT_JOIN subscription_topics AS s FORCE INDEX (subscription_topics_topic) ON s.topic_id = j.id;
    DELETE r
    FROM JSON_TABLE(topic_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS j
    STRAIGHT_JOIN retention_policies AS r FORCE INDEX (PRIMARY) ON r.topic_id = j.id;
    DELETE b
    FROM JSON_TABLE(topic_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS j
    STRAIGHT_JOIN bookmarks AS b FORCE INDEX (PRIMARY) ON b.topic_id = j.id;
    DELETE s
    FROM doomed_partitions AS p
    STRAIGHT_JOIN history_starts AS s FORCE INDEX (PRIMARY) ON s.partition_id = p.id;
    DELETE s
    FROM doomed_partitions AS p
    STRAIGHT_JOIN suspected_copies AS s FORCE INDEX (PRIMARY) ON s.partition_id = p.id;
    -- The requests first: when they are gone, nothing is rehydrated any more.
    DELETE b, u
    FROM JSON_TABLE(topic_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS j
    STRAIGHT_JOIN backfill_requests AS b FORCE INDEX (backfill_requests_topic) ON b.topic_id = j.id
    LEFT JOIN backfill_units AS u FORCE INDEX (PRIMARY) ON u.request = b.id;
    DELETE e
    FROM doomed_partitions AS p
    STRAIGHT_JOIN rehydrated_epochs AS e FORCE INDEX (PRIMARY) ON e.partition_id = p.id;
    DELETE e
    FROM doomed_partitions AS p
    STRAIGHT_JOIN rehydrated_events AS e FORCE INDEX (PRIMARY) ON e.partition_id = p.id;
    CALL forget_policies('topic', topic_ids);
    CALL refresh_readers(readers);
    CALL hold_sequencer();
    INSERT INTO deleted_topics (topic_id, address, deleted_by)
    SELECT t.id, t.address, USER()
    FROM topics AS t JOIN JSON_TABLE(topic_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS j ON j.id = t.id;
    -- Read again, now that no pass is under way: where the log of each partition ends.
    CALL find_doomed(topic_ids);
    UPDATE doomed_partitions AS n
    STRAIGHT_JOIN partitions AS p FORCE INDEX (PRIMARY) ON p.id = n.id
    SET p.low_sequence = n.low;
    DELETE FROM doomed_partitions;
    DELETE t
    FROM JSON_TABLE(topic_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS j
    STRAIGHT_JOIN topics AS t FORCE INDEX (PRIMARY) ON t.id = j.id;
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

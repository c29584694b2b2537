-- name: refuse_subscription
-- Raises the error that there is no such subscription (PS013), in the same words whether it is missing or
-- hidden.
CREATE PROCEDURE refuse_subscription(subscription LONGTEXT)
NO SQL
BEGIN
    CALL refuse('PS013', CONCAT('there is no subscription "', LEFT(COALESCE(subscription, ''), 80), '"'));
END;

-- name: look_at_subscription
-- The id of a subscription, NULL when there is none; raises PS013 when it reads a topic that the login may not
-- consume.
CREATE PROCEDURE look_at_subscription(subscription LONGTEXT, OUT subscription_id BIGINT)
READS SQL DATA
BEGIN
    DECLARE given INT;
    DECLARE is_hidden BOOLEAN;
    SELECT MAX(s.id) INTO subscription_id FROM subscriptions AS s WHERE s.name_hash = UNHEX(SHA2(subscription, 256));
    -- First it checks whether there are any rights at all, so that a heartbeat has no cost for rights where
    -- there are none.
    SELECT COUNT(g.verb) INTO given FROM (SELECT n.verb FROM namespace_grants AS n LIMIT 1) AS g;
    IF given > 0 THEN
        SET is_hidden = reads_hidden(subscription_id);
        IF is_hidden THEN
            CALL refuse_subscription(subscription);
        END IF;
    END IF;
END;

-- name: find_subscription
-- The id of a subscription; raises PS013, also when it reads a topic that the login may not consume.
CREATE PROCEDURE find_subscription(subscription LONGTEXT, OUT subscription_id BIGINT)
READS SQL DATA
BEGIN
    CALL look_at_subscription(subscription, subscription_id);
    IF subscription_id IS NULL THEN
        CALL refuse_subscription(subscription);
    END IF;
END;

-- name: lock_subscription
-- Locks the row of a subscription. Every call that changes consumers or leases locks this row first. Raises PS013
-- before it would lock a subscription that is hidden.
CREATE PROCEDURE lock_subscription(subscription LONGTEXT, OUT subscription_id BIGINT)
BEGIN
    CALL look_at_subscription(subscription, subscription_id);
    SET subscription_id = (
        SELECT s.id FROM subscriptions AS s WHERE s.name_hash = UNHEX(SHA2(subscription, 256)) FOR UPDATE);
    IF subscription_id IS NULL THEN
        CALL refuse_subscription(subscription);
    END IF;
END;

-- name: current_position
-- The newest position in the ledger; NULL when the subscription does not read the partition. Without a hint, MySQL
-- walks the primary key backwards to the first row that fits.
CREATE FUNCTION current_position(of_subscription BIGINT, of_partition BIGINT) RETURNS BIGINT
READS SQL DATA
BEGIN
    DECLARE newest BIGINT;
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    SELECT p.position INTO newest
    FROM positions AS p FORCE INDEX (positions_newest)
    WHERE p.subscription_id = of_subscription AND p.partition_id = of_partition
    ORDER BY p.id DESC
    LIMIT 1;
    RETURN newest;
END;

-- name: find_start
-- Where a new subscription starts: 'earliest' (the first event that is left), 'latest' (after the last event), a
-- sequence to begin with, a position of the log (LSN) instead, a time, or what find_plain_start knows. With a time it
-- starts with the first event that was sequenced then or later, however early that event was published. A sequence
-- below the low sequence is accepted where a verified copy holds it: then the consumers read the archive first. Raises
-- PS006, PS012, PS013, PS016, PS019, PS021, PS029.
CREATE PROCEDURE find_start(of_partition BIGINT, given LONGTEXT, OUT wanted BIGINT)
READS SQL DATA
BEGIN
    DECLARE start LONGTEXT;
    DECLARE since DATETIME(6);
    CALL find_plain_start(of_partition, given, start);
    IF start = 'earliest' THEN
        SELECT MAX(p.low_sequence) - 1 INTO wanted FROM partitions AS p WHERE p.id = of_partition;
    ELSEIF start = 'latest' THEN
        SET wanted = high_watermark(of_partition);
    ELSEIF start REGEXP '^[1-9][0-9]{0,17}$|^[0-9]+[.][0-9]+$' THEN
        IF INSTR(start, '.') > 0 THEN
            CALL find_checked_sequence(of_partition, start, wanted);
        ELSE
            SET wanted = CAST(start AS SIGNED);
        END IF;
        SET wanted = wanted - 1;
        CALL require_startable(of_partition, wanted + 1);
        IF wanted > high_watermark(of_partition) THEN
            CALL refuse('PS012', CONCAT('sequence ', start, ' is beyond the high watermark'));
        END IF;
    ELSE
        CALL find_start_time(start, since);
        CALL find_position_before(of_partition, since, wanted);
    END IF;
END;

-- name: find_start_time
-- A time at which to start: ISO 8601 with its zone, and not in the future. Raises PS006.
CREATE PROCEDURE find_start_time(start LONGTEXT, OUT since DATETIME(6))
NO SQL
BEGIN
    DECLARE zone VARCHAR(6);
    DECLARE minutes INT;
    DECLARE CONTINUE HANDLER FOR 1292 SET since = NULL;  -- There is no such day.
    SET since = NULL;
    IF start REGEXP '^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ]([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9]([.][0-9]{1,6})?)?'
                    '(Z|[+-](0[0-9]|1[0-5]):?[0-5][0-9])$' THEN
        SET zone = REGEXP_SUBSTR(start, '(Z|[+-][0-9]{2}:?[0-9]{2})$');
        SET minutes = IF(zone = 'Z', 0, (60 * SUBSTR(zone, 2, 2) + RIGHT(zone, 2)) * IF(LEFT(zone, 1) = '-', -1, 1));
        SET since = CAST(REPLACE(LEFT(start, CHAR_LENGTH(start) - CHAR_LENGTH(zone)), 'T', ' ') AS DATETIME(6));
        SET since = since - INTERVAL minutes MINUTE;
    END IF;
    IF since IS NULL THEN
        CALL refuse('PS006', CONCAT('a subscription cannot start at "', COALESCE(LEFT(start, 60), 'NULL'), '"'));
    ELSEIF since > UTC_TIMESTAMP(6) THEN
        CALL refuse('PS006', CONCAT('the time ', start, ' is in the future'));
    END IF;
END;

-- name: find_position_since
-- The position before the first event of a partition that was sequenced at a time or later, if the database knows it.
-- Otherwise wanted is NULL: such an event may be among those that were removed. in_epoch is the log epoch in which to
-- look then; NULL when no seal says so.
CREATE PROCEDURE find_position_since(of_partition BIGINT, since DATETIME(6), OUT wanted BIGINT, OUT in_epoch INT)
READS SQL DATA
BEGIN
    DECLARE low, watermark, found_chunk, first_wanted, epoch_begins BIGINT;
    DECLARE known, epoch_below INT;
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    SELECT MAX(p.low_sequence) INTO low FROM partitions AS p WHERE p.id = of_partition;
    SET watermark = high_watermark(of_partition);
    SELECT c.first_sequence INTO found_chunk
    FROM chunks AS c
    WHERE c.partition_id = of_partition AND c.sequenced_at >= since
    ORDER BY c.first_sequence
    LIMIT 1;
    SELECT MIN(n.sequence) INTO first_wanted
    FROM logged_ids AS n
    WHERE n.partition_id = of_partition AND n.first_sequence = found_chunk AND n.sequenced_at >= since;
    SET first_wanted = COALESCE(first_wanted, watermark + 1);
    SET wanted = first_wanted - 1, in_epoch = NULL;
    SELECT COUNT(c.first_sequence) INTO known
    FROM chunks AS c
    WHERE c.partition_id = of_partition AND c.first_sequence < first_wanted
      AND c.first_sequence + c.event_count >= first_wanted;
    -- The index of what was dropped is removed too: then only a seal says when its last event was sequenced.
    IF first_wanted < low OR (first_wanted = low AND first_wanted BETWEEN 2 AND watermark AND known = 0) THEN
        SELECT e.log_epoch, e.first_sequence INTO in_epoch, epoch_begins
        FROM log_epochs AS e FORCE INDEX (log_epochs_sequenced)
        WHERE e.partition_id = of_partition AND e.sequenced_until >= since
        ORDER BY e.sequenced_until, e.log_epoch
        LIMIT 1;
        CALL find_log_epoch_at(of_partition, low - 1, epoch_below);
        IF epoch_begins < low OR first_wanted < low OR (in_epoch IS NULL AND epoch_below = 0) THEN
            SET wanted = NULL;
        END IF;
    END IF;
END;

-- name: find_position_before
-- The position before the first event that was sequenced at a time or later. If such an event may have been dropped,
-- this raises an error (PS016): no event is skipped silently.
CREATE PROCEDURE find_position_before(of_partition BIGINT, since DATETIME(6), OUT wanted BIGINT)
READS SQL DATA
BEGIN
    DECLARE in_epoch INT;
    DECLARE low BIGINT;
    CALL find_position_since(of_partition, since, wanted, in_epoch);
    IF wanted IS NULL THEN
        SELECT MAX(p.low_sequence) INTO low FROM partitions AS p WHERE p.id = of_partition;
        CALL refuse('PS016',
                    CONCAT('events sequenced since ', since, ' were dropped: the log begins at sequence ', low));
    END IF;
END;

-- name: position_at
-- The position before the first event of a partition that was sequenced at a time or later; the high watermark when
-- there is none. If such an event may have been dropped, this raises PS016. Raises PS002, PS005, PS006, PS016.
CREATE PROCEDURE position_at(topic VARCHAR(4000), `partition` INT, since DATETIME(6))
READS SQL DATA
BEGIN
    DECLARE source_id, wanted BIGINT;
    CALL refuse_serializable('position_at()');
    CALL find_partition(topic, `partition`, source_id);
    IF since IS NULL THEN
        CALL refuse('PS006', 'the time is NULL');
    END IF;
    CALL find_position_before(source_id, since, wanted);
    SELECT wanted AS `position`;
END;

-- name: locate_time
-- The position before the first event of a partition that was sequenced at a time or later, where the database knows
-- it. Where such an event may have been dropped, position is NULL, and the log epoch is the one in which to look
-- first: no event before it was sequenced then. Raises PS002, PS005, PS006, PS016.
CREATE PROCEDURE locate_time(topic VARCHAR(4000), `partition` INT, since DATETIME(6))
READS SQL DATA
BEGIN
    DECLARE source_id, wanted, epoch_begins, epoch_ends BIGINT;
    DECLARE in_epoch INT;
    CALL refuse_serializable('locate_time()');
    CALL find_partition(topic, `partition`, source_id);
    IF since IS NULL THEN
        CALL refuse('PS006', 'the time is NULL');
    END IF;
    CALL find_position_since(source_id, since, wanted, in_epoch);
    IF wanted IS NULL AND in_epoch IS NULL THEN
        CALL refuse('PS016', CONCAT('events sequenced since ', since, ' were dropped, and no seal says which'));
    END IF;
    SELECT MAX(e.first_sequence), MAX(e.last_sequence) INTO epoch_begins, epoch_ends
    FROM log_epochs AS e
    WHERE e.partition_id = source_id AND e.log_epoch = in_epoch;
    SELECT wanted AS `position`, in_epoch AS log_epoch, epoch_begins AS first_sequence, epoch_ends AS last_sequence;
END;

-- name: require_start_of_queue
-- Refuses a queue that would begin below the low sequence of a partition (PS016): no queue reads the archive.
CREATE PROCEDURE require_start_of_queue(owner_id BIGINT, part_id BIGINT, wanted BIGINT)
READS SQL DATA
BEGIN
    DECLARE low BIGINT;
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    SELECT p.low_sequence INTO low
    FROM partitions AS p JOIN subscriptions AS s ON s.id = owner_id
    WHERE p.id = part_id AND s.mode = 'queue';
    IF wanted < low - 1 THEN
        CALL refuse('PS016', CONCAT('sequence ', wanted + 1, ' is below the low sequence ', low,
                                    ', and a queue reads nothing from the archive: begin at "earliest"'));
    END IF;
END;

-- name: add_topic
-- Makes a subscription read a topic. The caller has locked the topic's row against the logical drop, so that
-- "earliest" never points below the low sequence.
CREATE PROCEDURE add_topic(owner_id BIGINT, source_id BIGINT, start LONGTEXT)
BEGIN
    DECLARE part_id, wanted BIGINT;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE parts CURSOR FOR SELECT p.id FROM partitions AS p WHERE p.topic_id = source_id ORDER BY p.id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    INSERT INTO subscription_topics (subscription_id, topic_id) VALUES (owner_id, source_id);
    OPEN parts;
    part: LOOP
        FETCH parts INTO part_id;
        IF done THEN
            LEAVE part;
        END IF;
        CALL find_start(part_id, start, wanted);
        CALL require_start_of_queue(owner_id, part_id, wanted);
        INSERT INTO leases (subscription_id, partition_id) VALUES (owner_id, part_id);
        INSERT INTO positions (subscription_id, partition_id, position, lease_epoch, reason)
        VALUES (owner_id, part_id, wanted, 0, 'start');
    END LOOP;
    CLOSE parts;
END;

-- name: subscribe
-- Creates the subscription if it does not exist, and adds topics (a JSON array) to it. Returns how many were new. In
-- mode 'queue' its events are received and acknowledged one by one; the mode (stream or queue) stays. Raises PS002,
-- PS006, PS007, PS012, PS013, PS016, PS018, PS019, PS021, PS029, PS030, PS031, PS033, PS042.
CREATE PROCEDURE subscribe(subscription LONGTEXT, topics JSON, start LONGTEXT, mode LONGTEXT)
BEGIN
    DECLARE owner_id, source_id BIGINT;
    DECLARE added, known, taken INT DEFAULT 0;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE given CURSOR FOR
        SELECT DISTINCT t.id
        FROM JSON_TABLE(topics, '$[*]' COLUMNS (address VARCHAR(4000) PATH '$')) AS g
        JOIN topics AS t ON t.address_hash = UNHEX(SHA2(g.address, 256))
        ORDER BY t.id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    {{on error: CALL undo_call()}}
    CALL begin_call('subscribe()');
    CALL require_read_committed('subscribe()');
    CALL require_name(REPLACE(subscription, '/', '.'), 'subscription');
    IF COALESCE(JSON_LENGTH(topics), 0) = 0 THEN
        CALL refuse('PS006', 'the subscription names no topic');
    END IF;
    -- Checked before the row is locked, because it may be another tenant's.
    SELECT COUNT(s.id) INTO taken
    FROM subscriptions AS s WHERE s.name_hash = UNHEX(SHA2(subscription, 256)) AND reads_hidden(s.id);
    IF taken > 0 THEN
        CALL refuse('PS007', CONCAT('there is already a subscription "', LEFT(subscription, 80), '"'));
    END IF;
    -- Locked before the subscription, as in every call that locks both.
    CALL lock_topics(topics, 'consume');
    INSERT INTO subscriptions (name) VALUES (subscription)
    ON DUPLICATE KEY UPDATE max_consumers = subscriptions.max_consumers;
    CALL lock_subscription(subscription, owner_id);
    CALL begin_queue(owner_id, mode);
    OPEN given;
    topic: LOOP
        FETCH given INTO source_id;
        IF done THEN
            LEAVE topic;
        END IF;
        SELECT COUNT(*) INTO known
        FROM subscription_topics AS t WHERE t.subscription_id = owner_id AND t.topic_id = source_id;
        IF known = 0 THEN
            CALL add_topic(owner_id, source_id, start);
            SET added = added + 1;
        END IF;
    END LOOP;
    CLOSE given;
    IF added > 0 THEN
        CALL refresh_policy(owner_id);
    END IF;
    SELECT added;
    CALL end_call();
END;

-- name: configure_subscription
-- Sets the times of a subscription, in seconds. They become part of the subscription's own heartbeat policy,
-- whose other settings stay. Raises PS006, PS013, PS018.
CREATE PROCEDURE configure_subscription(
    subscription LONGTEXT, heartbeat_seconds DOUBLE, lease_seconds DOUBLE, release_seconds DOUBLE
)
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE new_version INT;
    DECLARE present LONGTEXT DEFAULT '{}';
    -- MariaDB treats a variable as text.
    DECLARE wanted LONGTEXT DEFAULT JSON_OBJECT(
        'heartbeat_seconds', heartbeat_seconds + 0e0, 'lease_seconds', lease_seconds + 0e0,
        'release_seconds', release_seconds + 0e0);
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    {{on error: CALL undo_call()}}
    CALL begin_call('configure_subscription()');
    CALL require_policy_settings('heartbeat', wanted);
    CALL require_read_committed('configure_subscription()');
    CALL lock_policy_scope('subscription', subscription, owner_id);
    SELECT p.settings INTO present
    FROM policies AS p WHERE p.scope = 'subscription' AND p.scope_id = owner_id AND p.kind = 'heartbeat';
    CALL store_policy('subscription', owner_id, 'heartbeat', JSON_MERGE_PRESERVE(
        JSON_REMOVE(present, '$.heartbeat_seconds', '$.lease_seconds', '$.release_seconds'), wanted),
        'hand', new_version);
    CALL end_call();
END;

-- name: unsubscribe
-- Removes a subscription with its leases and dead letters. From then on it keeps no event from being removed, and its
-- name can be used again. Of many dead letters, or of a large queue, remove_leftovers deletes the rest. The rows in the
-- ledger of positions stay, without effect, until the ledger is trimmed. Raises PS013.
CREATE PROCEDURE unsubscribe(subscription LONGTEXT)
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE gone INT;
    {{on error: CALL undo_call()}}
    CALL begin_call('unsubscribe()');
    -- First the row that every check-in locks first: any other order deadlocks with them.
    CALL lock_subscription(subscription, owner_id);
    DELETE c FROM consumers AS c WHERE c.subscription_id = owner_id;
    DELETE l FROM leaders AS l WHERE l.subscription_id = owner_id;
    DELETE l FROM leases AS l WHERE l.subscription_id = owner_id;
    DELETE a FROM archive_readers AS a WHERE a.subscription_id = owner_id;
    DELETE a FROM active_partitions AS a WHERE a.subscription_id = owner_id;
    DELETE h FROM shares AS h WHERE h.subscription_id = owner_id;
    DELETE v FROM surveys AS v WHERE v.subscription_id = owner_id;
    DELETE t FROM subscription_topics AS t WHERE t.subscription_id = owner_id;
    DELETE s FROM stops AS s WHERE s.subscription_id = owner_id;
    DELETE a FROM attempts AS a WHERE a.subscription_id = owner_id;
    -- What a dealer deals meanwhile is a leftover too: this waits for him.
    DELETE q FROM queues AS q WHERE q.subscription_id = owner_id;
    DELETE t FROM queue_turns AS t WHERE t.subscription_id = owner_id;
    CALL forget_policies('subscription', JSON_ARRAY(owner_id));
    INSERT INTO removals (subscription_id, name) SELECT s.id, s.name FROM subscriptions AS s WHERE s.id = owner_id;
    DELETE s FROM subscriptions AS s WHERE s.id = owner_id;
    CALL remove_rows(owner_id, 1000, gone);
    CALL end_call();
END;

-- name: subscription_lag
-- Position, high watermark, lag and holder of every partition of one subscription, or of all (NULL). lag_seconds is the
-- time since the first unread event was sequenced.
CREATE PROCEDURE subscription_lag(subscription LONGTEXT)
READS SQL DATA
BEGIN
    CALL refuse_serializable('subscription_lag()');
    CALL show_cursors(subscription, FALSE);
END;

-- name: show_cursors
-- The rows of subscription_lag, or only those of partitions that can be leased.
CREATE PROCEDURE show_cursors(subscription LONGTEXT, only_unleased BOOLEAN)
READS SQL DATA
BEGIN
    DECLARE present DATETIME(6) DEFAULT UTC_TIMESTAMP(6);
    WITH standing AS (
        SELECT s.name, t.address, p.number, p.id, l.state, l.holder, l.lease_epoch,
               current_position(s.id, p.id) AS position, high_watermark(p.id) AS watermark
        FROM subscriptions AS s
        JOIN leases AS l ON l.subscription_id = s.id
        JOIN partitions AS p ON p.id = l.partition_id
        JOIN topics AS t ON t.id = p.topic_id
        WHERE (subscription IS NULL OR s.name_hash = UNHEX(SHA2(subscription, 256)))
          AND (NOT t.restricted OR has_right(t.namespace_id, 'read')) AND NOT reads_unseen(s.id)
        LIMIT 100000000  -- Keeps it from being merged into the query, which would call the functions for each mention.
    )
    SELECT a.name AS subscription, a.address AS topic, a.number AS `partition`, a.position,
           a.watermark AS high_watermark, a.watermark - a.position AS lag_events,
           IF(a.watermark > a.position, COALESCE(TIMESTAMPDIFF(MICROSECOND, (
               SELECT IF(c.sequenced_ats IS NULL, c.sequenced_at,
                         TIMESTAMP'1970-01-01 00:00:00' + INTERVAL CAST(CONV(HEX(
                             SUBSTR(c.sequenced_ats, 8 * (a.position + 1 - c.first_sequence) + 1, 8)
                         ), 16, 10) AS SIGNED) MICROSECOND)
               FROM chunks AS c
               WHERE c.partition_id = a.id AND c.first_sequence <= a.position + 1
               ORDER BY c.partition_id DESC, c.first_sequence DESC
               LIMIT 1), present), 0), 0) / 1e6 AS lag_seconds,
           a.state, a.holder, a.lease_epoch
    FROM standing AS a
    WHERE NOT only_unleased OR (a.state = 'AVAILABLE' AND a.watermark > a.position)
    ORDER BY a.name, a.address, a.number;
END;

-- name: find_paused
-- Whether a subscription is paused. Call it after its row is locked.
CREATE PROCEDURE find_paused(owner_id BIGINT, OUT paused BOOLEAN)
READS SQL DATA
BEGIN
    SELECT COUNT(s.paused_at) > 0 INTO paused FROM subscriptions AS s WHERE s.id = owner_id;
END;

-- name: require_listed
-- Checks the topics to which a consumer limits itself (a JSON array; NULL for all topics of the subscription). Raises
-- PS002, PS003, PS006, PS013, PS030 to PS034.
CREATE PROCEDURE require_listed(owner_id BIGINT, subscription LONGTEXT, topics JSON)
READS SQL DATA
BEGIN
    DECLARE address VARCHAR(5000);
    DECLARE topic_id BIGINT;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE given CURSOR FOR
        SELECT g.address FROM JSON_TABLE(topics, '$[*]' COLUMNS (address VARCHAR(5000) PATH '$')) AS g;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    IF topics IS NOT NULL THEN
        IF COALESCE(JSON_TYPE(topics), '') <> 'ARRAY' OR JSON_LENGTH(topics) = 0 THEN
            CALL refuse('PS006', 'the topics of the consumer are not a list of at least one topic');
        END IF;
        OPEN given;
        topic: LOOP
            FETCH given INTO address;
            IF done THEN
                LEAVE topic;
            END IF;
            CALL require_address(address);
            CALL find_topic_for(address, 'consume', topic_id);
            CALL require_reader(owner_id, topic_id, subscription, address);
        END LOOP;
        CLOSE given;
    END IF;
END;

-- name: limit_consumer
-- Records the topics of a consumer that joins, in place of those of an earlier run.
CREATE PROCEDURE limit_consumer(owner_id BIGINT, consumer VARCHAR(255), topics JSON)
BEGIN
    DELETE t FROM consumer_topics AS t WHERE t.subscription_id = owner_id AND t.consumer = consumer;
    IF topics IS NOT NULL THEN
        INSERT INTO consumer_topics (subscription_id, consumer, topic_id)
        SELECT DISTINCT owner_id, consumer, t.id
        FROM JSON_TABLE(topics, '$[*]' COLUMNS (address VARCHAR(4000) PATH '$')) AS g
        JOIN topics AS t ON t.address_hash = UNHEX(SHA2(g.address, 256));
    END IF;
END;

-- name: may_hold
-- Whether a consumer takes partitions of a topic: it has named this topic, or no topics at all.
CREATE FUNCTION may_hold(owner_id BIGINT, consumer VARCHAR(255), of_topic BIGINT) RETURNS BOOLEAN
READS SQL DATA
BEGIN
    DECLARE takes BOOLEAN;
    SELECT COUNT(t.topic_id) = 0 OR SUM(t.topic_id = of_topic) > 0 INTO takes
    FROM consumer_topics AS t WHERE t.subscription_id = owner_id AND t.consumer = consumer;
    RETURN takes;
END;

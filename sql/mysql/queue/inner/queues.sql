-- name: require_queue
-- The id of a subscription in queue mode for a login that holds a right (receive, acknowledge, peek, consume, operate)
-- in all its topics. Raises PS013, PS042.
CREATE PROCEDURE require_queue(subscription LONGTEXT, verb VARCHAR(20), OUT owner_id BIGINT)
READS SQL DATA
BEGIN
    DECLARE kept_order VARCHAR(10);
    CALL find_queue(subscription, verb, owner_id, kept_order);
END;

-- name: find_queue
-- What require_queue does, and the order of the queue (none, key). Raises PS013, in the same words whether it is
-- missing or hidden, and PS042 for a stream.
CREATE PROCEDURE find_queue(
    subscription LONGTEXT, verb VARCHAR(20), OUT owner_id BIGINT, OUT kept_order VARCHAR(10)
)
READS SQL DATA
BEGIN
    DECLARE given, hidden INT DEFAULT 0;
    SELECT MAX(s.id), MAX(q.`order`) INTO owner_id, kept_order
    FROM subscriptions AS s LEFT JOIN queues AS q ON q.subscription_id = s.id
    WHERE s.name_hash = UNHEX(SHA2(subscription, 256));
    SELECT COUNT(g.verb) INTO given FROM (SELECT n.verb FROM namespace_grants AS n LIMIT 1) AS g;
    IF given > 0 OR @penstock_acting IS NOT NULL THEN
        SELECT COUNT(t.id) INTO hidden
        FROM subscription_topics AS r JOIN topics AS t ON t.id = r.topic_id
        WHERE r.subscription_id = owner_id AND (t.restricted OR @penstock_acting IS NOT NULL)
          AND NOT has_right(t.namespace_id, verb);
        IF hidden = 0 AND @penstock_acting IS NOT NULL THEN
            SET hidden = belongs_to_nobody(owner_id);
        END IF;
    END IF;
    IF owner_id IS NULL OR hidden > 0 THEN
        CALL refuse_subscription(subscription);
    ELSEIF kept_order IS NULL THEN
        CALL refuse('PS042', CONCAT('subscription "', LEFT(subscription, 80), '" is a stream'));
    END IF;
END;

-- name: require_stream
-- Refuses a call of stream mode for a subscription in queue mode (PS042).
CREATE PROCEDURE require_stream(owner_id BIGINT)
READS SQL DATA
BEGIN
    DECLARE queue_name VARCHAR(500);
    SELECT MAX(s.name) INTO queue_name FROM subscriptions AS s WHERE s.id = owner_id AND s.mode <> 'stream';
    IF queue_name IS NOT NULL THEN
        CALL refuse('PS042', CONCAT('subscription "', LEFT(queue_name, 80), '" is a queue'));
    END IF;
END;

-- name: begin_queue
-- Sets the mode of a subscription that subscribe has locked: of a new one the mode that was asked for, and of an old
-- one nothing. Raises PS006, PS042.
CREATE PROCEDURE begin_queue(owner_id BIGINT, wanted LONGTEXT)
BEGIN
    DECLARE present VARCHAR(20);
    DECLARE name VARCHAR(500);
    DECLARE read_topics INT;
    SELECT MAX(s.mode), MAX(s.name) INTO present, name FROM subscriptions AS s WHERE s.id = owner_id;
    SELECT COUNT(*) INTO read_topics FROM subscription_topics AS t WHERE t.subscription_id = owner_id;
    IF wanted = 'queue' AND read_topics = 0 THEN
        UPDATE subscriptions AS s SET s.mode = 'queue' WHERE s.id = owner_id;
        INSERT INTO queues (subscription_id) VALUES (owner_id) ON DUPLICATE KEY UPDATE jitter = jitter;
        INSERT INTO queue_turns (subscription_id) VALUES (owner_id) ON DUPLICATE KEY UPDATE last_id = last_id;
    ELSEIF wanted IS NULL OR wanted NOT IN ('stream', 'queue') THEN
        CALL refuse('PS006', CONCAT('there is no mode "', LEFT(COALESCE(wanted, 'NULL'), 60), '"'));
    ELSEIF wanted <> present THEN
        CALL refuse('PS042', CONCAT('subscription "', LEFT(name, 80), '" is in mode ', present));
    END IF;
END;

-- name: set_order
-- Sets the order of a queue. It is kept once it is key, and can be set while nothing is in hand, because of what was
-- dealt before nobody knows the keys. Raises PS006.
CREATE PROCEDURE set_order(owner_id BIGINT, wanted VARCHAR(10))
BEGIN
    DECLARE present VARCHAR(10);
    DECLARE held INT DEFAULT 0;
    -- No dealer is at work from here on.
    SELECT q.`order` INTO present FROM queues AS q WHERE q.subscription_id = owner_id FOR UPDATE;
    SELECT COUNT(*) INTO held
    FROM (
        (SELECT r.id FROM queue_ranges AS r WHERE r.subscription_id = owner_id LIMIT 1)
        UNION ALL
        (SELECT w.id FROM queue_waiting AS w WHERE w.subscription_id = owner_id LIMIT 1)
    ) AS h;
    IF wanted <> present AND (present = 'key' OR held > 0) THEN
        CALL refuse('PS006', CONCAT('the order of the queue cannot become ', wanted,
                                    ': it is kept while events are in hand, and once it is key'));
    END IF;
    UPDATE queues AS q SET q.`order` = wanted WHERE q.subscription_id = owner_id;
END;

-- name: queue_bounds
-- The settings of a queue and their bounds.
CREATE OR REPLACE SQL SECURITY INVOKER VIEW queue_bounds AS
SELECT 'visibility_seconds' AS setting, 0 AS lowest, 43200 AS highest, FALSE AS is_whole
UNION ALL SELECT 'max_deliveries', 1, 1000, TRUE
UNION ALL SELECT 'max_failures', 1, 1000, TRUE
UNION ALL SELECT 'max_in_flight', 1, 1000000, TRUE
UNION ALL SELECT 'first_backoff_seconds', 0, 86400, FALSE
UNION ALL SELECT 'longest_backoff_seconds', 0, 604800, FALSE
UNION ALL SELECT 'jitter', 0, 1, FALSE
UNION ALL SELECT 'retention_seconds', 0, 315360000, FALSE;

-- name: forget_queue
-- Deletes what queues (a JSON array of ids) have of the partitions in the session's table doomed_partitions. The rows
-- are found before they are locked: a DELETE by a condition would wait for claims of other topics.
CREATE PROCEDURE forget_queue(readers JSON)
BEGIN
    DECLARE reader, range_id, waiting BIGINT;
    DECLARE is_left BOOLEAN;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE queue_ids CURSOR FOR
        SELECT q.subscription_id
        FROM JSON_TABLE(readers, '$[*]' COLUMNS (id BIGINT PATH '$')) AS j JOIN queues AS q ON q.subscription_id = j.id
        ORDER BY q.subscription_id;
    DECLARE ranges CURSOR FOR
        SELECT r.id FROM queue_ranges AS r JOIN doomed_partitions AS p ON p.id = r.partition_id
        WHERE r.subscription_id = reader ORDER BY r.id;
    DECLARE copies CURSOR FOR
        SELECT w.id FROM queue_waiting AS w JOIN doomed_partitions AS p ON p.id = w.partition_id
        WHERE w.subscription_id = reader ORDER BY w.id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    OPEN queue_ids;
    each_queue: LOOP
        FETCH queue_ids INTO reader;
        IF done THEN
            LEAVE each_queue;
        END IF;
        SET reader = (SELECT q.subscription_id FROM queues AS q WHERE q.subscription_id = reader FOR UPDATE);
        -- A worker that had a claim locked may have put its events back: they show from his COMMIT on.
        REPEAT
            OPEN ranges;
            each_range: LOOP
                FETCH ranges INTO range_id;
                IF done THEN
                    LEAVE each_range;
                END IF;
                DELETE r FROM queue_ranges AS r WHERE r.subscription_id = reader AND r.id = range_id;
            END LOOP;
            CLOSE ranges;
            SET done = FALSE;
            SELECT EXISTS (
                SELECT r.id FROM queue_ranges AS r JOIN doomed_partitions AS p ON p.id = r.partition_id
                WHERE r.subscription_id = reader) INTO is_left;
        UNTIL NOT is_left END REPEAT;
        OPEN copies;
        each_copy: LOOP
            FETCH copies INTO waiting;
            IF done THEN
                LEAVE each_copy;
            END IF;
            DELETE w FROM queue_waiting AS w WHERE w.id = waiting;
        END LOOP;
        CLOSE copies;
        SET done = FALSE;
        DELETE k
        FROM doomed_partitions AS p
        STRAIGHT_JOIN queue_keys AS k FORCE INDEX (PRIMARY) ON k.subscription_id = reader AND k.partition_id = p.id;
    END LOOP;
    CLOSE queue_ids;
END;

-- name: cut_back
-- Deletes what a queue has dealt beyond the end of the log, when a history begins: other events get these sequences.
-- Copies stay: they are whole, and of the history before.
CREATE PROCEDURE cut_back(owner_id BIGINT, part_id BIGINT, watermark BIGINT)
BEGIN
    DELETE r FROM queue_ranges AS r
    WHERE r.subscription_id = owner_id AND r.partition_id = part_id AND r.waiting_id IS NULL
      AND r.first_sequence > watermark;
    UPDATE queue_ranges AS r
    SET r.last_sequence = watermark
    WHERE r.subscription_id = owner_id AND r.partition_id = part_id AND r.waiting_id IS NULL
      AND r.last_sequence > watermark;
    CALL cut_back_keys(owner_id, part_id, watermark);
END;

-- name: has_removed
-- Whether retention has removed events that a queue has dealt and not finished: its position is below them.
CREATE FUNCTION has_removed(owner_id BIGINT) RETURNS BOOLEAN
READS SQL DATA
BEGIN
    DECLARE found INT DEFAULT 0;
    SELECT COUNT(*) INTO found
    FROM leases AS l STRAIGHT_JOIN partitions AS p ON p.id = l.partition_id
    WHERE l.subscription_id = owner_id AND current_position(owner_id, l.partition_id) < p.low_sequence - 1;
    RETURN found > 0;
END;

-- name: drop_removed
-- Ends what a queue has dealt and retention has removed: a receiver would get a claim of nothing, again and again. That
-- it was skipped is recorded already.
CREATE PROCEDURE drop_removed(owner_id BIGINT, floor_id BIGINT, kept_order VARCHAR(10))
BEGIN
    DECLARE lows, ended LONGTEXT;
    DECLARE limit_before BIGINT UNSIGNED DEFAULT @@SESSION.group_concat_max_len;
    {{on error: SET SESSION group_concat_max_len = limit_before}}
    SET SESSION group_concat_max_len = 4294967295;
    SELECT CONCAT('[', GROUP_CONCAT(JSON_ARRAY(p.id, p.low_sequence)), ']') INTO lows
    FROM leases AS l STRAIGHT_JOIN partitions AS p ON p.id = l.partition_id
    WHERE l.subscription_id = owner_id;
    CALL drop_below(owner_id, floor_id, kept_order, lows, ended);
    SET SESSION group_concat_max_len = limit_before;
END;

-- name: drop_below
-- Ends what a queue has dealt of some partitions below a sequence of each (lows), at most 10,000 ranges of it. A claim
-- that somebody has stays until its time is over: he may have read it. What waits behind the key of such an event and
-- is below too ends with it: nobody else can be about to finish that key. ended has the pieces that have ended.
CREATE PROCEDURE drop_below(
    owner_id BIGINT, floor_id BIGINT, kept_order VARCHAR(10), lows LONGTEXT, OUT ended LONGTEXT
)
BEGIN
    DECLARE ids, gone_ids, pieces, cuts, behind LONGTEXT;
    DECLARE limit_before BIGINT UNSIGNED DEFAULT @@SESSION.group_concat_max_len;
    {{on error: SET SESSION group_concat_max_len = limit_before}}
    SET SESSION group_concat_max_len = 4294967295;
    SET ended = '[]';
    SELECT GROUP_CONCAT(o.id ORDER BY o.id) INTO ids
    FROM (
        SELECT r.id
        FROM queue_ranges AS r
        STRAIGHT_JOIN JSON_TABLE(COALESCE(lows, '[]'), '$[*]' COLUMNS (
            id BIGINT PATH '$[0]', low_sequence BIGINT PATH '$[1]')) AS p ON p.id = r.partition_id
        WHERE r.subscription_id = owner_id AND r.id >= floor_id AND r.token IS NULL AND r.waiting_id IS NULL
          AND r.first_sequence < p.low_sequence
        ORDER BY r.id
        LIMIT 10000
    ) AS o;
    IF ids IS NOT NULL THEN
        CALL lock_ranges(owner_id, NULL, ids);
    END IF;
    IF ids IS NOT NULL THEN
        -- Somebody may have claimed one before it was locked.
        SELECT GROUP_CONCAT(IF(r.last_sequence < p.low_sequence, r.id, NULL)),
               CONCAT('[', GROUP_CONCAT(IF(r.last_sequence < p.low_sequence, JSON_ARRAY(
                   0, 0, r.id, r.partition_id, r.first_sequence, r.last_sequence, r.deliveries, 0), NULL)), ']'),
               CONCAT('[', GROUP_CONCAT(IF(r.last_sequence < p.low_sequence, NULL, JSON_ARRAY(
                   r.id, p.low_sequence))), ']'),
               COALESCE(CONCAT('[', GROUP_CONCAT(JSON_ARRAY(
                   0, 0, r.id, r.partition_id, r.first_sequence, LEAST(r.last_sequence, p.low_sequence - 1),
                   r.deliveries, 0)), ']'), '[]')
        INTO gone_ids, pieces, cuts, ended
        FROM JSON_TABLE(CONCAT('[', ids, ']'), '$[*]' COLUMNS (id BIGINT PATH '$')) AS g
        STRAIGHT_JOIN queue_ranges AS r FORCE INDEX (PRIMARY) ON r.subscription_id = owner_id AND r.id = g.id
        STRAIGHT_JOIN JSON_TABLE(lows, '$[*]' COLUMNS (
            id BIGINT PATH '$[0]', low_sequence BIGINT PATH '$[1]')) AS p ON p.id = r.partition_id
        WHERE r.token IS NULL;
        UPDATE JSON_TABLE(COALESCE(cuts, '[]'), '$[*]' COLUMNS (
            id BIGINT PATH '$[0]', low_sequence BIGINT PATH '$[1]')) AS g
        STRAIGHT_JOIN queue_ranges AS r FORCE INDEX (PRIMARY) ON r.subscription_id = owner_id AND r.id = g.id
        SET r.first_sequence = g.low_sequence;
        IF gone_ids IS NOT NULL THEN
            CALL drop_ranges(owner_id, gone_ids);
        END IF;
    END IF;
    IF kept_order = 'key' AND pieces IS NOT NULL THEN
        SELECT CONCAT('[', GROUP_CONCAT(JSON_ARRAY(0, 0, 0, n.partition_id, n.sequence, n.sequence, 0, 0)), ']')
        INTO behind
        FROM (
            SELECT DISTINCT k.partition_id, k.sequence
            FROM JSON_TABLE(pieces, '$[*]' COLUMNS (
                partition_id BIGINT PATH '$[3]', sequence BIGINT PATH '$[4]')) AS g
            STRAIGHT_JOIN queue_keys AS f FORCE INDEX (PRIMARY)
                ON f.subscription_id = owner_id AND f.partition_id = g.partition_id AND f.sequence = g.sequence
                AND f.waiting_id = 0
            STRAIGHT_JOIN JSON_TABLE(lows, '$[*]' COLUMNS (
                id BIGINT PATH '$[0]', low_sequence BIGINT PATH '$[1]')) AS p ON p.id = g.partition_id
            STRAIGHT_JOIN queue_keys AS k FORCE INDEX (queue_keys_key)
                ON k.subscription_id = owner_id AND k.partition_id = g.partition_id AND k.key_digest = f.key_digest
            WHERE k.state <> 'first' AND k.waiting_id = 0 AND k.sequence < p.low_sequence
            LIMIT 1000000
        ) AS n;
        DELETE k
        FROM JSON_TABLE(COALESCE(behind, '[]'), '$[*]' COLUMNS (
            partition_id BIGINT PATH '$[3]', sequence BIGINT PATH '$[4]')) AS g
        STRAIGHT_JOIN queue_keys AS k FORCE INDEX (PRIMARY)
            ON k.subscription_id = owner_id AND k.partition_id = g.partition_id AND k.sequence = g.sequence
            AND k.waiting_id = 0;
        CALL finish_keys(owner_id, pieces);
        SET ended = JSON_MERGE_PRESERVE(ended, COALESCE(behind, '[]'));
    END IF;
    SET SESSION group_concat_max_len = limit_before;
END;

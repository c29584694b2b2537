-- name: sees_topic
-- Whether the login holds a right in a topic that it names by its id; false when the topic is gone.
CREATE FUNCTION sees_topic(of_topic BIGINT, verb VARCHAR(20)) RETURNS BOOLEAN
READS SQL DATA
BEGIN
    DECLARE found, asked_in BIGINT;
    SELECT MAX(t.id), MAX(IF(t.restricted OR @penstock_acting IS NOT NULL, t.namespace_id, NULL)) INTO found, asked_in
    FROM topics AS t WHERE t.id = of_topic;
    IF found IS NULL THEN
        RETURN FALSE;
    END IF;
    RETURN asked_in IS NULL OR has_right(asked_in, verb);
END;

-- name: require_window
-- Checks the window of a backfill request, and that its partition exists; raises PS005, PS006.
CREATE PROCEDURE require_window(
    source_id BIGINT, `partition` INT, from_sequence BIGINT, to_sequence BIGINT, from_time DATETIME(6),
    to_time DATETIME(6)
)
READS SQL DATA
BEGIN
    DECLARE highest BIGINT;
    SELECT MAX(high_watermark(p.id)) INTO highest
    FROM partitions AS p WHERE p.topic_id = source_id AND (`partition` IS NULL OR p.number = `partition`);
    IF highest IS NULL THEN
        CALL refuse('PS005', CONCAT('the topic has no partition ', COALESCE(`partition`, 'NULL')));
    ELSEIF from_sequence < 1 OR to_sequence < 1 OR from_sequence > to_sequence THEN
        CALL refuse('PS006', CONCAT('a window from sequence ', COALESCE(from_sequence, 'the first'), ' to ',
                                    COALESCE(to_sequence, 'the last'), ': sequences start at 1'));
    ELSEIF from_sequence > highest OR to_sequence > highest THEN
        CALL refuse('PS006', CONCAT('a window that reaches sequence ', GREATEST(
            COALESCE(from_sequence, 1), COALESCE(to_sequence, 1)), ', and the log ends at ', highest));
    ELSEIF from_time >= to_time THEN
        CALL refuse('PS006', CONCAT('a window from ', from_time, ' to ', to_time));
    END IF;
END;

-- name: require_request
-- Checks what is asked for in a backfill request; raises PS006.
CREATE PROCEDURE require_request(kind LONGTEXT, target LONGTEXT, priority INT, max_attempts INT)
NO SQL
BEGIN
    IF kind IS NULL OR kind NOT IN ('copy', 'rehydrate', 'relay') THEN
        CALL refuse('PS006', CONCAT('there is no backfill of the kind "', COALESCE(LEFT(kind, 80), ''), '"'));
    ELSEIF (target = '') <> (kind = 'rehydrate') OR CHAR_LENGTH(target) > 1000 THEN
        CALL refuse('PS006', CONCAT('a backfill of the kind ', kind, ' with the target "', LEFT(target, 60), '"'));
    ELSEIF NOT COALESCE(priority BETWEEN -1000 AND 1000 AND max_attempts BETWEEN 1 AND 100, FALSE) THEN
        CALL refuse('PS006', CONCAT('a backfill of priority ', COALESCE(priority, 'NULL'), ' and ',
                                    COALESCE(max_attempts, 'NULL'), ' attempts: -1000 to 1000, and 1 to 100'));
    END IF;
END;

-- name: plan_epochs
-- Records the ranges of a request that are sealed: log epochs in its window that lack what the request brings. A relay
-- takes the exact window.
CREATE PROCEDURE plan_epochs(asked BIGINT)
BEGIN
    INSERT INTO backfill_units (request, partition_id, first_sequence, last_sequence, log_epoch)
    SELECT r.id, e.partition_id,
           IF(r.kind = 'relay', GREATEST(e.first_sequence, COALESCE(r.from_sequence, 1)), e.first_sequence),
           IF(r.kind = 'relay', LEAST(e.last_sequence, COALESCE(r.to_sequence, e.last_sequence)), e.last_sequence),
           e.log_epoch
    FROM backfill_requests AS r
    JOIN partitions AS p ON p.topic_id = r.topic_id AND (r.`partition` IS NULL OR p.number = r.`partition`)
    JOIN log_epochs AS e ON e.partition_id = p.id
    WHERE r.id = asked
      AND e.last_sequence >= COALESCE(r.from_sequence, 1)
      AND e.first_sequence <= COALESCE(r.to_sequence, e.first_sequence)
      AND e.sealed_at >= COALESCE(r.from_time, e.sealed_at) AND (r.to_time IS NULL OR e.sealed_at < r.to_time)
      AND (r.kind <> 'copy' OR NOT EXISTS (
          SELECT * FROM epoch_copies AS c
          WHERE c.partition_id = e.partition_id AND c.log_epoch = e.log_epoch AND c.target = r.target
            AND c.state = 'verified'))
      AND (r.kind <> 'rehydrate' OR e.dropped_at IS NOT NULL);
END;

-- name: plan_tails
-- Records what is not sealed yet of the window of a relay, in pieces of 100,000 events.
CREATE PROCEDURE plan_tails(asked BIGINT)
BEGIN
    DECLARE part_id, start, highest BIGINT;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE parts CURSOR FOR
        SELECT p.id,
               GREATEST(COALESCE(r.from_sequence, 1), 1 + COALESCE((
                   SELECT MAX(e.last_sequence) FROM log_epochs AS e WHERE e.partition_id = p.id), 0)),
               LEAST(COALESCE(r.to_sequence, 1000000000000000000), high_watermark(p.id))
        FROM backfill_requests AS r
        JOIN partitions AS p ON p.topic_id = r.topic_id AND (r.`partition` IS NULL OR p.number = r.`partition`)
        WHERE r.id = asked AND r.kind = 'relay' AND r.from_time IS NULL AND r.to_time IS NULL
        ORDER BY p.id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    OPEN parts;
    part: LOOP
        FETCH parts INTO part_id, start, highest;
        IF done THEN
            LEAVE part;
        END IF;
        WHILE start <= highest DO
            INSERT INTO backfill_units (request, partition_id, first_sequence, last_sequence)
            VALUES (asked, part_id, start, LEAST(start + 99999, highest));
            SET start = start + 100000;
        END WHILE;
    END LOOP;
    CLOSE parts;
END;

-- name: forget_backfills
-- Removes requests that ended more than 30 days ago, a few at a time.
CREATE PROCEDURE forget_backfills()
BEGIN
    DECLARE old BIGINT;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE ended CURSOR FOR
        SELECT r.id FROM backfill_requests AS r
        WHERE r.state IN ('done', 'failed', 'cancelled') AND r.changed_at < UTC_TIMESTAMP(6) - INTERVAL 30 DAY
        ORDER BY r.id
        LIMIT 100;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    OPEN ended;
    each_request: LOOP
        FETCH ended INTO old;
        IF done THEN
            LEAVE each_request;
        END IF;
        DELETE u FROM backfill_units AS u WHERE u.request = old;
        DELETE r FROM backfill_requests AS r WHERE r.id = old;
    END LOOP;
    CLOSE ended;
END;

-- name: require_lease_seconds
-- Checks how long a runner of backfills may stay silent; raises PS006.
CREATE PROCEDURE require_lease_seconds(seconds DOUBLE)
NO SQL
BEGIN
    IF NOT COALESCE(seconds BETWEEN 1 AND 86400, FALSE) THEN
        CALL refuse('PS006', CONCAT('a backfill that is held for ', COALESCE(seconds, 'NULL'),
                                    ' s: use 1 to 86,400'));
    END IF;
END;

-- name: lock_due_backfill
-- Locks the next request that is due, of those that the login may operate; NULL when there is none. It looks first
-- without a lock, then locks one row by its key: a search that locks would keep others from what it only passes.
CREATE PROCEDURE lock_due_backfill(asked BIGINT, kinds JSON, OUT taken BIGINT)
BEGIN
    DECLARE candidate BIGINT;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE due CURSOR FOR
        SELECT r.id
        FROM backfill_requests AS r
        WHERE r.state IN ('waiting', 'running')
          -- The longest legal times: what is further ahead was stored before the clock was set back.
          AND (r.state = 'running'
               OR r.not_before NOT BETWEEN UTC_TIMESTAMP(6) AND UTC_TIMESTAMP(6) + INTERVAL 1 HOUR)
          AND (r.state = 'waiting'
               OR r.deadline NOT BETWEEN UTC_TIMESTAMP(6) AND UTC_TIMESTAMP(6) + INTERVAL 1 DAY)
          AND (asked IS NULL OR r.id = asked)
          AND (kinds IS NULL OR JSON_CONTAINS(kinds, JSON_QUOTE(r.kind))) AND sees_topic(r.topic_id, 'operate')
        ORDER BY r.priority DESC, r.id
        LIMIT 1000;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    SET taken = NULL;
    OPEN due;
    search: LOOP
        FETCH due INTO candidate;
        IF done THEN
            LEAVE search;
        END IF;
        SELECT r.id INTO taken
        FROM backfill_requests AS r
        WHERE r.id = candidate
          AND (r.state = 'waiting'
               AND r.not_before NOT BETWEEN UTC_TIMESTAMP(6) AND UTC_TIMESTAMP(6) + INTERVAL 1 HOUR
               OR r.state = 'running'
                  AND r.deadline NOT BETWEEN UTC_TIMESTAMP(6) AND UTC_TIMESTAMP(6) + INTERVAL 1 DAY)
        FOR UPDATE SKIP LOCKED;
        IF taken IS NOT NULL THEN
            LEAVE search;
        END IF;
        SET done = FALSE;
    END LOOP;
    CLOSE due;
END;

-- name: hold_backfill
-- The fence: locks a request whose attempt the caller names, to the end of the caller's transaction. Raises PS018, and
-- PS025 when the request was cancelled, has ended, or was claimed again, and when the login may not operate its topic.
CREATE PROCEDURE hold_backfill(asked BIGINT, attempt INT)
BEGIN
    DECLARE held, source_id BIGINT;
    DECLARE is_seen BOOLEAN;
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    CALL require_read_committed('a step of a backfill');
    SELECT r.id, r.topic_id INTO held, source_id
    FROM backfill_requests AS r
    WHERE r.id = asked AND r.state = 'running' AND r.attempts = attempt
    FOR UPDATE;
    SET is_seen = sees_topic(source_id, 'operate');
    IF held IS NULL OR NOT is_seen THEN
        CALL refuse('PS025', CONCAT('attempt ', COALESCE(attempt, 'NULL'), ' of the backfill request ',
                                    COALESCE(asked, 'NULL'), ' is over'));
    END IF;
END;

-- name: record_progress
-- Records that a range of a request is done; the caller has locked the request. The same range a second time changes
-- nothing. Raises PS006.
CREATE PROCEDURE record_progress(asked BIGINT, attempt INT, part_number INT, start BIGINT, lease_seconds DOUBLE)
BEGIN
    DECLARE part_id, last, changed BIGINT;
    SELECT MAX(u.partition_id), MAX(u.last_sequence) INTO part_id, last
    FROM backfill_requests AS r
    JOIN partitions AS p ON p.topic_id = r.topic_id AND p.number = part_number
    JOIN backfill_units AS u ON u.request = r.id AND u.partition_id = p.id AND u.first_sequence = start
    WHERE r.id = asked;
    IF part_id IS NULL THEN
        CALL refuse('PS006', CONCAT('the backfill request ', asked, ' has no range that begins at sequence ',
                                    COALESCE(start, 'NULL'), ' of partition ', COALESCE(part_number, 'NULL')));
    END IF;
    UPDATE backfill_units AS u
    SET u.done_at = UTC_TIMESTAMP(6), u.done_by = attempt
    WHERE u.request = asked AND u.partition_id = part_id AND u.first_sequence = start AND u.done_at IS NULL;
    SET changed = ROW_COUNT();
    UPDATE backfill_requests AS r
    SET r.done_units = r.done_units + changed, r.done_events = r.done_events + changed * (last - start + 1),
        r.deadline = UTC_TIMESTAMP(6) + INTERVAL CAST(lease_seconds * 1000000 AS SIGNED) MICROSECOND,
        r.changed_at = UTC_TIMESTAMP(6)
    WHERE r.id = asked;
END;

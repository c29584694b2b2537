-- name: count_log_epochs
-- Counts the bytes of log epochs of a topic with a limit where they are not known: it was sealed by an older version,
-- or erased from since. The oldest first, and no more of them once the call has counted max_events. Returns how many
-- are left; 0 also where there is no limit. It is a call of its own, before a run of clean begins: whoever records a
-- copy waits for the log epochs that it has counted. Raises PS002, PS006, PS018.
CREATE PROCEDURE count_log_epochs(topic LONGTEXT, max_events BIGINT)
BEGIN
    DECLARE source_id, part_id, first, last, bytes, locked_id BIGINT;
    DECLARE counted, not_counted BIGINT DEFAULT 0;
    DECLARE epoch INT;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE epochs CURSOR FOR
        SELECT e.partition_id, e.log_epoch, e.first_sequence, e.last_sequence
        FROM retention_policies AS r
        JOIN partitions AS p ON p.topic_id = r.topic_id
        JOIN log_epochs AS e ON e.partition_id = p.id
        WHERE r.topic_id = source_id AND r.max_bytes IS NOT NULL AND e.dropped_at IS NULL AND e.event_bytes IS NULL
        ORDER BY e.sealed_at, e.partition_id, e.log_epoch;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    {{on error: CALL undo_call()}}
    CALL begin_call('count_log_epochs()');
    CALL require_read_committed('count_log_epochs()');
    CALL require_topic_for(topic, 'operate', source_id);
    IF NOT COALESCE(max_events >= 1, FALSE) THEN
        CALL refuse('PS006', CONCAT('max_events cannot be ', COALESCE(max_events, 'NULL'), ': use 1 or more'));
    END IF;
    SET done = FALSE;
    OPEN epochs;
    epoch: LOOP
        FETCH epochs INTO part_id, epoch, first, last;
        IF done THEN
            LEAVE epoch;
        ELSEIF counted >= max_events THEN
            SET not_counted = not_counted + 1;
            ITERATE epoch;
        END IF;
        -- Locked before it is read: an erasure comes before this, or after it and forgets what was counted.
        SELECT COUNT(*) INTO locked_id
        FROM log_epochs AS e WHERE e.partition_id = part_id AND e.log_epoch = epoch FOR UPDATE;
        -- Read by itself: what an UPDATE reads it locks.
        SELECT COALESCE(SUM(e.size), 0) INTO bytes
        FROM logged_events AS e
        WHERE e.partition_id = part_id AND e.first_sequence <= last AND e.first_sequence >= (
              SELECT MAX(f.first_sequence) FROM chunks AS f
              WHERE f.partition_id = part_id AND f.first_sequence <= first)
          AND e.sequence BETWEEN first AND last;
        UPDATE log_epochs AS e SET e.event_bytes = bytes
        WHERE e.partition_id = part_id AND e.log_epoch = epoch AND e.dropped_at IS NULL;
        SET counted = counted + last - first + 1;
    END LOOP;
    CLOSE epochs;
    SELECT not_counted AS not_counted;
    CALL end_call();
END;

-- name: retention_limits
-- How full the topics are that have a limit (max_bytes): size is how many bytes are sealed and not dropped, above how
-- many of them are above the limit, and uncounted how many log epochs no run of clean has counted yet. partition,
-- log_epoch and hold say what keeps the oldest one that has to go; NULL: the next run of clean removes it.
CREATE PROCEDURE retention_limits()
BEGIN
    DECLARE topic_id BIGINT;
    DECLARE part_number, epoch INT;
    DECLARE words TEXT;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE full_topics CURSOR FOR SELECT l.id FROM limited AS l WHERE l.size > l.max_bytes ORDER BY l.id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    CALL refuse_serializable('retention_limits()');
    CREATE TEMPORARY TABLE IF NOT EXISTS limited (
        id BIGINT NOT NULL PRIMARY KEY, max_bytes BIGINT NOT NULL, size BIGINT NOT NULL, uncounted BIGINT NOT NULL,
        number INT, log_epoch INT, hold VARCHAR(1000)
    ) ENGINE = MEMORY;
    DELETE FROM limited;
    INSERT INTO limited (id, max_bytes, size, uncounted)
    SELECT t.id, r.max_bytes, COALESCE(SUM(e.event_bytes), 0), COUNT(e.log_epoch) - COUNT(e.event_bytes)
    FROM retention_policies AS r
    JOIN topics AS t ON t.id = r.topic_id
    LEFT JOIN partitions AS p ON p.topic_id = t.id
    LEFT JOIN log_epochs AS e ON e.partition_id = p.id AND e.dropped_at IS NULL
    WHERE r.max_bytes IS NOT NULL
      AND (NOT t.restricted AND @penstock_acting IS NULL OR has_right(t.namespace_id, 'any'))
    GROUP BY t.id, r.max_bytes;
    SET done = FALSE;
    OPEN full_topics;
    topic: LOOP
        FETCH full_topics INTO topic_id;
        IF done THEN
            LEAVE topic;
        END IF;
        CALL limit_hold(topic_id, part_number, epoch, words);
        UPDATE limited AS l SET l.number = part_number, l.log_epoch = epoch, l.hold = words WHERE l.id = topic_id;
    END LOOP;
    CLOSE full_topics;
    SELECT t.address AS topic, l.max_bytes, l.size, l.uncounted, GREATEST(l.size - l.max_bytes, 0) AS above,
           l.number AS `partition`, l.log_epoch, l.hold
    FROM limited AS l JOIN topics AS t ON t.id = l.id
    ORDER BY CAST(t.address AS BINARY);
END;

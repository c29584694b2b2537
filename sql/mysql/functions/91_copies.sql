-- name: copies_of
-- Every copy of a topic's log epochs that was ever recorded: verified, or missing since changed_at
-- for the reason in detail; location, layout and first_row: see record_copy. Raises PS002.
CREATE PROCEDURE copies_of(topic LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE source_id BIGINT;
    CALL refuse_serializable('copies_of()');
    CALL find_topic(topic, source_id);
    SELECT p.number AS `partition`, c.log_epoch, c.target, c.state, c.detail, c.changed_at, c.location, c.layout,
           c.first_row
    FROM partitions AS p JOIN epoch_copies AS c ON c.partition_id = p.id
    WHERE p.topic_id = source_id
    ORDER BY p.number, c.log_epoch, c.target;
END;

-- name: installation_id
-- The id by which archive targets name the database that they belong to, in their markers. It is part of the database
-- and of its backups.
CREATE PROCEDURE installation_id()
READS SQL DATA
BEGIN
    CALL refuse_serializable('installation_id()');
    SELECT i.id FROM installation AS i;
END;

-- name: target_in_use
-- Whether copies were ever recorded on a target, missing ones included. Then a target that looks empty is unavailable.
CREATE PROCEDURE target_in_use(target VARCHAR(255))
READS SQL DATA
BEGIN
    CALL refuse_serializable('target_in_use()');
    SELECT EXISTS (SELECT * FROM epoch_copies AS c WHERE c.target = target) AS is_used;
END;

-- name: copies_on
-- The copies on a target that are recorded as verified, of the topics that the login may see: what a target has to hold
-- to be the one that they were written to.
CREATE PROCEDURE copies_on(target VARCHAR(255))
READS SQL DATA
BEGIN
    CALL refuse_serializable('copies_on()');
    SELECT t.known_as, p.number AS `partition`, e.log_epoch, e.event_count, e.last_sequence
    FROM epoch_copies AS c
    JOIN log_epochs AS e ON e.partition_id = c.partition_id AND e.log_epoch = c.log_epoch
    JOIN partitions AS p ON p.id = c.partition_id
    JOIN topics AS t ON t.id = p.topic_id
    WHERE c.target = target AND c.state = 'verified' AND (NOT t.restricted OR has_right(t.namespace_id, 'any'))
    ORDER BY t.known_as, p.number, e.log_epoch;
END;

-- name: copies_between
-- The recorded copies of a range of a partition's log epochs on a target, each with what its seal says; an index finds
-- them. Raises PS002, PS005.
CREATE PROCEDURE copies_between(
    topic LONGTEXT, `partition` INT, target VARCHAR(255), first_log_epoch INT, last_log_epoch INT
)
READS SQL DATA
BEGIN
    DECLARE source_id BIGINT;
    CALL refuse_serializable('copies_between()');
    CALL find_partition(topic, `partition`, source_id);
    SELECT t.known_as, e.log_epoch, e.first_sequence, e.last_sequence, e.event_count, e.checksum, c.state, c.layout,
           c.location, c.first_row
    FROM log_epochs AS e
    JOIN epoch_copies AS c
        ON c.partition_id = e.partition_id AND c.log_epoch = e.log_epoch AND c.target = target
    JOIN partitions AS p ON p.id = e.partition_id
    JOIN topics AS t ON t.id = p.topic_id
    WHERE e.partition_id = source_id AND e.log_epoch BETWEEN first_log_epoch AND last_log_epoch
    ORDER BY e.log_epoch;
END;

-- name: log_epochs_sealed_on
-- The log epochs of a topic that were sealed on a day (UTC): the first of each partition and the last. A day lies
-- together in the archive. No row for a partition without any. Raises PS002.
CREATE PROCEDURE log_epochs_sealed_on(topic LONGTEXT, sealed_date DATE)
READS SQL DATA
BEGIN
    DECLARE source_id BIGINT;
    CALL refuse_serializable('log_epochs_sealed_on()');
    CALL find_topic(topic, source_id);
    SELECT p.number AS `partition`, MIN(e.log_epoch) AS first_log_epoch, MAX(e.log_epoch) AS last_log_epoch
    FROM partitions AS p JOIN log_epochs AS e ON e.partition_id = p.id
    WHERE p.topic_id = source_id AND e.sealed_at >= sealed_date AND e.sealed_at < sealed_date + INTERVAL 1 DAY
    GROUP BY p.number
    ORDER BY p.number;
END;

-- name: suspect_copy
-- Notes that a reader has found a recorded copy damaged. The copy counts until it is read back: by backfill, by the
-- audit, or by clean before it removes anything. Returns whether this is new. Raises PS002, PS005, PS018.
CREATE PROCEDURE suspect_copy(topic LONGTEXT, `partition` INT, log_epoch INT, target VARCHAR(255), reason LONGTEXT)
BEGIN
    DECLARE source_id, added BIGINT;
    {{on error: CALL undo_call()}}
    CALL begin_call('suspect_copy()');
    CALL find_partition(topic, `partition`, source_id);
    INSERT IGNORE INTO suspected_copies (partition_id, log_epoch, target, reason, suspected_at)
    SELECT c.partition_id, c.log_epoch, c.target, LEFT(COALESCE(reason, ''), 500), UTC_TIMESTAMP(6)
    FROM epoch_copies AS c
    WHERE c.partition_id = source_id AND c.log_epoch = log_epoch AND c.target = target AND c.state = 'verified';
    SET added = ROW_COUNT();
    SELECT added > 0 AS added;
    CALL end_call();
END;

-- name: suspected_copies_of
-- The copies of a topic that readers have found damaged, and that nobody has read back since. Raises PS002.
CREATE PROCEDURE suspected_copies_of(topic LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE source_id BIGINT;
    CALL refuse_serializable('suspected_copies_of()');
    CALL find_topic(topic, source_id);
    SELECT p.number AS `partition`, s.log_epoch, s.target, s.reason, s.suspected_at
    FROM partitions AS p JOIN suspected_copies AS s ON s.partition_id = p.id
    WHERE p.topic_id = source_id
    ORDER BY p.number, s.log_epoch, s.target;
END;

-- name: clear_suspicion
-- A suspected copy was read back, and is what was sealed. Raises PS002, PS005, PS018.
CREATE PROCEDURE clear_suspicion(topic LONGTEXT, `partition` INT, log_epoch INT, target VARCHAR(255))
BEGIN
    DECLARE source_id BIGINT;
    {{on error: CALL undo_call()}}
    CALL begin_call('clear_suspicion()');
    CALL find_partition_for(topic, `partition`, 'operate', source_id);
    DELETE s FROM suspected_copies AS s
    WHERE s.partition_id = source_id AND s.log_epoch = log_epoch AND s.target = target;
    CALL end_call();
END;

-- name: move_copy
-- Records that a verified copy lies in another file of the same table now: 1 when it still was where the caller
-- says. A run of clean that has read it at its old place does not count it any more. Raises PS002, PS005, PS006.
CREATE PROCEDURE move_copy(
    topic LONGTEXT, `partition` INT, log_epoch INT, target VARCHAR(255), old_location TEXT, location TEXT,
    first_row BIGINT
)
BEGIN
    DECLARE source_id, moved BIGINT;
    {{on error: CALL undo_call()}}
    CALL begin_call('move_copy()');
    CALL find_partition_for(topic, `partition`, 'operate', source_id);
    CALL require_place(2, first_row);
    CALL hold_off_clean(source_id);
    UPDATE epoch_copies AS c
    SET c.location = location, c.first_row = first_row, c.changed_at = UTC_TIMESTAMP(6)
    WHERE c.partition_id = source_id AND c.log_epoch = log_epoch AND c.target = target AND c.layout = 2
      AND c.state = 'verified' AND c.location = old_location;
    SET moved = ROW_COUNT();
    SELECT moved > 0 AS moved;
    CALL end_call();
END;

-- name: note_target_speed
-- Records how many seconds a copy took on an archive target; NULL: it failed. The first measurement counts as it is,
-- each later one for a fifth of the moving average. A failure doubles the average, to a minute at least and an hour at
-- most. It only decides in which order targets are written. Raises PS006, PS018.
CREATE PROCEDURE note_target_speed(target LONGTEXT, seconds DOUBLE)
BEGIN
    DECLARE named VARCHAR(4000);
    {{on error: CALL undo_call()}}
    CALL begin_call('note_target_speed()');
    CALL sort_targets(JSON_ARRAY(target), named);
    IF NOT COALESCE(seconds BETWEEN 0 AND 31536000, TRUE) THEN
        CALL refuse('PS006', CONCAT('a copy cannot take ', seconds, ' seconds: use seconds, or NULL for a failure'));
    END IF;
    -- It assigns in this order, and each assignment sees those before it.
    INSERT INTO target_speeds (target, seconds, failures, measured_at)
    VALUES (target, LEAST(COALESCE(seconds, 60), 3600), seconds IS NULL, UTC_TIMESTAMP(6))
    ON DUPLICATE KEY UPDATE
        seconds = IF(VALUES(failures) = 1, LEAST(GREATEST(2 * target_speeds.seconds, 60), 3600),
                     0.8 * target_speeds.seconds + 0.2 * VALUES(seconds)),
        failures = IF(VALUES(failures) = 1, target_speeds.failures + 1, 0),
        measured_at = VALUES(measured_at);
    CALL end_call();
END;

-- name: target_speeds
-- The moving average of the seconds that a copy takes on each archive target, and how many attempts in a row have
-- failed there.
CREATE PROCEDURE target_speeds()
READS SQL DATA
BEGIN
    CALL refuse_serializable('target_speeds()');
    SELECT s.target, s.seconds, s.failures, s.measured_at FROM target_speeds AS s ORDER BY CAST(s.target AS BINARY);
END;

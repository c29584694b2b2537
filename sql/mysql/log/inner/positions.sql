-- name: parse_lsn
-- The log epoch and the sequence that a position of the log (LSN) is made of, as text 'log_epoch.sequence'. Log epoch 0
-- stands for events that were not sealed yet. Raises PS006.
CREATE PROCEDURE parse_lsn(lsn LONGTEXT, OUT log_epoch INT, OUT sequence BIGINT)
NO SQL
BEGIN
    DECLARE epoch_part, sequence_part DECIMAL(20) DEFAULT -1;
    IF COALESCE(lsn REGEXP '^(0|[1-9][0-9]{0,9})[.][1-9][0-9]{0,18}$' AND lsn NOT REGEXP '[[:space:]]', FALSE) THEN
        SET epoch_part = CAST(SUBSTRING_INDEX(lsn, '.', 1) AS DECIMAL(20));
        SET sequence_part = CAST(SUBSTRING_INDEX(lsn, '.', -1) AS DECIMAL(20));
    END IF;
    IF epoch_part NOT BETWEEN 0 AND 2147483647 OR sequence_part NOT BETWEEN 1 AND 1000000000000000000 THEN
        CALL refuse('PS006',
                    CONCAT('"', LEFT(COALESCE(lsn, ''), 60), '" is no position of the log: log_epoch.sequence'));
    END IF;
    SET log_epoch = epoch_part, sequence = sequence_part;
END;

-- name: find_log_epoch_at
-- The sealed log epoch of a partition that holds a sequence; 0 when none does.
CREATE PROCEDURE find_log_epoch_at(of_partition BIGINT, of_sequence BIGINT, OUT log_epoch INT)
READS SQL DATA
BEGIN
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET log_epoch = 0;
    SELECT IF(e.last_sequence >= of_sequence, e.log_epoch, 0) INTO log_epoch
    FROM log_epochs AS e FORCE INDEX (log_epochs_first)
    WHERE e.partition_id = of_partition AND e.first_sequence <= of_sequence
    ORDER BY e.first_sequence DESC
    LIMIT 1;
END;

-- name: require_sequence
-- The same for the id of a partition. Raises PS006, PS019.
CREATE PROCEDURE require_sequence(of_partition BIGINT, lsn LONGTEXT, OUT given_sequence BIGINT)
READS SQL DATA
BEGIN
    DECLARE given_epoch, present_epoch INT;
    CALL parse_lsn(lsn, given_epoch, given_sequence);
    CALL find_log_epoch_at(of_partition, given_sequence, present_epoch);
    IF given_epoch > 0 AND given_epoch <> present_epoch THEN
        CALL refuse('PS019', CONCAT('sequence ', given_sequence, ' of partition ', of_partition & 65535,
                                    ' is not in log epoch ', given_epoch));
    END IF;
END;

-- name: position_since
-- The position before the first event of a partition that was sequenced at a time or later, if the database knows it.
-- Otherwise wanted is NULL: such an event may be among those that were removed. in_epoch is the log epoch in which to
-- look then; NULL when no seal says so.
CREATE PROCEDURE position_since(of_partition BIGINT, since DATETIME(6), OUT wanted BIGINT, OUT in_epoch INT)
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

-- name: position_before
-- The position before the first event that was sequenced at a time or later. If such an event may have been dropped,
-- this raises an error (PS016): no event is skipped silently.
CREATE PROCEDURE position_before(of_partition BIGINT, since DATETIME(6), OUT wanted BIGINT)
READS SQL DATA
BEGIN
    DECLARE in_epoch INT;
    DECLARE low BIGINT;
    CALL position_since(of_partition, since, wanted, in_epoch);
    IF wanted IS NULL THEN
        SELECT MAX(p.low_sequence) INTO low FROM partitions AS p WHERE p.id = of_partition;
        CALL refuse('PS016',
                    CONCAT('events sequenced since ', since, ' were dropped: the log begins at sequence ', low));
    END IF;
END;

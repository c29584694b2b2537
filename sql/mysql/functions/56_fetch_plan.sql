-- name: find_lsn
-- The log epoch and the sequence that a position of the log (LSN) is made of, as text 'log_epoch.sequence'. Log epoch 0
-- stands for events that were not sealed yet. Raises PS006.
CREATE PROCEDURE find_lsn(lsn LONGTEXT, OUT log_epoch INT, OUT sequence BIGINT)
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

-- name: lsn_of
-- The position of a sequence in the log, as text and as the log epoch that is a part of it: 0 while the sequence is not
-- sealed. Raises PS002, PS005, PS006.
CREATE PROCEDURE lsn_of(topic VARCHAR(4000), `partition` INT, sequence BIGINT)
READS SQL DATA
BEGIN
    DECLARE source, checked BIGINT;
    DECLARE log_epoch INT;
    CALL refuse_serializable('lsn_of()');
    CALL find_partition(topic, `partition`, source);
    CALL find_log_epoch_at(source, sequence, log_epoch);
    CALL find_lsn(CONCAT(log_epoch, '.', sequence), log_epoch, checked);
    SELECT CONCAT(log_epoch, '.', sequence) AS lsn, log_epoch;
END;

-- name: sequence_of
-- The sequence of a position of the log, checked: its log epoch has to be the one that holds the sequence. Log epoch 0
-- is not checked, because the sequence may have been sealed since. Raises PS002, PS005, PS006, PS019.
CREATE PROCEDURE sequence_of(topic VARCHAR(4000), `partition` INT, lsn LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE source, given_sequence BIGINT;
    CALL refuse_serializable('sequence_of()');
    CALL find_partition(topic, `partition`, source);
    CALL find_checked_sequence(source, lsn, given_sequence);
    SELECT given_sequence AS sequence;
END;

-- name: find_checked_sequence
-- The same for the id of a partition. Raises PS006, PS019.
CREATE PROCEDURE find_checked_sequence(of_partition BIGINT, lsn LONGTEXT, OUT given_sequence BIGINT)
READS SQL DATA
BEGIN
    DECLARE given_epoch, present_epoch INT;
    CALL find_lsn(lsn, given_epoch, given_sequence);
    CALL find_log_epoch_at(of_partition, given_sequence, present_epoch);
    IF given_epoch > 0 AND given_epoch <> present_epoch THEN
        CALL refuse('PS019', CONCAT('sequence ', given_sequence, ' of partition ', of_partition & 65535,
                                    ' is not in log epoch ', given_epoch));
    END IF;
END;

-- name: require_startable
-- Refuses a start that cannot be read: neither from the database nor from a verified copy. Raises PS016, PS021.
CREATE PROCEDURE require_startable(of_partition BIGINT, of_sequence BIGINT)
READS SQL DATA
BEGIN
    DECLARE low BIGINT;
    DECLARE log_epoch, copies INT;
    DECLARE is_below BOOLEAN;
    SELECT MAX(p.low_sequence) INTO low FROM partitions AS p WHERE p.id = of_partition;
    CALL find_log_epoch_at(of_partition, of_sequence, log_epoch);
    SELECT COUNT(*) INTO copies
    FROM epoch_copies AS c
    WHERE c.partition_id = of_partition AND c.log_epoch = log_epoch AND c.state = 'verified';
    CALL require_readable(of_partition, IF(copies > 0, GREATEST(low, of_sequence), of_sequence), 0, is_below);
END;

-- name: fetch_plan
-- Where to read the events of a partition from a sequence on: at most 1,000 segments, in order. A segment is a log
-- epoch or, with log_epoch NULL, what is not sealed yet. It is whole: it may begin before from_sequence, and end after
-- what is asked for. 'hot': fetch returns it, maybe because it was rehydrated. 'cold': it is in the archive only. A
-- segment has a row for each copy that was ever recorded of it, verified or missing, or one row without a target;
-- location, layout and first_row say where the copy is. For more than 1,000 segments ask again, from the last one's
-- end. No row: there are no such events yet. A segment that is hot may be dropped at any time; then fetch refuses it
-- (PS016), and a new plan says where it is.
-- One statement reads the segments: a seal between two of them would show a range twice. Raises PS002, PS005, PS006,
-- PS021.
CREATE PROCEDURE fetch_plan(topic VARCHAR(4000), `partition` INT, from_sequence BIGINT, max_events BIGINT)
READS SQL DATA
BEGIN
    DECLARE source, low, watermark, last_wanted BIGINT;
    DECLARE name VARCHAR(4000);
    DECLARE is_below BOOLEAN;
    CALL refuse_serializable('fetch_plan()');
    CALL find_partition(topic, `partition`, source);
    IF NOT COALESCE(max_events BETWEEN 1 AND 1000000000000000000
                    AND from_sequence BETWEEN 1 AND 1000000000000000000, FALSE) THEN
        CALL refuse('PS006', CONCAT('a plan of ', COALESCE(max_events, 'NULL'), ' events from sequence ',
                                    COALESCE(from_sequence, 'NULL')));
    END IF;
    SELECT p.low_sequence, t.known_as INTO low, name
    FROM partitions AS p JOIN topics AS t ON t.id = p.topic_id
    WHERE p.id = source;
    -- What is below is read from the archive.
    CALL require_readable(source, GREATEST(low, from_sequence), 0, is_below);
    CALL find_high_watermark(source, watermark);
    SET last_wanted = LEAST(from_sequence - 1 + max_events, watermark);
    SELECT IF(s.first_sequence < low AND NOT EXISTS (
               SELECT * FROM rehydrated_epochs AS r
               WHERE r.partition_id = source AND r.first_sequence = s.first_sequence),
              'cold', 'hot') AS place, s.log_epoch, s.first_sequence, s.last_sequence,
           s.last_sequence - s.first_sequence + 1 AS event_count, s.checksum, name AS known_as, c.target, c.state,
           c.location, c.layout, c.first_row
    FROM (
        SELECT u.log_epoch, u.first_sequence, u.last_sequence, u.checksum
        FROM (
            (
                SELECT e.log_epoch, e.first_sequence, e.last_sequence, e.checksum
                FROM log_epochs AS e FORCE INDEX (log_epochs_first)
                WHERE e.partition_id = source
                  AND e.first_sequence >= COALESCE((
                      SELECT MAX(b.first_sequence)
                      FROM log_epochs AS b
                      WHERE b.partition_id = source AND b.first_sequence <= from_sequence), 0)
                  AND e.first_sequence <= last_wanted AND e.last_sequence >= from_sequence
                ORDER BY e.first_sequence
                LIMIT 1000
            )
            UNION ALL
            SELECT NULL, t.first_sequence, watermark, NULL
            FROM (
                SELECT GREATEST(low, COALESCE((
                    SELECT n.last_sequence
                    FROM log_epochs AS n FORCE INDEX (log_epochs_first)
                    WHERE n.partition_id = source
                    ORDER BY n.first_sequence DESC
                    LIMIT 1), 0) + 1) AS first_sequence
            ) AS t
            WHERE t.first_sequence <= last_wanted
        ) AS u
        WHERE from_sequence <= last_wanted
        ORDER BY u.first_sequence
        LIMIT 1000
    ) AS s
    LEFT JOIN epoch_copies AS c ON c.partition_id = source AND c.log_epoch = s.log_epoch
    ORDER BY s.first_sequence, c.target;
END;

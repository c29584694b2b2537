-- name: fetch
-- At most max_events events of a partition from a sequence on, never above the high watermark. Of log epochs that were
-- rehydrated it returns those that follow each other, and ends before the low sequence. Raises PS002, PS005, PS006,
-- PS016, PS021.
CREATE PROCEDURE `fetch`(topic VARCHAR(4000), `partition` INT, from_sequence BIGINT, max_events INT)
READS SQL DATA
BEGIN
    DECLARE source, watermark BIGINT;
    DECLARE found INT;
    DECLARE is_below BOOLEAN;
    CALL refuse_serializable('fetch()');
    CALL require_partition(topic, `partition`, source);
    IF max_events IS NULL OR max_events NOT BETWEEN 1 AND 100000
        OR from_sequence IS NULL OR from_sequence NOT BETWEEN 1 AND 1000000000000000000 THEN
        CALL refuse('PS006', CONCAT('cannot fetch ', COALESCE(max_events, 'NULL'), ' events from sequence ',
                                    COALESCE(from_sequence, 'NULL')));
    END IF;
    CALL require_readable(source, from_sequence, 0, is_below);
    CALL find_high_watermark(source, watermark);
    IF is_below THEN
        CALL read_rehydrated(source, from_sequence, max_events, FALSE, found);
    ELSE
        CALL read_log(source, from_sequence, LEAST(max_events, GREATEST(watermark - from_sequence + 1, 0)), FALSE,
                      found);
        IF found < LEAST(max_events, watermark - from_sequence + 1) THEN
            CALL refuse('PS016', CONCAT('events from sequence ', from_sequence,
                                        ' on were dropped while this transaction was open'));
        END IF;
    END IF;
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
    CALL require_partition(topic, `partition`, source);
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

-- name: high_watermarks
-- The readable range of every partition of a topic. Keep a position with its partition_id, not with the topic's
-- address: the topic may get another address, and another topic may get this one.
CREATE PROCEDURE high_watermarks(topic VARCHAR(4000))
READS SQL DATA
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE present INT;
    CALL refuse_serializable('high_watermarks()');
    SELECT MAX(h.history) INTO present FROM histories AS h;
    CALL require_topic(topic, owner_id);
    SELECT p.number AS `partition`, p.low_sequence, COALESCE((
            SELECT c.first_sequence + c.event_count - 1
            FROM chunks AS c
            WHERE c.partition_id = p.id
            ORDER BY c.partition_id DESC, c.first_sequence DESC
            LIMIT 1), 0) AS high_watermark, present AS history, p.id AS partition_id
    FROM partitions AS p
    WHERE p.topic_id = owner_id
    ORDER BY p.number;
END;

-- name: low_sequences
-- Each partition of a topic and the first sequence that the database still holds. Raises PS002.
CREATE PROCEDURE low_sequences(topic LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE source_id BIGINT;
    CALL refuse_serializable('low_sequences()');
    CALL require_topic(topic, source_id);
    SELECT p.number AS `partition`, p.low_sequence FROM partitions AS p WHERE p.topic_id = source_id ORDER BY p.number;
END;

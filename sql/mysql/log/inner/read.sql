-- name: high_watermark
-- The last sequence of a partition; 0 when it has none. A query in RETURN, SET, IF or DEFAULT would lock what it
-- reads, so here and in all files that follow only SELECT .. INTO and cursors read.
CREATE FUNCTION high_watermark(of_partition BIGINT) RETURNS BIGINT
READS SQL DATA
BEGIN
    DECLARE watermark BIGINT DEFAULT 0;
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    SELECT c.first_sequence + c.event_count - 1 INTO watermark
    FROM chunks AS c
    WHERE c.partition_id = of_partition
    ORDER BY c.first_sequence DESC
    LIMIT 1;
    RETURN watermark;
END;

-- name: find_high_watermark
-- The last sequence of a partition; 0 when it has none.
CREATE PROCEDURE find_high_watermark(of_partition BIGINT, OUT watermark BIGINT)
READS SQL DATA
BEGIN
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET watermark = 0;
    SELECT c.first_sequence + c.event_count - 1 INTO watermark
    FROM chunks AS c
    WHERE c.partition_id = of_partition
    ORDER BY c.first_sequence DESC
    LIMIT 1;
END;

-- name: read_log
-- The events of a partition from a sequence on, in order, and how many there are. One statement makes one look-up in
-- the index of the log and then reads the events by their ids, because clean may merge chunks between two statements.
-- The columns are those of poll, with the partition, or those of fetch, with the history.
CREATE PROCEDURE read_log(of_partition BIGINT, from_sequence BIGINT, max_events INT, as_poll BOOLEAN, OUT found INT)
READS SQL DATA
BEGIN
    DECLARE present BIGINT;
    SELECT MAX(h.history) INTO present FROM histories AS h;
    -- Sequences and ids first, in a derived table (LIMIT keeps it one): what has to be sorted is narrow.
    IF as_poll THEN
        SELECT STRAIGHT_JOIN of_partition AS partition_id, i.sequence,
               LOWER(INSERT(INSERT(INSERT(INSERT(HEX(e.event_id), 21, 0, '-'), 17, 0, '-'), 13, 0, '-'), 9, 0, '-'))
                   AS event_id,
               e.`key`, e.type, e.content_type, e.headers, e.payload, e.created_at, i.sequenced_at
        FROM (
            SELECT n.sequence, n.id, n.sequenced_at
            FROM logged_ids AS n
            WHERE n.partition_id = of_partition
              AND n.first_sequence >= (
                  SELECT MAX(f.first_sequence) FROM chunks AS f
                  WHERE f.partition_id = of_partition AND f.first_sequence <= from_sequence)
              AND n.first_sequence < from_sequence + max_events
              AND n.sequence >= from_sequence AND n.sequence < from_sequence + max_events
            LIMIT 100000
        ) AS i
        JOIN events AS e FORCE INDEX (PRIMARY) ON e.id = i.id
        ORDER BY i.sequence;
    ELSE
        SELECT STRAIGHT_JOIN i.sequence,
               LOWER(INSERT(INSERT(INSERT(INSERT(HEX(e.event_id), 21, 0, '-'), 17, 0, '-'), 13, 0, '-'), 9, 0, '-'))
                   AS event_id,
               e.`key`, e.type, e.content_type, e.headers, e.payload, e.created_at, i.sequenced_at, present AS history
        FROM (
            SELECT n.sequence, n.id, n.sequenced_at
            FROM logged_ids AS n
            WHERE n.partition_id = of_partition
              AND n.first_sequence >= (
                  SELECT MAX(f.first_sequence) FROM chunks AS f
                  WHERE f.partition_id = of_partition AND f.first_sequence <= from_sequence)
              AND n.first_sequence < from_sequence + max_events
              AND n.sequence >= from_sequence AND n.sequence < from_sequence + max_events
            LIMIT 100000
        ) AS i
        JOIN events AS e FORCE INDEX (PRIMARY) ON e.id = i.id
        ORDER BY i.sequence;
    END IF;
    SET found = FOUND_ROWS();
END;

-- name: sequenced_at_of
-- When the event of a sequence got it; NULL when there is none.
CREATE FUNCTION sequenced_at_of(part_id BIGINT, wanted BIGINT) RETURNS DATETIME(6)
READS SQL DATA
RETURN (
    SELECT MAX(e.sequenced_at)
    FROM logged_events AS e
    WHERE e.partition_id = part_id AND e.sequence = wanted AND e.first_sequence = (
        SELECT MAX(f.first_sequence) FROM chunks AS f WHERE f.partition_id = part_id AND f.first_sequence <= wanted));

-- name: require_readable
-- Refuses a read below the low sequence (PS016): events that are gone are never skipped silently. A log epoch that was
-- rehydrated can be read: then is_below is true, and the caller reads by read_rehydrated. Refuses any read of a
-- partition that is stopped (PS021), for all readers or for this subscription.
CREATE PROCEDURE require_readable(
    of_partition BIGINT, from_sequence BIGINT, of_subscription BIGINT, OUT is_below BOOLEAN
)
READS SQL DATA
BEGIN
    DECLARE low BIGINT;
    DECLARE stopped VARCHAR(200);
    -- A stop that was reported while a history began belongs to the history before.
    SELECT MAX(CONCAT(LEFT(s.source, 50), ' has seen sequence ', s.sequence)) INTO stopped
    FROM stops AS s
    WHERE s.partition_id = of_partition AND s.subscription_id IN (0, of_subscription)
      AND s.history >= (SELECT MAX(h.history) FROM histories AS h);
    IF stopped IS NOT NULL THEN
        CALL refuse('PS021',
                    CONCAT('partition ', of_partition & 65535, ' is stopped: ', stopped,
                           ', but the log ends before it'));
    END IF;
    SELECT MAX(p.low_sequence) INTO low FROM partitions AS p WHERE p.id = of_partition;
    SET is_below = FALSE;
    IF from_sequence < low THEN
        SET is_below = is_rehydrated(of_partition, from_sequence);
        IF NOT is_below THEN
            CALL refuse('PS016', CONCAT('sequence ', from_sequence, ' is below the low sequence ', low,
                                        said_skip(of_subscription, of_partition, from_sequence)));
        END IF;
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

-- name: said_skip
-- Why retention did not wait until a subscription had read an event; empty where it does not know of it. Short, because
-- an error has 128 characters.
CREATE FUNCTION said_skip(of_subscription BIGINT, of_partition BIGINT, sequence BIGINT) RETURNS VARCHAR(200)
READS SQL DATA
BEGIN
    DECLARE words VARCHAR(200) DEFAULT '';
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    SELECT CONCAT(': retention did not wait, by ', IF(
               k.reason = 'max_bytes', CONCAT('max_bytes ', k.limit_bytes, ' (held ', k.size_bytes, ')'),
               'max_lag_seconds'))
    INTO words
    FROM skips AS k
    WHERE k.subscription_id = of_subscription AND k.partition_id = of_partition
      AND sequence BETWEEN k.first_sequence AND k.last_sequence
    ORDER BY k.log_epoch
    LIMIT 1;
    RETURN words;
END;

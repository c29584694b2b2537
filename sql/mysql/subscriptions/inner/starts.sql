-- name: start_position
-- Where a new subscription starts: 'earliest' (the first event that is left), 'latest' (after the last event), a
-- sequence to begin with, a position of the log (LSN) instead, a time, or what plain_start knows. With a time it
-- starts with the first event that was sequenced then or later, however early that event was published. A sequence
-- below the low sequence is accepted where a verified copy holds it: then the consumers read the archive first. Raises
-- PS006, PS012, PS013, PS016, PS019, PS021, PS029.
CREATE PROCEDURE start_position(of_partition BIGINT, given LONGTEXT, OUT wanted BIGINT)
READS SQL DATA
BEGIN
    DECLARE start LONGTEXT;
    DECLARE since DATETIME(6);
    CALL plain_start(of_partition, given, start);
    IF start = 'earliest' THEN
        SELECT MAX(p.low_sequence) - 1 INTO wanted FROM partitions AS p WHERE p.id = of_partition;
    ELSEIF start = 'latest' THEN
        SET wanted = high_watermark(of_partition);
    ELSEIF start REGEXP '^[1-9][0-9]{0,17}$|^[0-9]+[.][0-9]+$' THEN
        IF INSTR(start, '.') > 0 THEN
            CALL require_sequence(of_partition, start, wanted);
        ELSE
            SET wanted = CAST(start AS SIGNED);
        END IF;
        SET wanted = wanted - 1;
        CALL require_startable(of_partition, wanted + 1);
        IF wanted > high_watermark(of_partition) THEN
            CALL refuse('PS012', CONCAT('sequence ', start, ' is beyond the high watermark'));
        END IF;
    ELSE
        CALL start_time(start, since);
        CALL position_before(of_partition, since, wanted);
    END IF;
END;

-- name: start_time
-- A time at which to start: ISO 8601 with its zone, and not in the future. Raises PS006.
CREATE PROCEDURE start_time(start LONGTEXT, OUT since DATETIME(6))
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

-- name: position_in
-- Where a subscription stands in a partition. Raises PS013.
CREATE PROCEDURE position_in(subscription LONGTEXT, of_partition BIGINT, OUT stands BIGINT)
READS SQL DATA
BEGIN
    DECLARE owner_id BIGINT;
    CALL require_subscription(subscription, owner_id);
    SET stands = current_position(owner_id, of_partition);
    IF stands IS NULL THEN
        CALL refuse('PS013', CONCAT('subscription "', LEFT(subscription, 60), '" does not read the topic'));
    END IF;
END;

-- name: plain_start
-- A start in the words of start_position, for one that is written in another way: a JSON object of starts, by the ids
-- of partitions; 'bookmark:NAME'; or 'subscription:NAME', which is where that one stands. Raises PS006, PS013, PS021,
-- PS029.
CREATE PROCEDURE plain_start(of_partition BIGINT, start LONGTEXT, OUT plain LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE stands BIGINT;
    SET plain = start;
    IF start LIKE '{%' THEN
        SET plain = IF(JSON_VALID(start), JSON_UNQUOTE(JSON_EXTRACT(start, CONCAT('$."', of_partition, '"'))), NULL);
        IF plain IS NULL OR plain = 'null' THEN
            CALL refuse('PS006', CONCAT('no start is named for partition ', of_partition & 65535));
        END IF;
    END IF;
    IF plain LIKE 'bookmark:%' THEN
        CALL bookmarked(of_partition, SUBSTR(plain, 10), stands);
        SET plain = stands + 1;
    ELSEIF plain LIKE 'subscription:%' THEN
        CALL position_in(SUBSTR(plain, 14), of_partition, stands);
        SET plain = stands + 1;
    END IF;
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

-- name: is_json_object
-- Whether a text is a JSON object, and how deep it is. It is for texts that the engines' own functions cannot judge:
-- MySQL refuses numbers that do not fit a double, MariaDB refuses more than 31 levels. It replaces strings with "",
-- then the innermost objects and arrays with 0, until one 0 is left. Blanks around each 0 separate it from a digit
-- next to it. Empty objects and arrays do not count as a level, as in JSON_DEPTH.
CREATE PROCEDURE is_json_object(given LONGTEXT, OUT is_object BOOLEAN, OUT depth INT)
NO SQL
BEGIN
    DECLARE value VARCHAR(200) DEFAULT
        '[[:space:]]*(""|-?(0|[1-9][0-9]*)([.][0-9]+)?([eE][-+]?[0-9]+)?|true|false|null)[[:space:]]*';
    DECLARE rest, before_it LONGTEXT;
    SET rest = REGEXP_REPLACE(given, '"([^"\\\\[:cntrl:]]|\\\\(["\\\\/bfnrt]|u[0-9a-fA-F]{4}))*"', '""');
    SET rest = REGEXP_REPLACE(rest, '[{][[:space:]]*[}]|\\[[[:space:]]*\\]', ' 0 ');
    SET depth = 0, before_it = '', is_object = given REGEXP '^[[:space:]]*[{]';
    WHILE rest <> before_it AND depth <= 40 DO
        SET before_it = rest, depth = depth + 1, rest = REGEXP_REPLACE(rest, CONCAT(
            '[{]([[:space:]]*""[[:space:]]*:', value, '(,[[:space:]]*""[[:space:]]*:', value, ')*)[}]|',
            '\\[', value, '(,', value, ')*\\]'), ' 0 ');
    END WHILE;
    SET is_object = is_object AND TRIM(rest) = '0';
END;

-- name: headers_problem
-- What is wrong with the headers of an event, or NULL. Headers that a reader's JSON parser cannot parse must not get
-- into the log. The limits are an object of 64 KiB of text, 32 levels and numbers of 400 digits.
CREATE PROCEDURE headers_problem(headers LONGTEXT, OUT problem VARCHAR(200))
NO SQL
BEGIN
    DECLARE is_object BOOLEAN;
    DECLARE depth INT DEFAULT 0;
    SET problem = IF(LENGTH(headers) > 65536,
                     CONCAT('its headers have ', LENGTH(headers), ' bytes, the limit is 65536'), NULL);
    IF headers IS NOT NULL AND problem IS NULL THEN
        IF JSON_VALID(headers) THEN
            SET is_object = JSON_TYPE(headers) = 'OBJECT', depth = JSON_DEPTH(headers) - 1;
        ELSE
            CALL is_json_object(headers, is_object, depth);
            SET depth = depth - 1;
        END IF;
        SET problem = CASE
            WHEN NOT is_object AND depth <= 33 THEN 'its headers are not a JSON object'
            WHEN depth > 32 THEN 'its headers are nested deeper than 32 levels'
            WHEN LENGTH(headers) > 400 AND REGEXP_REPLACE(headers, '"([^"\\\\]|\\\\.)*"', '') REGEXP '[0-9]{401}'
                THEN 'its headers hold a number of more than 400 digits'
        END;
    END IF;
END;

-- name: event_problem
-- What is wrong with an event, as 'SQLSTATE problem', or NULL. publish_batch checks the same for all its events in
-- one statement, and calls this for the first event with a problem.
CREATE PROCEDURE event_problem(
    topic_partitions INT, max_payload_bytes INT, strategy VARCHAR(255), payload_bytes BIGINT, `key` LONGTEXT,
    type LONGTEXT, content_type LONGTEXT, headers LONGTEXT, `partition` INT, not_before DATETIME(6), dedup_key LONGTEXT,
    longest_delay DOUBLE, event_id LONGTEXT, OUT problem VARCHAR(300)
)
NO SQL
BEGIN
    CALL headers_problem(headers, problem);
    SET problem = CASE
        WHEN topic_partitions IS NULL THEN 'PS002 its topic does not exist'
        WHEN payload_bytes IS NULL THEN 'PS006 its payload is NULL'
        WHEN payload_bytes > max_payload_bytes
            THEN CONCAT('PS004 its payload has ', payload_bytes, ' bytes, the limit is ', max_payload_bytes)
        WHEN CHAR_LENGTH(`key`) > 255
            THEN CONCAT('PS006 its key has ', CHAR_LENGTH(`key`), ' characters, the limit is 255')
        WHEN CHAR_LENGTH(type) > 255 THEN 'PS006 its type has more than 255 characters'
        WHEN CHAR_LENGTH(content_type) > 255 THEN 'PS006 its content type has more than 255 characters'
        WHEN CHAR_LENGTH(dedup_key) > 255 THEN 'PS006 its dedup key has more than 255 characters'
        WHEN problem IS NOT NULL THEN CONCAT('PS006 ', problem)
        WHEN `partition` < 0 OR `partition` >= topic_partitions
            THEN CONCAT('PS005 partition ', `partition`, ' does not exist, the topic has ', topic_partitions)
        WHEN `partition` IS NULL AND strategy NOT IN ('crc32', 'round_robin')
            THEN CONCAT('PS005 the strategy of its topic is ', strategy, ', so it needs a partition')
        WHEN not_before > UTC_TIMESTAMP(6) + INTERVAL CAST(longest_delay AS SIGNED) SECOND
            THEN CONCAT('PS006 it is to wait for longer than ', CAST(longest_delay AS SIGNED), ' seconds')
        -- The length is checked too, because $ also matches before a newline at the end.
        WHEN event_id IS NOT NULL AND (CHAR_LENGTH(REPLACE(event_id, '-', '')) <> 32
                                       OR REPLACE(event_id, '-', '') NOT REGEXP '^[0-9a-fA-F]{32}$')
            THEN 'PS006 its event_id is not a UUID'
    END;
END;

-- name: take_turn
-- The next of the topic's partitions for events without a key. Each session takes turns by itself, from its own
-- starting point, because all sessions would wait for the row of a shared counter. The session may write anything
-- into the variable. So unless it holds a number that take_turn left there, the turns begin anew: MOD of a negative
-- number is negative, and would give a partition of the topic with the id before.
CREATE PROCEDURE take_turn(steps INT, OUT turn BIGINT)
NO SQL
BEGIN
    SET turn = IF(CAST(@penstock_turn AS CHAR) REGEXP '^[0-9]{1,15}$', @penstock_turn, FLOOR(RAND() * 65536));
    SET @penstock_turn = turn + steps;
END;

-- name: publish
-- Publishes one event in the caller's transaction: it exists if and only if that transaction commits. Returns the
-- event's id; for a duplicate (an event with the same dedup_key in the window), the id of the earlier event. It locks
-- neither topic nor partition. Raises PS002, PS004, PS005, PS006, PS018, PS022.
CREATE PROCEDURE publish(
    topic VARCHAR(4000), payload LONGBLOB, `key` LONGTEXT, type LONGTEXT, content_type LONGTEXT, headers LONGTEXT,
    event_id CHAR(36), `partition` INT, not_before DATETIME(6), dedup_key LONGTEXT, strict BOOLEAN
)
publish: BEGIN
    DECLARE topic_id, turn, block BIGINT;
    DECLARE topic_partitions, max_bytes INT;
    DECLARE topic_strategy VARCHAR(255);
    DECLARE problem VARCHAR(300);
    DECLARE longest_delay DOUBLE DEFAULT 0;
    DECLARE id, earlier BINARY(16);
    DECLARE id_before BIGINT DEFAULT LAST_INSERT_ID();
    DECLARE max_events, max_unsequenced_bytes, asked_in BIGINT;
    DECLARE duplicate BOOLEAN DEFAULT FALSE;
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    {{on error: CALL undo_call(); DO LAST_INSERT_ID(id_before)}}
    CALL begin_call('publish()');
    SELECT t.id, t.partitions, t.max_payload_bytes, t.strategy, t.max_unsequenced_events, t.max_unsequenced_bytes,
           IF(t.restricted, t.namespace_id, NULL)
    INTO topic_id, topic_partitions, max_bytes, topic_strategy, max_events, max_unsequenced_bytes, asked_in
    FROM topics AS t
    WHERE t.address_hash = UNHEX(SHA2(topic, 256));
    IF asked_in IS NOT NULL THEN
        -- A hidden topic is refused in the same words as a missing one.
        SET topic_partitions = IF(has_right(asked_in, 'publish'), topic_partitions, NULL);
    END IF;
    IF not_before IS NOT NULL THEN
        CALL find_setting('longest_delay_seconds', longest_delay);
    END IF;
    -- A plain event needs no closer look, which takes as long as its two rows.
    IF NOT COALESCE(
        LENGTH(payload) <= max_bytes AND COALESCE(CHAR_LENGTH(`key`), 0) <= 255
        AND COALESCE(CHAR_LENGTH(type), 0) <= 255 AND COALESCE(CHAR_LENGTH(content_type), 0) <= 255
        AND `partition` IS NULL AND topic_strategy IN ('crc32', 'round_robin') AND topic_partitions > 0
        AND not_before IS NULL AND dedup_key IS NULL
        AND (headers IS NULL OR LENGTH(headers) <= 400 AND LEFT(headers, 1) = '{' AND JSON_VALID(headers)
             AND (LENGTH(headers) <= 70 OR JSON_DEPTH(headers) <= 33)), FALSE) THEN
        CALL event_problem(
            topic_partitions, max_bytes, topic_strategy, LENGTH(payload), `key`, type, content_type, headers,
            `partition`, not_before, dedup_key, longest_delay, NULL, problem);
    END IF;
    IF problem IS NOT NULL THEN
        CALL refuse(LEFT(problem, 5), CONCAT('event for topic "', COALESCE(topic, 'NULL'), '": ', SUBSTR(problem, 7)));
    END IF;
    IF event_id IS NULL THEN
        CALL make_event_id(id);
    ELSE
        -- This does not use the pattern of event_problem, which takes 30 microseconds.
        BEGIN
            DECLARE CONTINUE HANDLER FOR 1406, 1411 SET id = NULL;
            SET id = UNHEX(REPLACE(event_id, '-', ''));
        END;
        IF NOT COALESCE(HEX(id) = UPPER(REPLACE(event_id, '-', '')), FALSE) THEN
            CALL refuse('PS006', CONCAT('event for topic "', LEFT(topic, 80), '": its event_id is not a UUID'));
        END IF;
    END IF;
    IF strict THEN
        CALL lock_bucket(MOD(CRC32(CONCAT(topic_id, COALESCE(`key`, ''))), 16384));
    END IF;
    IF dedup_key IS NOT NULL THEN
        CALL lock_bucket(16384 + MOD(CRC32(CONCAT(topic_id, ' ', dedup_key)), 16384));
        CALL claim_dedup_key(topic_id, dedup_key, id, earlier);
        SET duplicate = earlier IS NOT NULL;
    END IF;
    IF NOT duplicate THEN
        IF max_events IS NOT NULL OR max_unsequenced_bytes IS NOT NULL THEN
            CALL refuse_under_pressure(JSON_ARRAY(topic_id));
        END IF;
        IF `partition` IS NULL AND (`key` IS NULL OR topic_strategy = 'round_robin') THEN
            CALL take_turn(1, turn);
        END IF;
        WHILE block IS NULL DO
            -- If the sequencer has taken this number meanwhile (settle_block), the publisher takes another.
            BEGIN
                DECLARE CONTINUE HANDLER FOR 1062 SET block = NULL;
                SET block = 0;
                INSERT INTO pending (event_count) VALUES (1);
            END;
        END WHILE;
        SET block = LAST_INSERT_ID();
        INSERT INTO events (id, partition_id, event_id, `key`, type, content_type, headers, payload, created_at, due_at)
        VALUES (
            block * 256,
            topic_id * 65536 + COALESCE(`partition`, MOD(GREATEST(turn, 0), topic_partitions),
                                        MOD(CRC32(`key`), topic_partitions)),
            id, `key`, COALESCE(type, ''), COALESCE(content_type, 'application/octet-stream'), headers, payload,
            UTC_TIMESTAMP(6), IF(not_before > UTC_TIMESTAMP(6), not_before, NULL));
        DO LAST_INSERT_ID(id_before);
    END IF;
    SET id = COALESCE(earlier, id);
    SELECT LOWER(INSERT(INSERT(INSERT(INSERT(HEX(id), 21, 0, '-'), 17, 0, '-'), 13, 0, '-'), 9, 0, '-')) AS event_id,
           duplicate AS duplicate;
    CALL end_call();
END;

-- name: publish
-- Publishes one event in the caller's transaction: it exists if and only if that transaction commits. Returns the
-- event's id; for a duplicate (an event with the same dedup_key in the window), the id of the earlier event. It locks
-- neither topic nor partition. Raises PS002, PS004, PS005, PS006, PS018, PS022, PS052.
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
           IF(t.restricted OR @penstock_acting IS NOT NULL, t.namespace_id, NULL)
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
        CALL new_event_id(id);
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
        IF acts_within_quota() THEN
            CALL charge_account(1, LENGTH(payload));
        END IF;
    END IF;
    SET id = COALESCE(earlier, id);
    SELECT LOWER(INSERT(INSERT(INSERT(INSERT(HEX(id), 21, 0, '-'), 17, 0, '-'), 13, 0, '-'), 9, 0, '-')) AS event_id,
           duplicate AS duplicate;
    CALL end_call();
END;

-- name: publish_text
-- Publishes a text, as publish does. The payload is the text in UTF-8, whatever the character set of the session. It
-- is for clients without binary parameters. The default content type is text/plain; charset=utf-8. Raises what
-- publish raises.
CREATE PROCEDURE publish_text(
    topic VARCHAR(4000), payload LONGTEXT, `key` LONGTEXT, type LONGTEXT, content_type LONGTEXT, headers LONGTEXT,
    event_id CHAR(36), `partition` INT, not_before DATETIME(6), dedup_key LONGTEXT, strict BOOLEAN
)
BEGIN
    CALL refuse_serializable('publish_text()');
    IF content_type IS NULL THEN
        SET content_type = 'text/plain; charset=utf-8';
    END IF;
    -- The parameter itself: an expression of more than max_allowed_packet would be NULL.
    CALL publish(
        topic, payload, `key`, type, content_type, headers, event_id, `partition`, not_before, dedup_key, strict);
END;

-- name: publish_json
-- Publishes JSON, as publish does. The payload is the text as it was given, in UTF-8, with its blanks and the order
-- of its keys (MySQL's type JSON would change both). A text that JSON_VALID refuses is refused; on MariaDB also two
-- things that JSON_VALID wrongly accepts: \x, and a decimal point without digits. The default content type is
-- application/json. Raises what publish raises.
CREATE PROCEDURE publish_json(
    topic VARCHAR(4000), payload LONGTEXT, `key` LONGTEXT, type LONGTEXT, content_type LONGTEXT, headers LONGTEXT,
    event_id CHAR(36), `partition` INT, not_before DATETIME(6), dedup_key LONGTEXT, strict BOOLEAN
)
BEGIN
    CALL refuse_serializable('publish_json()');
    -- These are NULL for a text beyond the server's limits.
    IF payload IS NOT NULL AND NOT COALESCE(JSON_VALID(payload) /*M!
        AND REPLACE(payload, '\\\\', '') NOT REGEXP '\\\\[^"/bfnrtu]'
        AND REGEXP_REPLACE(payload, '"(?:[^"\\\\]++|\\\\.)*+"', '""') NOT REGEXP '[.]([^0-9]|$)' */, FALSE) THEN
        CALL refuse(
            'PS006', CONCAT('event for topic "', LEFT(COALESCE(topic, 'NULL'), 60), '": its payload is not JSON'));
    END IF;
    IF content_type IS NULL THEN
        SET content_type = 'application/json';
    END IF;
    CALL publish(
        topic, payload, `key`, type, content_type, headers, event_id, `partition`, not_before, dedup_key, strict);
END;

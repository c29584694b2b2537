-- By design: PostgreSQL publishes a batch in one statement; MySQL takes ids in blocks first, and inserts in steps.

-- name: require_events
-- Raises what is wrong with the first wrong event of a batch, if there is one; the error names its place
-- (from 0). One statement finds the few events that need a closer check. Topics whose ids are in hidden (a
-- JSON array) are treated as missing.
CREATE PROCEDURE require_events(events JSON, longest_delay DOUBLE, hidden JSON)
READS SQL DATA
BEGIN
    DECLARE at_place, topic_partitions, max_bytes, asked_partition INT;
    DECLARE topic_address, event_key, event_type, event_content_type, event_headers, event_dedup_key, given_id LONGTEXT;
    DECLARE topic_strategy VARCHAR(255);
    DECLARE payload_bytes BIGINT;
    DECLARE event_not_before DATETIME(6);
    DECLARE problem VARCHAR(300);
    DECLARE is_done BOOLEAN DEFAULT FALSE;
    DECLARE suspects CURSOR FOR
        SELECT i.place - 1, i.topic, t.partitions, t.max_payload_bytes, t.strategy, LENGTH(FROM_BASE64(i.payload)),
               i.`key`, i.type, i.content_type,
               IF(JSON_TYPE(i.headers) = 'STRING', JSON_UNQUOTE(i.headers), NULLIF(i.headers, 'null')),
               i.`partition`, i.not_before, i.dedup_key, i.event_id
        FROM JSON_TABLE(events, '$[*]' COLUMNS (
            place FOR ORDINALITY, topic LONGTEXT PATH '$.topic', payload LONGTEXT PATH '$.payload',
            `key` LONGTEXT PATH '$.key', type LONGTEXT PATH '$.type', content_type LONGTEXT PATH '$.content_type',
            headers JSON PATH '$.headers', `partition` INT PATH '$.partition',
            not_before DATETIME(6) PATH '$.not_before',
            dedup_key LONGTEXT PATH '$.dedup_key', event_id LONGTEXT PATH '$.event_id'
        )) AS i
        LEFT JOIN topics AS t
            ON t.address_hash = UNHEX(SHA2(i.topic, 256)) AND NOT JSON_CONTAINS(hidden, CAST(t.id AS CHAR))
        WHERE t.id IS NULL OR i.payload IS NULL OR FROM_BASE64(i.payload) IS NULL
           OR LENGTH(i.payload) > 1.3 * t.max_payload_bytes
           OR CHAR_LENGTH(i.`key`) > 255 OR CHAR_LENGTH(i.type) > 255 OR CHAR_LENGTH(i.content_type) > 255
           OR CHAR_LENGTH(i.dedup_key) > 255 OR i.`partition` < 0 OR i.`partition` >= t.partitions
           OR i.`partition` IS NULL AND t.strategy NOT IN ('crc32', 'round_robin')
           OR i.not_before > UTC_TIMESTAMP(6) + INTERVAL CAST(longest_delay AS SIGNED) SECOND
           OR i.event_id IS NOT NULL AND (CHAR_LENGTH(REPLACE(i.event_id, '-', '')) <> 32
                                          OR REPLACE(i.event_id, '-', '') NOT REGEXP '^[0-9a-fA-F]{32}$')
           OR LENGTH(i.headers) > 70 OR JSON_TYPE(i.headers) NOT IN ('OBJECT', 'NULL', 'STRING')
           OR JSON_TYPE(i.headers) = 'STRING' AND NOT JSON_VALID(JSON_UNQUOTE(i.headers))
           OR JSON_TYPE(i.headers) = 'STRING' AND JSON_UNQUOTE(i.headers) NOT REGEXP '^[[:space:]]*[{]'
        ORDER BY i.place;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET is_done = TRUE;
    OPEN suspects;
    suspect: LOOP
        FETCH suspects INTO at_place, topic_address, topic_partitions, max_bytes, topic_strategy, payload_bytes,
            event_key, event_type, event_content_type, event_headers, asked_partition, event_not_before,
            event_dedup_key, given_id;
        IF is_done THEN
            LEAVE suspect;
        END IF;
        CALL event_problem(
            topic_partitions, max_bytes, topic_strategy, payload_bytes, event_key, event_type, event_content_type,
            event_headers, asked_partition, event_not_before, event_dedup_key, longest_delay, given_id, problem);
        IF problem IS NOT NULL THEN
            CALL refuse(LEFT(problem, 5), CONCAT('event ', at_place, ' for topic "',
                                                 COALESCE(LEFT(topic_address, 60), 'NULL'), '": ', SUBSTR(problem, 7)));
        END IF;
    END LOOP;
    CLOSE suspects;
END;

-- name: look_at_topics
-- Of the topics of a batch, the ids of those that have a limit of back pressure (NULL for none), and of those that
-- the login may not publish to, as JSON arrays. Rights are checked once for each topic, and only where it is
-- restricted. It goes topic by topic: MariaDB cuts an aggregated array at a limit that the session sets, and topics
-- after the cut would not be checked.
CREATE PROCEDURE look_at_topics(events JSON, OUT limited JSON, OUT hidden JSON)
READS SQL DATA
BEGIN
    DECLARE topic_id, asked_in BIGINT;
    DECLARE is_limited, is_held, is_done BOOLEAN DEFAULT FALSE;
    DECLARE limited_ids, hidden_ids LONGTEXT DEFAULT '';
    DECLARE asked CURSOR FOR
        SELECT t.id, t.max_unsequenced_events IS NOT NULL OR t.max_unsequenced_bytes IS NOT NULL,
               IF(t.restricted OR @penstock_acting IS NOT NULL, t.namespace_id, NULL)
        FROM topics AS t
        WHERE (t.max_unsequenced_events IS NOT NULL OR t.max_unsequenced_bytes IS NOT NULL OR t.restricted
               OR @penstock_acting IS NOT NULL)
          AND t.address_hash IN (
              SELECT UNHEX(SHA2(i.topic, 256))
              FROM JSON_TABLE(events, '$[*]' COLUMNS (topic LONGTEXT PATH '$.topic')) AS i);
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET is_done = TRUE;
    OPEN asked;
    each_topic: LOOP
        SET is_done = FALSE;
        FETCH asked INTO topic_id, is_limited, asked_in;
        IF is_done THEN
            LEAVE each_topic;
        END IF;
        IF is_limited THEN
            SET limited_ids = CONCAT(limited_ids, ',', topic_id);
        END IF;
        IF asked_in IS NOT NULL THEN
            SET is_held = has_right(asked_in, 'publish');
            IF NOT is_held THEN
                SET hidden_ids = CONCAT(hidden_ids, ',', topic_id);
            END IF;
        END IF;
    END LOOP;
    CLOSE asked;
    SET limited = IF(limited_ids = '', NULL, CONCAT('[', SUBSTR(limited_ids, 2), ']')),
        hidden = CONCAT('[', SUBSTR(hidden_ids, 2), ']');
END;

-- name: take_blocks
-- Blocks of ids for the given number of events, packed as eight bytes each.
CREATE PROCEDURE take_blocks(event_count INT, OUT blocks LONGBLOB)
BEGIN
    DECLARE rest INT DEFAULT event_count;
    DECLARE is_taken BOOLEAN DEFAULT FALSE;
    -- The sequencer has taken the number meanwhile (settle_block).
    DECLARE CONTINUE HANDLER FOR 1062 SET is_taken = TRUE;
    SET blocks = '';
    WHILE rest > 0 DO
        SET is_taken = FALSE;
        INSERT INTO pending (event_count) VALUES (LEAST(rest, 256));
        IF NOT is_taken THEN
            SET blocks = CONCAT(blocks, UNHEX(LPAD(HEX(LAST_INSERT_ID()), 16, '0'))), rest = rest - 256;
        END IF;
    END WHILE;
END;

-- name: find_partitions
-- The partition of each event of a batch, in order, eight bytes each. They are selected before the events are
-- written: at REPEATABLE READ, the engines' default, INSERT .. SELECT locks what it reads, and publishers must not
-- lock a topic. Raises PS002 when a topic was deleted meanwhile.
CREATE PROCEDURE find_partitions(events JSON, turn BIGINT, OUT found LONGBLOB)
READS SQL DATA
BEGIN
    DECLARE limit_before BIGINT UNSIGNED DEFAULT @@SESSION.group_concat_max_len;
    {{on error: SET SESSION group_concat_max_len = limit_before}}
    SET SESSION group_concat_max_len = GREATEST(1024, 8 * JSON_LENGTH(events));
    SELECT GROUP_CONCAT(UNHEX(LPAD(HEX(t.id * 65536 + COALESCE(
               i.`partition`,
               IF(t.strategy = 'round_robin', NULL, MOD(CRC32(i.`key`), t.partitions)),
               MOD(GREATEST(turn, 0) + i.place, t.partitions))), 16, '0')) ORDER BY i.place SEPARATOR '')
    INTO found
    FROM JSON_TABLE(events, '$[*]' COLUMNS (
        place FOR ORDINALITY, topic LONGTEXT PATH '$.topic', `key` VARCHAR(255) PATH '$.key',
        `partition` INT PATH '$.partition'
    )) AS i
    JOIN topics AS t ON t.address_hash = UNHEX(SHA2(i.topic, 256));
    SET SESSION group_concat_max_len = limit_before;
    IF COALESCE(LENGTH(found), 0) <> 8 * JSON_LENGTH(events) THEN
        CALL refuse('PS002', 'a topic of the batch was deleted or renamed meanwhile');
    END IF;
END;

-- name: insert_batch
-- Publishes the events of a batch, as publish_batch does, for a caller that has begun a call. duplicates is an object:
-- the id of the earlier event by the place of the duplicate.
CREATE PROCEDURE insert_batch(events JSON, strict BOOLEAN, OUT published BIGINT, OUT duplicates JSON)
BEGIN
    DECLARE limited, hidden JSON;
    DECLARE all_events INT DEFAULT JSON_LENGTH(events);
    DECLARE turn, bytes BIGINT;
    DECLARE longest_delay DOUBLE;
    DECLARE blocks, partition_ids LONGBLOB;
    SET duplicates = JSON_OBJECT();
    CALL find_setting('longest_delay_seconds', longest_delay);
    CALL look_at_topics(events, limited, hidden);
    CALL require_events(events, longest_delay, hidden);
    IF strict OR JSON_CONTAINS_PATH(events, 'one', '$[*].dedup_key') THEN
        CALL lock_events(events, strict);
        CALL claim_dedup_keys(events, duplicates);
    END IF;
    CALL refuse_under_pressure(limited);
    CALL take_blocks(all_events, blocks);
    CALL take_turn(all_events + 1, turn);
    CALL find_partitions(events, turn, partition_ids);
    INSERT INTO events (id, partition_id, event_id, `key`, type, content_type, headers, payload, created_at, due_at)
    SELECT CAST(CONV(HEX(SUBSTR(blocks, 8 * ((i.place - 1) DIV 256) + 1, 8)), 16, 10) AS SIGNED) * 256
               + MOD(i.place - 1, 256),
           CAST(CONV(HEX(SUBSTR(partition_ids, 8 * i.place - 7, 8)), 16, 10) AS SIGNED),
           UNHEX(COALESCE(REPLACE(i.event_id, '-', ''), CONCAT(
               LPAD(HEX(FLOOR(1000 * UNIX_TIMESTAMP(SYSDATE(6)))), 12, '0'), '7', LEFT(HEX(RANDOM_BYTES(2)), 3),
               SUBSTR('89AB', 1 + FLOOR(4 * RAND()), 1), LEFT(HEX(RANDOM_BYTES(8)), 15)))),
           i.`key`, COALESCE(i.type, ''), COALESCE(i.content_type, 'application/octet-stream'),
           IF(JSON_TYPE(i.headers) = 'STRING', JSON_UNQUOTE(i.headers), NULLIF(i.headers, 'null')),
           FROM_BASE64(i.payload), UTC_TIMESTAMP(6), IF(i.not_before > UTC_TIMESTAMP(6), i.not_before, NULL)
    FROM JSON_TABLE(events, '$[*]' COLUMNS (
        place FOR ORDINALITY, payload LONGTEXT PATH '$.payload', `key` VARCHAR(255) PATH '$.key',
        type VARCHAR(255) PATH '$.type', content_type VARCHAR(255) PATH '$.content_type', headers JSON PATH '$.headers',
        event_id CHAR(36) PATH '$.event_id', not_before DATETIME(6) PATH '$.not_before'
    )) AS i
    WHERE JSON_LENGTH(duplicates) = 0 OR JSON_EXTRACT(duplicates, CONCAT('$."', i.place - 1, '"')) IS NULL;
    SET published = ROW_COUNT();
    IF NOT COALESCE(published + JSON_LENGTH(duplicates) = all_events, FALSE) THEN
        CALL refuse('PS019', CONCAT('of the batch of ', COALESCE(all_events, 'NULL'), ' events, not all were written'));
    END IF;
    IF acts_within_quota() THEN
        SELECT SUM(LENGTH(FROM_BASE64(i.payload))) INTO bytes
        FROM JSON_TABLE(events, '$[*]' COLUMNS (payload LONGTEXT PATH '$.payload')) AS i;
        CALL charge_account(published, bytes);
    END IF;
END;

-- name: answer_batch
-- The result of publish_batch.
CREATE PROCEDURE answer_batch(published BIGINT, duplicates JSON)
NO SQL
BEGIN
    DECLARE places, ids JSON DEFAULT JSON_ARRAY();
    DECLARE done INT DEFAULT 0;
    DECLARE place INT;
    DECLARE id CHAR(32);
    WHILE done < JSON_LENGTH(duplicates) DO
        SELECT MIN(CAST(k.place AS SIGNED)) INTO place
        FROM JSON_TABLE(JSON_KEYS(duplicates), '$[*]' COLUMNS (place INT PATH '$')) AS k
        WHERE done = 0 OR k.place > place;
        SET id = JSON_UNQUOTE(JSON_EXTRACT(duplicates, CONCAT('$."', place, '"')));
        SET places = JSON_ARRAY_APPEND(places, '$', place), ids = JSON_ARRAY_APPEND(ids, '$', LOWER(
            INSERT(INSERT(INSERT(INSERT(id, 21, 0, '-'), 17, 0, '-'), 13, 0, '-'), 9, 0, '-')));
        SET done = done + 1;
    END WHILE;
    SELECT published AS published, places AS duplicates, ids AS original_ids;
END;

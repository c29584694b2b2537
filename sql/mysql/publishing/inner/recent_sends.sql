-- name: require_sends
-- Checks the arguments of claim_sends. Raises PS006.
CREATE PROCEDURE require_sends(sends JSON, seconds DOUBLE)
READS SQL DATA
BEGIN
    DECLARE is_good BOOLEAN;
    IF COALESCE(JSON_TYPE(sends), '') <> 'ARRAY' OR JSON_LENGTH(sends) NOT BETWEEN 1 AND 1000 THEN
        CALL refuse('PS006', 'the sends are not an array of 1 to 1,000');
    ELSEIF seconds IS NULL OR seconds NOT BETWEEN 1 AND 86400 THEN
        CALL refuse('PS006', CONCAT('a claim of ', COALESCE(seconds, 'NULL'), ' seconds'));
    END IF;
    SELECT COUNT(*) = JSON_LENGTH(sends) INTO is_good
    FROM JSON_TABLE(sends, '$[*]' COLUMNS (
        topic LONGTEXT PATH '$.topic', send_key LONGTEXT PATH '$.send_key', event_id LONGTEXT PATH '$.event_id'
    )) AS i
    WHERE i.topic IS NOT NULL AND i.send_key REGEXP '^[!-~]{1,64}$'
      AND REPLACE(i.event_id, '-', '') REGEXP '^[0-9a-fA-F]{32}$';
    IF NOT is_good THEN
        CALL refuse('PS006', 'a send has no topic, no event_id or no send_key of 1 to 64 letters of ASCII');
    END IF;
END;

-- name: require_topics_of_sends
-- Checks that the login may publish to every topic of the sends. Raises PS002.
CREATE PROCEDURE require_topics_of_sends(sends JSON)
READS SQL DATA
BEGIN
    DECLARE topic_address LONGTEXT;
    DECLARE topic_id BIGINT;
    DECLARE is_done BOOLEAN DEFAULT FALSE;
    DECLARE asked CURSOR FOR
        SELECT DISTINCT i.topic FROM JSON_TABLE(sends, '$[*]' COLUMNS (topic LONGTEXT PATH '$.topic')) AS i;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET is_done = TRUE;
    OPEN asked;
    each_topic: LOOP
        FETCH asked INTO topic_address;
        IF is_done THEN
            LEAVE each_topic;
        END IF;
        CALL require_topic_for(topic_address, 'publish', topic_id);
        SET is_done = FALSE;
    END LOOP;
    CLOSE asked;
END;

-- name: lock_sends
-- Locks the buckets of the texts in sorted order, as lock_events does for dedup keys, and for its reason. It waits for
-- a second at most: others wait in the same batch.
CREATE PROCEDURE lock_sends(sends JSON)
BEGIN
    DECLARE wait_before BIGINT DEFAULT @@SESSION.innodb_lock_wait_timeout;
    DECLARE bucket INT;
    DECLARE is_done BOOLEAN DEFAULT FALSE;
    DECLARE asked CURSOR FOR
        SELECT DISTINCT 16384 + MOD(CRC32(CONCAT(t.id, ' ', i.send_key)), 16384)
        FROM JSON_TABLE(sends, '$[*]' COLUMNS (
            topic LONGTEXT PATH '$.topic', send_key LONGTEXT PATH '$.send_key')) AS i
        JOIN topics AS t ON t.address_hash = UNHEX(SHA2(i.topic, 256))
        ORDER BY 1;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET is_done = TRUE;
    {{on error: SET SESSION innodb_lock_wait_timeout = wait_before}}
    SET SESSION innodb_lock_wait_timeout = 1;
    OPEN asked;
    each_bucket: LOOP
        FETCH asked INTO bucket;
        IF is_done THEN
            LEAVE each_bucket;
        END IF;
        CALL lock_bucket(bucket);
        SET is_done = FALSE;
    END LOOP;
    CLOSE asked;
    SET SESSION innodb_lock_wait_timeout = wait_before;
END;

-- name: take_sends
-- Claims the texts of the sends, whose buckets are locked. originals is an array: for each place the id of the event
-- that has the text, or NULL.
CREATE PROCEDURE take_sends(sends JSON, seconds DOUBLE, OUT originals LONGTEXT)
BEGIN
    DECLARE topic_id BIGINT;
    DECLARE one_key VARCHAR(64);
    DECLARE given_id CHAR(36);
    DECLARE earlier BINARY(16);
    DECLARE is_done BOOLEAN DEFAULT FALSE;
    DECLARE given CURSOR FOR
        SELECT t.id, i.send_key, i.event_id
        FROM JSON_TABLE(sends, '$[*]' COLUMNS (
            place FOR ORDINALITY, topic LONGTEXT PATH '$.topic', send_key VARCHAR(64) PATH '$.send_key',
            event_id CHAR(36) PATH '$.event_id'
        )) AS i
        JOIN topics AS t ON t.address_hash = UNHEX(SHA2(i.topic, 256))
        ORDER BY i.place;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET is_done = TRUE;
    SET originals = '';
    OPEN given;
    each_send: LOOP
        FETCH given INTO topic_id, one_key, given_id;
        IF is_done THEN
            LEAVE each_send;
        END IF;
        CALL take_send(topic_id, one_key, UNHEX(REPLACE(given_id, '-', '')), seconds, earlier);
        SET originals = CONCAT(originals, ',', IF(earlier IS NULL, 'null', CONCAT('"', HEX(earlier), '"'))),
            is_done = FALSE;
    END LOOP;
    CLOSE given;
    SET originals = CONCAT('[', SUBSTR(originals, 2), ']');
END;

-- name: take_send
-- Claims a text for an event, in the place of a claim that is over; earlier is the event that has it still. The clock
-- is read after the wait for the row.
CREATE PROCEDURE take_send(
    of_topic BIGINT, given_key VARCHAR(64), given_event BINARY(16), seconds DOUBLE, OUT earlier BINARY(16)
)
BEGIN
    DECLARE known_end, new_end DATETIME(6);
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    SET earlier = NULL, new_end = UTC_TIMESTAMP(6) + INTERVAL CAST(seconds * 1000000 AS SIGNED) MICROSECOND;
    INSERT IGNORE INTO recent_sends (topic_id, send_key, event_id, ends_at)
    VALUES (of_topic, CAST(given_key AS BINARY), given_event, new_end);
    IF ROW_COUNT() = 0 THEN
        SELECT r.event_id, r.ends_at INTO earlier, known_end
        FROM recent_sends AS r
        WHERE r.topic_id = of_topic AND r.send_key = CAST(given_key AS BINARY)
        FOR UPDATE;
        IF known_end <= UTC_TIMESTAMP(6) THEN
            SET earlier = NULL;
            UPDATE recent_sends AS r
            SET r.event_id = given_event, r.ends_at = new_end
            WHERE r.topic_id = of_topic AND r.send_key = CAST(given_key AS BINARY);
        END IF;
    END IF;
END;

-- name: delete_sends
-- Deletes at most so many claims that end from one time to another; newest is the last end among them.
CREATE PROCEDURE delete_sends(
    from_end DATETIME(6), to_end DATETIME(6), max_rows INT, OUT removed BIGINT, OUT newest DATETIME(6)
)
BEGIN
    SELECT MAX(d.ends_at) INTO newest
    FROM (
        SELECT r.ends_at
        FROM recent_sends AS r FORCE INDEX (recent_sends_end)
        WHERE r.ends_at >= from_end AND r.ends_at <= to_end
        ORDER BY r.ends_at
        LIMIT max_rows
    ) AS d;
    DELETE r
    FROM (
        -- With a column that the index lacks: else MySQL may read the whole index instead of a range of it.
        SELECT o.topic_id, o.send_key, o.event_id
        FROM recent_sends AS o FORCE INDEX (recent_sends_end)
        WHERE o.ends_at >= from_end AND o.ends_at <= COALESCE(newest, to_end)
        ORDER BY o.ends_at
        LIMIT max_rows
        FOR UPDATE SKIP LOCKED
    ) AS due
    STRAIGHT_JOIN recent_sends AS r FORCE INDEX (PRIMARY)
        ON r.topic_id = due.topic_id AND r.send_key = due.send_key;
    SET removed = ROW_COUNT();
END;

-- name: claim_dedup_keys
-- Takes the dedup keys of a batch, whose buckets are locked. duplicates is an object: for
-- each place (from 0) of an event that is one, the id of the earlier event. Events without an id get one.
CREATE PROCEDURE claim_dedup_keys(INOUT events JSON, OUT duplicates JSON)
BEGIN
    DECLARE at_place INT;
    DECLARE topic_id BIGINT;
    DECLARE event_dedup_key VARCHAR(255);
    DECLARE given_id CHAR(36);
    DECLARE id, earlier BINARY(16);
    DECLARE is_done BOOLEAN DEFAULT FALSE;
    DECLARE given CURSOR FOR
        SELECT i.place - 1, t.id, i.dedup_key, i.event_id
        FROM JSON_TABLE(events, '$[*]' COLUMNS (
            place FOR ORDINALITY, topic LONGTEXT PATH '$.topic', event_id CHAR(36) PATH '$.event_id',
            dedup_key VARCHAR(255) PATH '$.dedup_key'
        )) AS i
        JOIN topics AS t ON t.address_hash = UNHEX(SHA2(i.topic, 256))
        WHERE i.dedup_key IS NOT NULL
        ORDER BY t.id, CAST(i.dedup_key AS BINARY), i.place;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET is_done = TRUE;
    SET duplicates = JSON_OBJECT();
    OPEN given;
    each_key: LOOP
        SET is_done = FALSE;
        FETCH given INTO at_place, topic_id, event_dedup_key, given_id;
        IF is_done THEN
            LEAVE each_key;
        END IF;
        IF given_id IS NULL THEN
            CALL new_event_id(id);
            SET events = JSON_SET(events, CONCAT('$[', at_place, '].event_id'), LOWER(HEX(id)));
        ELSE
            SET id = UNHEX(REPLACE(given_id, '-', ''));
        END IF;
        CALL claim_dedup_key(topic_id, event_dedup_key, id, earlier);
        IF earlier IS NOT NULL THEN
            SET duplicates = JSON_SET(duplicates, CONCAT('$."', at_place, '"'), HEX(earlier));
        END IF;
    END LOOP;
    CLOSE given;
END;

-- name: claim_dedup_key
-- Takes a dedup key, whose bucket is locked, for an event; earlier is the event that has it already. Every read is a
-- locking one, because a snapshot may be older than the row. Where innodb_snapshot_isolation is on, as it is by
-- default from 11.6.2 on, MariaDB at REPEATABLE READ refuses to lock such a row (1020) and rolls back the whole
-- transaction, with the caller's work. So these two statements switch it off for themselves. Older branches may not
-- have the variable; where they have it, it is off by default.
CREATE PROCEDURE claim_dedup_key(of_topic BIGINT, given_key VARCHAR(255), event_id BINARY(16), OUT earlier BINARY(16))
BEGIN
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    SET earlier = NULL;
    /*M!110602 SET STATEMENT innodb_snapshot_isolation = OFF FOR */
    INSERT IGNORE INTO dedup_keys (topic_id, dedup_key, event_id, at)
    VALUES (of_topic, CAST(given_key AS BINARY), event_id, UTC_TIMESTAMP(6));
    IF ROW_COUNT() = 0 THEN
        /*M!110602 SET STATEMENT innodb_snapshot_isolation = OFF FOR */
        SELECT d.event_id INTO earlier
        FROM dedup_keys AS d
        WHERE d.topic_id = of_topic AND d.dedup_key = CAST(given_key AS BINARY)
        LOCK IN SHARE MODE;
    END IF;
END;

-- name: lock_bucket
-- Locks a bucket of keys to the end of the transaction. For strict events it keeps those of one key in the
-- order of their commits. For dedup keys it prevents a deadlock: two transactions that wait for the same new
-- index row deadlock when its writer rolls back.
CREATE PROCEDURE lock_bucket(of_bucket INT)
BEGIN
    DECLARE locked INT;
    SELECT s.bucket INTO locked FROM strict_locks AS s WHERE s.bucket = of_bucket FOR UPDATE;
END;

-- name: lock_events
-- Locks the buckets of a batch in sorted order, so that two batches cannot wait for each other.
CREATE PROCEDURE lock_events(events JSON, strict BOOLEAN)
BEGIN
    DECLARE bucket INT;
    DECLARE is_done BOOLEAN DEFAULT FALSE;
    DECLARE asked CURSOR FOR
        SELECT MOD(CRC32(CONCAT(t.id, COALESCE(i.`key`, ''))), 16384)
        FROM JSON_TABLE(events, '$[*]' COLUMNS (topic LONGTEXT PATH '$.topic', `key` LONGTEXT PATH '$.key')) AS i
        JOIN topics AS t ON t.address_hash = UNHEX(SHA2(i.topic, 256))
        WHERE strict
        UNION
        SELECT 16384 + MOD(CRC32(CONCAT(t.id, ' ', i.dedup_key)), 16384)
        FROM JSON_TABLE(events, '$[*]' COLUMNS (
            topic LONGTEXT PATH '$.topic', dedup_key LONGTEXT PATH '$.dedup_key')) AS i
        JOIN topics AS t ON t.address_hash = UNHEX(SHA2(i.topic, 256))
        WHERE i.dedup_key IS NOT NULL
        ORDER BY 1;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET is_done = TRUE;
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
END;

-- name: require_erasure_target
-- Checks what is to be erased: either one event or one key. Raises PS006.
CREATE PROCEDURE require_erasure_target(event_id LONGTEXT, `key` LONGTEXT)
NO SQL
BEGIN
    IF (event_id IS NULL) = (`key` IS NULL) THEN
        CALL refuse('PS006', 'an erasure of neither an event nor a key, or of both: name one of them');
    ELSEIF NOT COALESCE(REPLACE(event_id, '-', '') REGEXP '^[0-9a-fA-F]{32}$', TRUE) THEN
        CALL refuse('PS006', 'the event id is not a UUID');
    END IF;
END;

-- name: find_erasable_rehydrated
-- What find_erasable finds in log epochs that were rehydrated. Raises PS016.
CREATE PROCEDURE find_erasable_rehydrated(
    part_id BIGINT, from_sequence BIGINT, last BIGINT, event_ids JSON, `key` LONGTEXT
)
READS SQL DATA
BEGIN
    DECLARE readable BIGINT;
    CALL find_rehydrated_end(part_id, from_sequence, last - from_sequence + 1, readable);
    IF readable < last THEN
        CALL refuse('PS016', CONCAT('the database no longer has all events from sequence ', from_sequence, ' on'));
    END IF;
    SELECT r.sequence,
           LOWER(INSERT(INSERT(INSERT(INSERT(HEX(r.event_id), 21, 0, '-'), 17, 0, '-'), 13, 0, '-'), 9, 0, '-'))
               AS event_id
    FROM rehydrated_events AS r
    WHERE r.partition_id = part_id AND r.sequence BETWEEN from_sequence AND last
      AND (CAST(r.`key` AS BINARY) = CAST(`key` AS BINARY) OR r.event_id IN (
          SELECT UNHEX(REPLACE(j.id, '-', '')) FROM JSON_TABLE(event_ids, '$[*]' COLUMNS (id CHAR(36) PATH '$')) AS j))
      AND NOT EXISTS (
          SELECT * FROM erased_events AS d WHERE d.partition_id = part_id AND d.sequence = r.sequence)
    ORDER BY r.sequence;
END;

-- name: find_erasable_epoch
-- The log epoch in which a range of sequences lies, locked, and whether it was dropped; NULL for what is not sealed.
-- Raises PS005, PS006.
CREATE PROCEDURE find_erasable_epoch(
    source_id BIGINT, number INT, lowest BIGINT, highest BIGINT, OUT part_id BIGINT, OUT epoch INT,
    OUT was_dropped BOOLEAN
)
BEGIN
    DECLARE last, watermark BIGINT;
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    SET part_id = NULL, epoch = NULL, was_dropped = FALSE;
    SELECT p.id INTO part_id FROM partitions AS p WHERE p.topic_id = source_id AND p.number = number FOR UPDATE;
    IF part_id IS NULL THEN
        CALL refuse('PS005', CONCAT('the topic has no partition ', COALESCE(number, 'NULL')));
    END IF;
    CALL find_high_watermark(part_id, watermark);
    IF NOT COALESCE(lowest >= 1 AND highest <= watermark, FALSE) THEN
        CALL refuse('PS006', CONCAT('an erasure of the sequences ', COALESCE(lowest, 'NULL'), ' to ',
                                    COALESCE(highest, 'NULL')));
    END IF;
    SELECT e.log_epoch, e.last_sequence, e.dropped_at IS NOT NULL INTO epoch, last, was_dropped
    FROM log_epochs AS e
    WHERE e.partition_id = part_id AND e.first_sequence <= lowest
    ORDER BY e.first_sequence DESC
    LIMIT 1
    FOR UPDATE;
    IF last < lowest THEN
        SET epoch = NULL, was_dropped = FALSE;
    ELSEIF last < highest THEN
        CALL refuse('PS006', CONCAT('the sequences ', lowest, ' to ', highest, ' are not all in log epoch ', epoch));
    END IF;
END;

-- name: erasure_digest
-- By what an erasure knows its key again; the erasure's id is the salt.
CREATE FUNCTION erasure_digest(erasure CHAR(36), `key` LONGTEXT) RETURNS CHAR(64) CHARACTER SET ascii
DETERMINISTIC NO SQL
RETURN SHA2(CONCAT(CAST(erasure AS BINARY), CAST(`key` AS BINARY)), 256);

-- name: erasure_mark
-- The headers of an event that was erased.
CREATE FUNCTION erasure_mark(erasure CHAR(36)) RETURNS VARCHAR(200)
DETERMINISTIC NO SQL
RETURN CONCAT('{"penstock-erased": "', erasure, '"}');

-- name: hold_erasure
-- The fence: locks the topic of an open erasure, against legal holds too, then the erasure, to the end of the caller's
-- transaction. Raises PS006, PS018.
CREATE PROCEDURE hold_erasure(asked CHAR(36), OUT source_id BIGINT, OUT is_replaced BOOLEAN)
BEGIN
    DECLARE locked BIGINT;
    DECLARE is_seen BOOLEAN;
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    CALL require_read_committed('a step of an erasure');
    SELECT MAX(e.topic_id) INTO locked FROM erasures AS e WHERE e.erasure = asked;
    SELECT t.id INTO locked FROM topics AS t WHERE t.id = locked FOR UPDATE;
    CALL hold_off_clean(locked << 16);
    SET source_id = NULL;
    SELECT e.topic_id, e.replace_key INTO source_id, is_replaced
    FROM erasures AS e WHERE e.erasure = asked AND e.finished_at IS NULL
    FOR UPDATE;
    SET is_seen = sees_topic(source_id, 'operate');
    IF source_id IS NULL OR NOT is_seen THEN
        CALL refuse('PS006', CONCAT('there is no open erasure ', COALESCE(asked, 'NULL')));
    END IF;
END;

-- name: require_unheld
-- Refuses an erasure of events under a legal hold: of those that this erasure has noted between two sequences. Raises
-- PS027.
CREATE PROCEDURE require_unheld(held CHAR(36), part_id BIGINT, lowest BIGINT, highest BIGINT)
READS SQL DATA
BEGIN
    DECLARE held_by VARCHAR(1000);
    SELECT MAX(CONCAT('legal hold "', LEFT(h.name, 80), '" covers sequence ', d.sequence, ' of partition ',
                      part_id & 65535))
    INTO held_by
    FROM partitions AS p
    JOIN legal_holds AS h ON h.topic_id = p.topic_id AND h.released_at IS NULL
                             AND COALESCE(h.number, p.number) = p.number
    JOIN erased_events AS d ON d.partition_id = p.id AND d.sequence >= h.first_sequence
                               AND d.sequence <= COALESCE(h.last_sequence, d.sequence)
    WHERE p.id = part_id AND d.erasure = held AND d.sequence BETWEEN lowest AND highest;
    IF held_by IS NOT NULL THEN
        CALL refuse('PS027', held_by);
    END IF;
END;

-- name: require_no_block
-- Refuses an erasure of events in an open block of a relay: if the relay's process dies, its successor has to send the
-- very same bytes. Locks the leases of the partition, which whoever opens a block locks too. Raises PS027.
CREATE PROCEDURE require_no_block(held CHAR(36), source_id BIGINT, part_id BIGINT, lowest BIGINT, highest BIGINT)
BEGIN
    DECLARE reader, start, block, hit, locked BIGINT;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE readers CURSOR FOR
        SELECT r.subscription_id FROM subscription_topics AS r WHERE r.topic_id = source_id ORDER BY r.subscription_id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    OPEN readers;
    reader: LOOP
        FETCH readers INTO reader;
        IF done THEN
            LEAVE reader;
        END IF;
        SELECT COUNT(*) INTO locked
        FROM leases AS l WHERE l.subscription_id = reader AND l.partition_id = part_id
        FOR UPDATE;
        SET start = current_position(reader, part_id) + 1;
        CALL find_open_block(reader, part_id, start, block);
        SELECT COUNT(d.sequence) INTO hit
        FROM blocks AS b JOIN erased_events AS d
            ON d.partition_id = part_id AND d.sequence BETWEEN b.first_sequence AND b.last_sequence
        WHERE b.id = block AND d.erasure = held AND d.sequence BETWEEN lowest AND highest;
        IF hit > 0 THEN
            CALL refuse_block(reader, part_id);
        END IF;
        SET done = FALSE;
    END LOOP;
    CLOSE readers;
END;

-- name: refuse_block
-- Raises PS027 with the name of the relay.
CREATE PROCEDURE refuse_block(reader BIGINT, part_id BIGINT)
READS SQL DATA
BEGIN
    DECLARE relay VARCHAR(500);
    SELECT MAX(s.name) INTO relay FROM subscriptions AS s WHERE s.id = reader;
    CALL refuse('PS027', CONCAT('relay "', LEFT(relay, 60), '" is about to send one of these events of partition ',
                                part_id & 65535));
END;

-- name: put_tombstones
-- Replaces payload and headers of the events that this erasure has noted between two sequences, wherever the database
-- has them. Raises PS027 while clean makes a copy of some of them.
CREATE PROCEDURE put_tombstones(
    held CHAR(36), is_replaced BOOLEAN, part_id BIGINT, lowest BIGINT, highest BIGINT
)
BEGIN
    DECLARE kept VARCHAR(64);
    SELECT k.slice INTO kept FROM slice_being_kept AS k LOCK IN SHARE MODE;
    IF kept IS NOT NULL THEN
        CALL refuse('PS027', CONCAT('clean is making a copy of events (', kept, ')'));
    END IF;
    UPDATE events AS e
    JOIN (
        SELECT i.id
        FROM logged_ids AS i
        JOIN erased_events AS d ON d.partition_id = i.partition_id AND d.sequence = i.sequence
        WHERE i.partition_id = part_id AND i.first_sequence <= highest AND i.first_sequence >= (
              SELECT COALESCE(MAX(f.first_sequence), 0) FROM chunks AS f
              WHERE f.partition_id = part_id AND f.first_sequence <= lowest)
          AND i.sequence BETWEEN lowest AND highest AND d.erasure = held
        LIMIT 1000000
    ) AS f ON f.id = e.id
    SET e.payload = '', e.headers = erasure_mark(held), e.`key` = IF(is_replaced, NULL, e.`key`);
    UPDATE rehydrated_events AS r
    JOIN erased_events AS d ON d.partition_id = r.partition_id AND d.sequence = r.sequence
    SET r.payload = '', r.headers = erasure_mark(held), r.`key` = IF(is_replaced, NULL, r.`key`)
    WHERE r.partition_id = part_id AND r.sequence BETWEEN lowest AND highest AND d.erasure = held;
END;

-- name: stop_copies
-- Waits for the transactions in which queues copy events of a topic out of the log, bury or finish copies, and stops
-- others to the end of this one: what they have copied is there for erase_letters, and what they copy then is erased
-- already.
CREATE PROCEDURE stop_copies(source_id BIGINT)
BEGIN
    DECLARE locked INT;
    SELECT COUNT(*) INTO locked
    FROM subscription_topics AS r FORCE INDEX (subscription_topics_topic) WHERE r.topic_id = source_id
    FOR UPDATE;
END;

-- name: await_erasures
-- The other side of stop_copies, before a queue copies events or locks the copies that it has: who holds copies and
-- then waits for an erasure that waits for these copies would end in a deadlock. pieces: see match_receipts.
CREATE PROCEDURE await_erasures(owner_id BIGINT, pieces LONGTEXT)
BEGIN
    DECLARE locked INT;
    SELECT COUNT(*) INTO locked
    FROM (
        SELECT DISTINCT j.partition_id >> 16 AS topic_id
        FROM JSON_TABLE(COALESCE(pieces, '[]'), '$[*]' COLUMNS (partition_id BIGINT PATH '$[3]')) AS j
        LIMIT 1000000
    ) AS p
    STRAIGHT_JOIN subscription_topics AS r FORCE INDEX (PRIMARY)
        ON r.subscription_id = owner_id AND r.topic_id = p.topic_id
    LOCK IN SHARE MODE;
END;

-- name: is_tombstone
-- Whether an event was erased. It takes no new body and no reason, which may quote what it was.
CREATE FUNCTION is_tombstone(payload_length BIGINT, headers LONGTEXT) RETURNS BOOLEAN
DETERMINISTIC NO SQL
RETURN payload_length = 0 AND COALESCE(headers LIKE '{"penstock-erased": %', FALSE);

-- name: erased_reason
-- Why an erased dead letter died, as far as it may still be said.
CREATE FUNCTION erased_reason(erasure CHAR(36)) RETURNS VARCHAR(200)
DETERMINISTIC NO SQL
RETURN CONCAT('erased by ', erasure);

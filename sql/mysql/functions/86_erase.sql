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

-- name: find_erasable
-- The sequences of a window of a partition that hold this event, or events of this key, and that were not erased yet:
-- of max_events (1 to 100,000) from a sequence on. Below the low sequence it looks at what was rehydrated. Raises
-- PS002, PS005, PS006, PS016.
CREATE PROCEDURE find_erasable(
    topic LONGTEXT, `partition` INT, from_sequence BIGINT, max_events INT, event_id LONGTEXT, `key` LONGTEXT
)
READS SQL DATA
find: BEGIN
    DECLARE source_id, low, watermark, last, found BIGINT;
    CALL refuse_serializable('find_erasable()');
    CALL find_partition_for(topic, `partition`, 'operate', source_id);
    CALL require_erasure_target(event_id, `key`);
    IF NOT COALESCE(max_events BETWEEN 1 AND 100000 AND from_sequence >= 1, FALSE) THEN
        CALL refuse('PS006', CONCAT('cannot look at ', COALESCE(max_events, 'NULL'), ' events from sequence ',
                                    COALESCE(from_sequence, 'NULL')));
    END IF;
    SELECT MAX(p.low_sequence) INTO low FROM partitions AS p WHERE p.id = source_id;
    CALL find_high_watermark(source_id, watermark);
    SET last = LEAST(watermark, from_sequence + max_events - 1);
    IF from_sequence < low THEN
        CALL find_erasable_rehydrated(source_id, from_sequence, LEAST(last, low - 1), event_id, `key`);
        LEAVE find;
    END IF;
    SELECT COUNT(e.event_id) INTO found
    FROM logged_events AS e
    WHERE e.partition_id = source_id AND e.first_sequence <= last AND e.first_sequence >= (
          SELECT MAX(f.first_sequence) FROM chunks AS f
          WHERE f.partition_id = source_id AND f.first_sequence <= from_sequence)
      AND e.sequence BETWEEN from_sequence AND last;
    IF found < last - from_sequence + 1 THEN
        CALL refuse('PS016', CONCAT('the database no longer has all events from sequence ', from_sequence, ' on'));
    END IF;
    SELECT e.sequence
    FROM logged_events AS e
    WHERE e.partition_id = source_id AND e.first_sequence <= last AND e.first_sequence >= (
          SELECT MAX(f.first_sequence) FROM chunks AS f
          WHERE f.partition_id = source_id AND f.first_sequence <= from_sequence)
      AND e.sequence BETWEEN from_sequence AND last
      AND (CAST(e.`key` AS BINARY) = CAST(`key` AS BINARY) OR e.event_id = UNHEX(REPLACE(event_id, '-', '')))
      AND NOT EXISTS (
          SELECT * FROM erased_events AS d WHERE d.partition_id = source_id AND d.sequence = e.sequence)
    ORDER BY e.sequence;
END;

-- name: find_erasable_rehydrated
-- What find_erasable finds in log epochs that were rehydrated. Raises PS016.
CREATE PROCEDURE find_erasable_rehydrated(
    part_id BIGINT, from_sequence BIGINT, last BIGINT, event_id LONGTEXT, `key` LONGTEXT
)
READS SQL DATA
BEGIN
    DECLARE readable BIGINT;
    CALL find_rehydrated_end(part_id, from_sequence, last - from_sequence + 1, readable);
    IF readable < last THEN
        CALL refuse('PS016', CONCAT('the database no longer has all events from sequence ', from_sequence, ' on'));
    END IF;
    SELECT r.sequence
    FROM rehydrated_events AS r
    WHERE r.partition_id = part_id AND r.sequence BETWEEN from_sequence AND last
      AND (CAST(r.`key` AS BINARY) = CAST(`key` AS BINARY) OR r.event_id = UNHEX(REPLACE(event_id, '-', '')))
      AND NOT EXISTS (
          SELECT * FROM erased_events AS d WHERE d.partition_id = part_id AND d.sequence = r.sequence)
    ORDER BY r.sequence;
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

-- name: erased_reason
-- Why an erased dead letter died, as far as it may still be said.
CREATE FUNCTION erased_reason(erasure CHAR(36)) RETURNS VARCHAR(200)
DETERMINISTIC NO SQL
RETURN CONCAT('erased by ', erasure);

-- name: begin_erasure
-- Opens an erasure of one event or of all events of one key, and returns its id; one that is open already for the same
-- is gone on with. replace_key: the key is erased too. The key itself is not kept. Raises PS002, PS006, PS018.
CREATE PROCEDURE begin_erasure(
    topic LONGTEXT, event_id LONGTEXT, `key` LONGTEXT, reason LONGTEXT, replace_key BOOLEAN
)
BEGIN
    DECLARE own BIGINT;
    DECLARE topic_partitions INT;
    DECLARE found_id CHAR(36) CHARACTER SET ascii;
    {{on error: CALL undo_call()}}
    CALL begin_call('begin_erasure()');
    CALL require_read_committed('begin_erasure()');
    CALL lock_topic(topic, 'operate', own, topic_partitions);
    CALL require_erasure_target(event_id, `key`);
    IF reason IS NULL OR TRIM(reason) = '' OR CHAR_LENGTH(reason) > 1000 THEN
        CALL refuse('PS006', 'the reason of an erasure has not 1 to 1,000 characters');
    END IF;
    SET replace_key = COALESCE(replace_key, FALSE);
    SELECT MIN(e.erasure) INTO found_id
    FROM erasures AS e
    WHERE e.topic_id = own AND e.finished_at IS NULL AND e.replace_key = replace_key
      AND (e.event_id = UNHEX(REPLACE(event_id, '-', '')) OR e.digest = erasure_digest(e.erasure, `key`));
    IF found_id IS NULL THEN
        SET found_id = UUID();
        INSERT INTO erasures (
            erasure, topic_id, event_id, digest, replace_key, reason, requested_by, requested_at)
        VALUES (found_id, own, UNHEX(REPLACE(event_id, '-', '')), erasure_digest(found_id, `key`), replace_key, reason,
                user_part(USER()), UTC_TIMESTAMP(6));
    END IF;
    SELECT found_id AS erasure;
    CALL end_call();
END;

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

-- name: erase_events
-- Replaces events (a JSON array of sequences) of one log epoch, or of what is not sealed yet, by tombstones, and gives
-- the log epoch a new checksum in the same transaction. For a dropped one the caller gives the checksum of the copy
-- that it has read, and the one of the copy that it has written; for a rehydrated one without a copy, neither. Events
-- that were erased before stay as they are. Returns how many were erased. Raises PS005, PS006, PS016, PS017, PS018,
-- PS027.
CREATE PROCEDURE erase_events(
    erasure CHAR(36), `partition` INT, sequences JSON, old_checksum TEXT, checksum TEXT
)
BEGIN
    DECLARE source_id, part_id, lowest, highest, fresh BIGINT;
    DECLARE epoch INT;
    DECLARE is_replaced, was_dropped BOOLEAN;
    {{on error: CALL undo_call()}}
    CALL begin_call('erase_events()');
    CALL hold_erasure(erasure, source_id, is_replaced);
    SELECT MIN(q.sequence), MAX(q.sequence) INTO lowest, highest
    FROM JSON_TABLE(sequences, '$[*]' COLUMNS (sequence BIGINT PATH '$')) AS q;
    CALL find_erasable_epoch(source_id, `partition`, lowest, highest, part_id, epoch, was_dropped);
    IF was_dropped AND checksum IS NULL AND NOT is_rehydrated(part_id, lowest) THEN
        CALL refuse('PS016', CONCAT('log epoch ', epoch, ' was dropped'));
    END IF;
    INSERT INTO erased_events (partition_id, sequence, erasure)
    SELECT DISTINCT part_id, q.sequence, erasure
    FROM JSON_TABLE(sequences, '$[*]' COLUMNS (sequence BIGINT PATH '$')) AS q
    LEFT JOIN erased_events AS d ON d.partition_id = part_id AND d.sequence = q.sequence
    WHERE d.sequence IS NULL;
    SET fresh = ROW_COUNT();
    IF fresh > 0 THEN
        CALL require_unheld(erasure, part_id, lowest, highest);
        CALL stop_copies(source_id);
        CALL require_no_block(erasure, source_id, part_id, lowest, highest);
        CALL put_tombstones(erasure, is_replaced, part_id, lowest, highest);
        UPDATE erasures AS e SET e.events = e.events + fresh WHERE e.erasure = erasure;
        IF epoch IS NOT NULL THEN
            CALL reissue_seal(erasure, part_id, epoch, old_checksum, checksum);
        END IF;
    END IF;
    SELECT fresh AS events;
    CALL end_call();
END;

-- name: erase_letters
-- Replaces dead letters of the event, or of the key, of an erasure by tombstones, with the reason of their death: it
-- may quote the event. So it does with the copies that queues have. At most max_rows (1 to 10,000); returns how many.
-- Call it until that is 0, after the events. Raises PS006, PS018, PS027.
CREATE PROCEDURE erase_letters(erasure CHAR(36), `key` LONGTEXT, max_rows INT)
BEGIN
    DECLARE source_id, letter BIGINT;
    DECLARE done_letters, done_copies BIGINT DEFAULT 0;
    DECLARE is_replaced, is_same, is_over BOOLEAN DEFAULT FALSE;
    DECLARE held_by VARCHAR(200);
    DECLARE letters CURSOR FOR
        SELECT d.id,
               (SELECT MAX(h.name)
                FROM partitions AS p
                JOIN legal_holds AS h ON h.topic_id = p.topic_id AND h.released_at IS NULL
                                         AND COALESCE(h.number, p.number) = p.number
                WHERE p.id = d.partition_id AND d.sequence >= h.first_sequence
                  AND d.sequence <= COALESCE(h.last_sequence, d.sequence))
        FROM dead_letters AS d JOIN erasures AS e ON e.erasure = erasure
        WHERE d.partition_id BETWEEN source_id << 16 AND (source_id << 16) + 65535
          AND (d.event_id = e.event_id OR CAST(d.`key` AS BINARY) = CAST(`key` AS BINARY))
          AND NOT EXISTS (
              SELECT * FROM erasures AS z
              WHERE z.topic_id = source_id AND d.reason = erased_reason(z.erasure) AND d.payload = ''
                AND d.headers = erasure_mark(z.erasure))
        ORDER BY d.id
        LIMIT 10000;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET is_over = TRUE;
    {{on error: CALL undo_call()}}
    CALL begin_call('erase_letters()');
    CALL hold_erasure(erasure, source_id, is_replaced);
    SELECT e.digest <=> erasure_digest(erasure, `key`) INTO is_same FROM erasures AS e WHERE e.erasure = erasure;
    IF NOT COALESCE(max_rows BETWEEN 1 AND 10000, FALSE) THEN
        CALL refuse('PS006', CONCAT(COALESCE(max_rows, 'NULL'), ' dead letters at once: use 1 to 10,000'));
    ELSEIF NOT is_same THEN
        CALL refuse('PS006', 'that is not the key of this erasure: give the one with which it was begun');
    END IF;
    -- A copy that just becomes a dead letter, or the other way round, would be in neither when this looks there.
    CALL stop_copies(source_id);
    SET is_over = FALSE;
    OPEN letters;
    letter: LOOP
        FETCH letters INTO letter, held_by;
        IF is_over OR done_letters >= max_rows THEN
            LEAVE letter;
        ELSEIF held_by IS NOT NULL THEN
            CALL refuse('PS027', CONCAT('legal hold "', LEFT(held_by, 60), '" covers a dead letter'));
        END IF;
        UPDATE dead_letters AS d
        SET d.payload = '', d.headers = erasure_mark(erasure), d.reason = erased_reason(erasure),
            d.`key` = IF(is_replaced, NULL, d.`key`)
        WHERE d.id = letter;
        SET done_letters = done_letters + 1;
    END LOOP;
    CLOSE letters;
    CALL erase_copies(erasure, source_id, is_replaced, `key`, max_rows - done_letters, done_copies);
    SET done_letters = done_letters + done_copies;
    UPDATE erasures AS e SET e.letters = e.letters + done_letters WHERE e.erasure = erasure;
    SELECT done_letters AS letters;
    CALL end_call();
END;

-- name: finish_erasure
-- Ends an erasure, once every copy was made again. Raises PS006, PS018.
CREATE PROCEDURE finish_erasure(erasure CHAR(36))
BEGIN
    DECLARE source_id BIGINT;
    DECLARE is_replaced BOOLEAN;
    {{on error: CALL undo_call()}}
    CALL begin_call('finish_erasure()');
    CALL hold_erasure(erasure, source_id, is_replaced);
    UPDATE erasures AS e SET e.finished_at = UTC_TIMESTAMP(6) WHERE e.erasure = erasure;
    CALL end_call();
END;

-- name: list_erasures
-- The record of erasures, newest first, of one topic or of all (NULL) that the login may read: who, when, why, what,
-- how many events and dead letters, and how many checksums were issued again. by_key: it was of a key, which is not
-- kept. Raises PS002.
CREATE PROCEDURE list_erasures(of_topic LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE only_id BIGINT;
    CALL refuse_serializable('list_erasures()');
    IF of_topic IS NOT NULL THEN
        CALL find_topic(of_topic, only_id);
    END IF;
    SELECT e.erasure, t.address AS topic,
           LOWER(INSERT(INSERT(INSERT(INSERT(HEX(e.event_id), 21, 0, '-'), 17, 0, '-'), 13, 0, '-'), 9, 0, '-'))
               AS event_id,
           e.digest IS NOT NULL AS by_key, e.replace_key, e.reason, e.requested_by, e.requested_at, e.finished_at,
           e.events, e.letters, (SELECT COUNT(*) FROM reissued_seals AS r WHERE r.erasure = e.erasure) AS seals
    FROM erasures AS e JOIN topics AS t ON t.id = e.topic_id
    WHERE t.id = COALESCE(only_id, t.id) AND (NOT t.restricted OR has_right(t.namespace_id, 'read'))
    ORDER BY e.requested_at DESC, e.erasure;
END;

-- name: reissued_of
-- The log epochs of a topic whose checksum was issued again, and each checksum that they had before. Raises PS002.
CREATE PROCEDURE reissued_of(topic LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE source_id BIGINT;
    CALL refuse_serializable('reissued_of()');
    CALL find_topic(topic, source_id);
    SELECT p.number AS `partition`, r.log_epoch, r.old_checksum, r.checksum, r.erasure, e.reason, r.reissued_by,
           r.reissued_at
    FROM partitions AS p
    JOIN reissued_seals AS r ON r.partition_id = p.id
    JOIN erasures AS e ON e.erasure = r.erasure
    WHERE p.topic_id = source_id
    ORDER BY p.number, r.log_epoch, r.reissued_at;
END;

-- name: erased_of
-- The places of erased events of a partition between two sequences, in order, at most max_rows (1 to 100,000). Raises
-- PS002, PS005, PS006.
CREATE PROCEDURE erased_of(
    topic LONGTEXT, `partition` INT, first_sequence BIGINT, last_sequence BIGINT, max_rows INT
)
READS SQL DATA
BEGIN
    DECLARE source_id BIGINT;
    CALL refuse_serializable('erased_of()');
    CALL find_partition(topic, `partition`, source_id);
    IF NOT COALESCE(max_rows BETWEEN 1 AND 100000, FALSE) THEN
        CALL refuse('PS006', CONCAT('a list of ', COALESCE(max_rows, 'NULL'), ' erased events: use 1 to 100,000'));
    END IF;
    SELECT d.sequence, d.erasure, e.replace_key
    FROM erased_events AS d JOIN erasures AS e ON e.erasure = d.erasure
    WHERE d.partition_id = source_id AND d.sequence BETWEEN first_sequence AND last_sequence
    ORDER BY d.sequence
    LIMIT max_rows;
END;

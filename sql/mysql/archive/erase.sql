-- name: find_erasable
-- The sequences of a window of a partition that hold one of these events (a JSON array of ids), or an event of this
-- key, and that were not erased yet, each with the event's id: of max_events (1 to 100,000) from a sequence on. Below
-- the low sequence it looks at what was rehydrated. Raises PS002, PS005, PS006, PS016.
CREATE PROCEDURE find_erasable(
    topic LONGTEXT, `partition` INT, from_sequence BIGINT, max_events INT, event_ids JSON, `key` LONGTEXT
)
READS SQL DATA
find: BEGIN
    DECLARE source_id, low, watermark, last, found BIGINT;
    CALL refuse_serializable('find_erasable()');
    CALL require_partition_for(topic, `partition`, 'operate', source_id);
    CALL require_erasure_target(JSON_UNQUOTE(JSON_EXTRACT(event_ids, '$[0]')), `key`);
    IF NOT COALESCE(max_events BETWEEN 1 AND 100000 AND from_sequence >= 1, FALSE) THEN
        CALL refuse('PS006', CONCAT('cannot look at ', COALESCE(max_events, 'NULL'), ' events from sequence ',
                                    COALESCE(from_sequence, 'NULL')));
    END IF;
    SELECT MAX(p.low_sequence) INTO low FROM partitions AS p WHERE p.id = source_id;
    CALL find_high_watermark(source_id, watermark);
    SET last = LEAST(watermark, from_sequence + max_events - 1);
    IF from_sequence < low THEN
        CALL find_erasable_rehydrated(source_id, from_sequence, LEAST(last, low - 1), event_ids, `key`);
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
    SELECT e.sequence,
           LOWER(INSERT(INSERT(INSERT(INSERT(HEX(e.event_id), 21, 0, '-'), 17, 0, '-'), 13, 0, '-'), 9, 0, '-'))
               AS event_id
    FROM logged_events AS e
    WHERE e.partition_id = source_id AND e.first_sequence <= last AND e.first_sequence >= (
          SELECT MAX(f.first_sequence) FROM chunks AS f
          WHERE f.partition_id = source_id AND f.first_sequence <= from_sequence)
      AND e.sequence BETWEEN from_sequence AND last
      AND (CAST(e.`key` AS BINARY) = CAST(`key` AS BINARY) OR e.event_id IN (
          SELECT UNHEX(REPLACE(j.id, '-', '')) FROM JSON_TABLE(event_ids, '$[*]' COLUMNS (id CHAR(36) PATH '$')) AS j))
      AND NOT EXISTS (
          SELECT * FROM erased_events AS d WHERE d.partition_id = source_id AND d.sequence = e.sequence)
    ORDER BY e.sequence;
END;

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
                principal(), UTC_TIMESTAMP(6));
    END IF;
    SELECT found_id AS erasure;
    CALL end_call();
END;

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
        ORDER BY d.subscription_id, d.partition_id, d.sequence, d.history  -- as lock_letters
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
    DECLARE of_event BINARY(16);
    {{on error: CALL undo_call()}}
    CALL begin_call('finish_erasure()');
    CALL hold_erasure(erasure, source_id, is_replaced);
    UPDATE erasures AS e SET e.finished_at = UTC_TIMESTAMP(6) WHERE e.erasure = erasure;
    SELECT MAX(e.event_id) INTO of_event FROM erasures AS e WHERE e.erasure = erasure;
    -- Of a dead letter's copy that is erased now the key was kept to find it.
    UPDATE letter_copies AS c FORCE INDEX (PRIMARY) SET c.`key` = NULL
    WHERE is_replaced AND c.copy_id = of_event AND c.topic_id = source_id;
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
        CALL require_topic(of_topic, only_id);
    END IF;
    SELECT e.erasure, t.address AS topic,
           LOWER(INSERT(INSERT(INSERT(INSERT(HEX(e.event_id), 21, 0, '-'), 17, 0, '-'), 13, 0, '-'), 9, 0, '-'))
               AS event_id,
           e.digest IS NOT NULL AS by_key, e.replace_key, e.reason, e.requested_by, e.requested_at, e.finished_at,
           e.events, e.letters, (SELECT COUNT(*) FROM reissued_seals AS r WHERE r.erasure = e.erasure) AS seals
    FROM erasures AS e JOIN topics AS t ON t.id = e.topic_id
    WHERE t.id = COALESCE(only_id, t.id)
      AND (NOT t.restricted AND @penstock_acting IS NULL OR has_right(t.namespace_id, 'read'))
    ORDER BY e.requested_at DESC, e.erasure;
END;

-- name: reissued_of
-- The log epochs of a topic whose checksum was issued again, and each checksum that they had before. Raises PS002.
CREATE PROCEDURE reissued_of(topic LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE source_id BIGINT;
    CALL refuse_serializable('reissued_of()');
    CALL require_topic(topic, source_id);
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
    CALL require_partition(topic, `partition`, source_id);
    IF NOT COALESCE(max_rows BETWEEN 1 AND 100000, FALSE) THEN
        CALL refuse('PS006', CONCAT('a list of ', COALESCE(max_rows, 'NULL'), ' erased events: use 1 to 100,000'));
    END IF;
    SELECT d.sequence, d.erasure, e.replace_key
    FROM erased_events AS d JOIN erasures AS e ON e.erasure = d.erasure
    WHERE d.partition_id = source_id AND d.sequence BETWEEN first_sequence AND last_sequence
    ORDER BY d.sequence
    LIMIT max_rows;
END;

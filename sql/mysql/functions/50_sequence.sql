-- name: look_below_floor
-- Makes late blocks of what waits below the floor and is not known to be late. Nobody looks there otherwise. It gets
-- there after the counter of pending was set back by hand (ALTER TABLE pending AUTO_INCREMENT). So the counter is
-- raised too, or later publishes would follow. After 50,000 blocks the next call goes on. The caller has locked the
-- sequencer's row.
CREATE PROCEDURE look_below_floor(bottom BIGINT)
BEGIN
    DECLARE found INT;
    INSERT IGNORE INTO late_blocks (block)
    SELECT p.block
    FROM pending AS p FORCE INDEX (PRIMARY) LEFT JOIN late_blocks AS l ON l.block = p.block
    WHERE p.block <= bottom AND p.event_count > 0 AND l.block IS NULL
    ORDER BY p.block
    LIMIT 50000;
    SET found = ROW_COUNT();
    IF found > 0 THEN
        CALL raise_block_counter();
    END IF;
    SET @penstock_looked = IF(found = 50000, NULL, UNIX_TIMESTAMP());
END;

-- name: claim_blocks
-- Puts what was published and committed into the session's table claimed: the late blocks and those above the floor,
-- in order, with together at least wanted events if there are as many. is_all says that nothing was left. It is one
-- consistent read, because that sees one moment: all blocks of a transaction or none, and together with a block
-- everything that was committed before its transaction began. This gives the log its order. Several statements, or a
-- scan that skips locked rows, could find the second block of a transaction after they had passed its first. Every
-- block holds at least one event, so as many blocks as wanted events are enough; a block without events is a number
-- that settle_block has taken. The caller has locked the sequencer's row: blocks that an earlier pass claimed are
-- gone, and no other session takes these.
CREATE PROCEDURE claim_blocks(bottom BIGINT, wanted INT, OUT is_all BOOLEAN)
BEGIN
    CREATE TEMPORARY TABLE IF NOT EXISTS claimed (
        block BIGINT NOT NULL PRIMARY KEY, event_count INT NOT NULL, taken INT NOT NULL, used INT NOT NULL
    ) ENGINE = MEMORY;
    DELETE FROM claimed;
    INSERT INTO claimed (block, event_count, taken, used)
    SELECT w.block, w.event_count, w.taken, w.event_count - w.taken
    FROM (
        (SELECT STRAIGHT_JOIN p.block, p.event_count, p.taken
         FROM late_blocks AS l JOIN pending AS p FORCE INDEX (PRIMARY) ON p.block = l.block
         WHERE l.block <= bottom AND p.event_count > 0
         ORDER BY l.block
         LIMIT wanted)
        UNION ALL
        (SELECT p.block, p.event_count, p.taken
         FROM pending AS p FORCE INDEX (PRIMARY)
         WHERE p.block > bottom AND p.event_count > 0
         ORDER BY p.block
         LIMIT wanted)
    ) AS w
    ORDER BY w.block
    LIMIT wanted;
    SELECT COUNT(*) < wanted INTO is_all FROM claimed AS c;
END;

-- name: cut_claimed
-- Leaves exactly wanted events in claimed, by taking only a part of the last block and nothing after it. Returns the
-- last block that was taken whole (0 for none), and whether something was left.
CREATE PROCEDURE cut_claimed(wanted INT, OUT last_block BIGINT, OUT is_cut BOOLEAN)
BEGIN
    DECLARE cut_block, all_before BIGINT;
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    SET is_cut = FALSE;
    SELECT r.block, r.all_events - r.used INTO cut_block, all_before
    FROM (SELECT c.block, c.used, SUM(c.used) OVER (ORDER BY c.block) AS all_events FROM claimed AS c) AS r
    WHERE r.all_events > wanted
    ORDER BY r.block
    LIMIT 1;
    IF cut_block IS NOT NULL THEN
        SET is_cut = TRUE;
        DELETE FROM claimed WHERE block > cut_block;
        UPDATE claimed SET used = wanted - all_before WHERE block = cut_block;
        DELETE FROM claimed WHERE used = 0;
    END IF;
    SELECT COALESCE(MAX(c.block), 0) INTO last_block FROM claimed AS c WHERE c.taken + c.used = c.event_count;
END;

-- name: collect_batch
-- Puts the events of a pass into the session's table batch, in the order in which they get their sequences:
-- first the delayed ones that are due, by due time, then the claimed ones by id. Claimed events that are not
-- due yet go to delayed_events.
CREATE PROCEDURE collect_batch(wanted INT, present DATETIME(6), after_due DATETIME(6), after_id BIGINT)
BEGIN
    CREATE TEMPORARY TABLE IF NOT EXISTS batch (
        place INT NOT NULL AUTO_INCREMENT PRIMARY KEY, id BIGINT NOT NULL, partition_id BIGINT NOT NULL, due DATETIME(6)
    ) ENGINE = MEMORY;
    DELETE FROM batch;
    INSERT INTO batch (id, partition_id, due)
    SELECT d.id, d.partition_id, d.due
    FROM delayed_events AS d
    WHERE d.due >= after_due AND d.due <= present AND NOT (d.due = after_due AND d.id <= after_id)
    ORDER BY d.due, d.id
    LIMIT wanted;
END;

-- name: put_off
-- Moves what is not due yet from the batch to delayed_events.
CREATE PROCEDURE put_off(present DATETIME(6))
BEGIN
    DECLARE early BIGINT;
    SELECT COUNT(*) INTO early FROM batch AS b WHERE b.due > present;
    IF early > 0 THEN
        INSERT INTO delayed_events (due, id, partition_id)
        SELECT b.due, b.id, b.partition_id FROM batch AS b WHERE b.due > present;
        DELETE FROM batch WHERE due > present;
    END IF;
END;

-- name: collect_claimed
-- The second half of collect_batch: the claimed events.
CREATE PROCEDURE collect_claimed(present DATETIME(6))
BEGIN
    INSERT INTO batch (id, partition_id, due)
    SELECT STRAIGHT_JOIN e.id, e.partition_id, IF(e.due_at > present, e.due_at, NULL)
    FROM claimed AS c
    JOIN places AS l ON l.size = 1 << CAST(CEIL(LOG2(c.used)) AS UNSIGNED) AND l.n < c.used
    JOIN events AS e ON e.id = c.block * 256 + c.taken + l.n
    ORDER BY c.block, l.n;
    CALL put_off(present);
END;

-- name: append_chunks
-- Numbers the batch per partition and appends it to the index of the log in chunks of at most 1,000. Events of a
-- deleted topic are only counted. Returns how many events got a sequence, and the partitions that grew. The query for
-- the head of a partition, here and elsewhere, orders by the whole key: with a part of the key, MySQL reads all
-- chunks of the partition and sorts them.
CREATE PROCEDURE append_chunks(present DATETIME(6), OUT sequenced BIGINT, OUT grown LONGTEXT)
BEGIN
    DECLARE limit_before BIGINT UNSIGNED DEFAULT @@SESSION.group_concat_max_len;
    {{on error: SET SESSION group_concat_max_len = limit_before}}
    -- Room for 65,536 partitions and for the ids of a chunk; chunks_whole refuses a list that was cut off in spite of
    -- this.
    SET SESSION group_concat_max_len = 4194304;
    CREATE TEMPORARY TABLE IF NOT EXISTS heads (
        partition_id BIGINT NOT NULL PRIMARY KEY, event_count INT NOT NULL, next_sequence BIGINT NOT NULL,
        is_gone BOOLEAN NOT NULL
    ) ENGINE = MEMORY;
    DELETE FROM heads;
    INSERT INTO heads (partition_id, event_count, next_sequence, is_gone)
    SELECT t.partition_id, t.event_count, COALESCE((
            -- It overflows beyond 10^18, the last sequence that can be read: no event gets a sequence that no reader
            -- can fetch.
            SELECT c.first_sequence + c.event_count + 8223372036854775807 - 8223372036854775807
            FROM chunks AS c
            WHERE c.partition_id = t.partition_id
            ORDER BY c.partition_id DESC, c.first_sequence DESC
            LIMIT 1), 1),
        EXISTS (SELECT * FROM deleted_topics AS d WHERE d.topic_id = t.partition_id DIV 65536)
    FROM (SELECT b.partition_id, COUNT(*) AS event_count FROM batch AS b GROUP BY b.partition_id) AS t;
    INSERT INTO chunks (partition_id, first_sequence, event_count, first_id, last_id, event_ids, sequenced_at)
    SELECT r.partition_id, MIN(r.sequence), COUNT(*), MIN(r.id), MAX(r.id),
           GROUP_CONCAT(UNHEX(LPAD(HEX(r.id), 16, '0')) ORDER BY r.sequence SEPARATOR ''), present
    FROM (
        SELECT b.id, b.partition_id, ROW_NUMBER() OVER (PARTITION BY b.partition_id ORDER BY b.place) - 1 AS place,
               h.next_sequence + ROW_NUMBER() OVER (PARTITION BY b.partition_id ORDER BY b.place) - 1 AS sequence
        FROM batch AS b JOIN heads AS h ON h.partition_id = b.partition_id
        WHERE NOT h.is_gone
    ) AS r
    GROUP BY r.partition_id, r.place DIV 1000;
    -- In this order and by the key: a scan of deleted_topics would lock all of them.
    UPDATE (
        SELECT h.partition_id DIV 65536 AS topic_id, SUM(h.event_count) AS event_count
        FROM heads AS h
        WHERE h.is_gone
        GROUP BY h.partition_id DIV 65536
    ) AS g
    STRAIGHT_JOIN deleted_topics AS d FORCE INDEX (PRIMARY) ON d.topic_id = g.topic_id
    SET d.discarded = d.discarded + g.event_count;
    SELECT COALESCE(SUM(h.event_count), 0), COALESCE(JSON_ARRAYAGG(h.partition_id), '[]') INTO sequenced, grown
    FROM heads AS h
    WHERE NOT h.is_gone;
    SET SESSION group_concat_max_len = limit_before;
END;

-- name: forget_claimed
-- Removes what was sequenced from pending. The order of the joins and the index are forced, because a scan of
-- pending would wait for every open publisher.
CREATE PROCEDURE forget_claimed()
BEGIN
    DELETE p
    FROM claimed AS c STRAIGHT_JOIN pending AS p FORCE INDEX (PRIMARY) ON p.block = c.block
    WHERE c.taken + c.used = c.event_count;
    UPDATE claimed AS c STRAIGHT_JOIN pending AS p FORCE INDEX (PRIMARY) ON p.block = c.block
    SET p.taken = c.taken + c.used
    WHERE c.taken + c.used < c.event_count;
    DELETE l
    FROM claimed AS c STRAIGHT_JOIN late_blocks AS l FORCE INDEX (PRIMARY) ON l.block = c.block
    WHERE c.taken + c.used = c.event_count;
    DELETE d
    FROM batch AS b STRAIGHT_JOIN delayed_events AS d FORCE INDEX (PRIMARY) ON d.due = b.due AND d.id = b.id
    WHERE b.due IS NOT NULL;
END;

-- name: nothing_waits
-- Whether a pass would find nothing to number, found without a lock and without a transaction: there is no
-- late block, no block above the floor, and no delayed event that is due. It does not look for what a restore
-- has left; an occasional pass does that. Raises PS018.
CREATE PROCEDURE nothing_waits()
READS SQL DATA
BEGIN
    CALL refuse_serializable('nothing_waits()');
    SELECT NOT EXISTS (SELECT * FROM late_blocks AS l)
       AND NOT EXISTS (
           SELECT * FROM pending AS p FORCE INDEX (PRIMARY) WHERE p.block > s.floor_block AND p.event_count > 0)
       AND NOT EXISTS (
           SELECT * FROM delayed_events AS d WHERE d.due >= s.delayed_due AND d.due <= UTC_TIMESTAMP(6)
              AND NOT (d.due = s.delayed_due AND d.id <= s.delayed_id)) AS nothing_waits
    FROM sequencer AS s;
END;

-- name: note_pass
-- Counts a pass that brought events, and keeps the partitions of the last twenty passes, the newest first: "17:1,2
-- 16:all ". A long list is written as "all", because every pass writes the row to the binary log. The caller has
-- locked the sequencer's row.
CREATE PROCEDURE note_pass(sequenced BIGINT, grown LONGTEXT)
BEGIN
    DECLARE named LONGTEXT DEFAULT REPLACE(TRIM(BOTH '[' FROM TRIM(BOTH ']' FROM grown)), ' ', '');
    IF sequenced > 0 THEN
        UPDATE sequencer
        SET recent_passes = SUBSTRING_INDEX(
                CONCAT(pass_number + 1, ':', IF(LENGTH(named) <= 150, named, 'all'), ' ', recent_passes), ' ', 20),
            pass_number = pass_number + 1
        WHERE singleton;
    END IF;
END;

-- name: grown_since
-- How many passes have brought events, and, unless that is the number that the caller gives, which partitions the
-- last passes brought events to. It is for consumers, which cannot be woken here: they call it often, so it reads one
-- row. Raises PS018.
CREATE PROCEDURE grown_since(after BIGINT)
READS SQL DATA
BEGIN
    CALL refuse_serializable('grown_since()');
    SELECT s.pass_number AS newest, IF(s.pass_number <=> after, '', s.recent_passes) AS grown FROM sequencer AS s;
END;

-- name: sequence
-- One pass of the sequencer: gives committed events their sequences. It never waits for an open transaction; an event
-- that commits late comes with the next pass. Each pass looks for all late blocks, because a transaction that began
-- to publish after a late commit must not come before it. After a restore, the pass repairs first what the restore
-- has left. busy: another session is sequencing. more: call again at once. Raises PS006, PS018.
CREATE PROCEDURE `sequence`(max_events INT)
pass: BEGIN
    DECLARE wanted INT DEFAULT LEAST(max_events, 50000);
    DECLARE present, due_done, last_pass DATETIME(6);
    DECLARE bottom, settled, last_block, id_done, sequenced BIGINT DEFAULT 0;
    DECLARE from_delayed, blocks INT DEFAULT 0;
    DECLARE is_all, is_cut, busy, more, is_repair BOOLEAN DEFAULT FALSE;
    DECLARE grown LONGTEXT DEFAULT '[]';
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET busy = TRUE;
    {{on error: CALL undo_call()}}
    CALL begin_call('sequence()');
    CALL require_read_committed('sequence()');
    IF max_events IS NULL OR max_events NOT BETWEEN 1 AND 1000000 THEN
        CALL refuse('PS006', CONCAT('a pass of ', COALESCE(max_events, 'NULL'), ' events: use 1 to 1,000,000'));
    END IF;
    SELECT s.floor_block, s.settled_block, s.delayed_due, s.delayed_id, s.passed_at
    INTO bottom, settled, due_done, id_done, last_pass
    FROM sequencer AS s
    FOR UPDATE SKIP LOCKED;
    IF busy THEN
        SELECT 0 AS sequenced, more AS more, busy AS busy, grown AS grown;
        CALL end_call();
        LEAVE pass;
    END IF;
    SET present = UTC_TIMESTAMP(6);
    CALL enter_era(CONCAT_WS(' ', settled, due_done, id_done, last_pass), is_repair);
    IF is_repair THEN
        CALL repair_pass(wanted, present, due_done, id_done, sequenced, grown);
        CALL note_pass(sequenced, grown);
        SELECT sequenced AS sequenced, TRUE AS more, busy AS busy, grown AS grown;
        CALL end_call();
        LEAVE pass;
    END IF;
    CALL collect_batch(wanted, present, due_done, id_done);
    SELECT COUNT(*), COALESCE(MAX(b.due), due_done) INTO from_delayed, due_done FROM batch AS b;
    IF from_delayed > 0 THEN
        SELECT MAX(b.id) INTO id_done FROM batch AS b WHERE b.due = due_done;
    END IF;
    IF NOT has_looked_below() THEN
        CALL look_below_floor(bottom);
    END IF;
    CALL claim_blocks(bottom, wanted - from_delayed, is_all);
    CALL cut_claimed(wanted - from_delayed, last_block, is_cut);
    SET more = is_cut OR NOT is_all OR from_delayed = wanted;
    CALL collect_claimed(present);
    SELECT COUNT(*) INTO blocks FROM claimed AS c;
    IF blocks = 0 AND from_delayed = 0 THEN
        SELECT 0 AS sequenced, more AS more, busy AS busy, grown AS grown;
        CALL end_call();
        LEAVE pass;
    END IF;
    CALL append_chunks(present, sequenced, grown);
    CALL forget_claimed();
    CALL note_pass(sequenced, grown);
    IF settled - bottom >= 1000 THEN
        CALL raise_floor(settled, bottom);
    END IF;
    SET settled = GREATEST(settled, last_block),
        last_pass = IF(sequenced > 0, present, last_pass),
        @penstock_state = IF(@penstock_state IS NULL, NULL, CONCAT_WS(' ', settled, due_done, id_done, last_pass));
    UPDATE sequencer
    SET floor_block = bottom, settled_block = settled, delayed_due = due_done, delayed_id = id_done,
        passed_at = last_pass
    WHERE singleton;
    SELECT sequenced AS sequenced, more AS more, busy AS busy, grown AS grown;
    CALL end_call();
END;

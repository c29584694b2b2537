-- By design: the sequencers find their events differently, so an idle one asks differently too.

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

-- name: unsequenced
-- How many committed events wait for their sequence (counted up to 10,000 blocks) and for how long the oldest
-- of them has waited.
CREATE PROCEDURE unsequenced()
READS SQL DATA
BEGIN
    DECLARE waiting, lowest BIGINT DEFAULT 0;
    CALL refuse_serializable('unsequenced()');
    CALL find_unsequenced(waiting, lowest);
    SELECT waiting AS events, COALESCE((
        SELECT TIMESTAMPDIFF(MICROSECOND, e.created_at, UTC_TIMESTAMP(6)) / 1e6
        FROM events AS e
        WHERE e.id = lowest), 0e0) AS oldest_age_seconds;
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
           SELECT * FROM delayed_events AS d FORCE INDEX (PRIMARY)
           WHERE d.due >= s.delayed_due AND d.due <= UTC_TIMESTAMP(6)
              AND NOT (d.due = s.delayed_due AND d.id <= s.delayed_id)) AS nothing_waits
    FROM sequencer AS s;
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

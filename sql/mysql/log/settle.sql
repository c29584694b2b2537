-- By design: only MySQL has a floor below which every block of ids is settled.

-- name: settle_blocks
-- Raises the floor as far as it goes, for clean: a pass does so only occasionally. Returns whether another
-- session is sequencing. Raises PS018.
CREATE PROCEDURE settle_blocks()
settle: BEGIN
    DECLARE bottom, settled BIGINT;
    DECLARE busy BOOLEAN DEFAULT FALSE;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET busy = TRUE;
    {{on error: CALL undo_call()}}
    CALL begin_call('settle_blocks()');
    CALL require_read_committed('settle_blocks()');
    SELECT s.floor_block, s.settled_block INTO bottom, settled FROM sequencer AS s FOR UPDATE SKIP LOCKED;
    IF NOT busy THEN
        CALL raise_floor(settled, bottom);
        UPDATE sequencer SET floor_block = bottom WHERE singleton;
    END IF;
    SELECT busy AS busy;
    CALL end_call();
END;

-- name: raise_event_ids
-- Raises the counter of pending above what was sequenced or waits, for clean: it may have been set back by hand, and
-- then new events would come into a slice that is about to be dropped. Raises PS018.
CREATE PROCEDURE raise_event_ids()
BEGIN
    {{on error: CALL undo_call()}}
    CALL begin_call('raise_event_ids()');
    CALL require_read_committed('raise_event_ids()');
    CALL hold_sequencer();
    CALL raise_block_counter();
    CALL end_call();
END;

-- name: settle_block
-- Decides whether a block that the log does not hold can still come. If its row is locked, or was committed just now,
-- the block is recorded as late. If there is no row, its publisher rolled back, or has taken the number and not yet
-- written the row. So the sequencer takes the number itself, with no events: a publisher that then writes the row
-- gets a duplicate key and takes another number.
CREATE PROCEDURE settle_block(of_block BIGINT)
BEGIN
    DECLARE found INT;
    DECLARE is_open BOOLEAN DEFAULT FALSE;
    -- The errors of both engines for a row that is locked, or that was committed since it was looked for.
    DECLARE CONTINUE HANDLER FOR 1062, 1205, 3572 SET is_open = TRUE;
    SELECT MAX(p.event_count) INTO found
    FROM pending AS p FORCE INDEX (PRIMARY)
    WHERE p.block = of_block
    FOR UPDATE /*!80000 NOWAIT */;
    IF NOT is_open AND found IS NULL THEN
        INSERT INTO pending (block, event_count) VALUES (of_block, 0);
    END IF;
    IF is_open OR found > 0 THEN
        INSERT IGNORE INTO late_blocks (block) VALUES (of_block);
    ELSE
        DELETE FROM late_blocks WHERE block = of_block;
    END IF;
END;

-- name: raise_floor
-- Raises the floor, up to the first 1,000 blocks that the log does not hold; each of these is then settled by itself.
-- Below the floor only late blocks can come, so that a pass need not step over rows of long ago: deleted rows stay in
-- the index as long as a session has an old read view. A block is in the log when its first event is committed and
-- the block is not pending; one statement reads both. The caller has locked the sequencer's row.
CREATE PROCEDURE raise_floor(reached BIGINT, INOUT bottom BIGINT)
raise: BEGIN
    DECLARE of_block BIGINT;
    DECLARE unknown INT;
    DECLARE wait_before INT DEFAULT @@SESSION.innodb_lock_wait_timeout;
    DECLARE is_done BOOLEAN DEFAULT FALSE;
    DECLARE doubtful CURSOR FOR SELECT u.block FROM unsettled AS u ORDER BY u.block;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET is_done = TRUE;
    {{on error: SET SESSION innodb_lock_wait_timeout = wait_before}}
    IF @@GLOBAL.innodb_rollback_on_timeout THEN
        -- A lock that cannot be taken would roll back the whole pass, so here every pass looks at everything.
        LEAVE raise;
    END IF;
    CREATE TEMPORARY TABLE IF NOT EXISTS unsettled (block BIGINT NOT NULL PRIMARY KEY) ENGINE = MEMORY;
    DELETE FROM unsettled;
    SET reached = LEAST(reached, bottom + 50000);
    INSERT INTO unsettled (block)
    SELECT STRAIGHT_JOIN bottom + 1 + n.n
    FROM numbers AS n
    LEFT JOIN events AS e FORCE INDEX (PRIMARY) ON e.id = (bottom + 1 + n.n) * 256
    LEFT JOIN pending AS p FORCE INDEX (PRIMARY) ON p.block = bottom + 1 + n.n
    WHERE n.n < reached - bottom AND (e.id IS NULL OR p.block IS NOT NULL)
    ORDER BY n.n
    LIMIT 1000;
    SELECT COUNT(*), COALESCE(MAX(u.block), 0) INTO unknown, of_block FROM unsettled AS u;
    SET bottom = IF(unknown = 1000, of_block, reached);
    INSERT IGNORE INTO unsettled (block)
    SELECT l.block
    FROM late_blocks AS l
    WHERE l.block <= bottom
    ORDER BY l.block
    LIMIT 1000;
    -- MariaDB has NOWAIT only outside procedures, so there this setting replaces it; on MySQL it is the shortest wait
    -- that can be set.
    SET SESSION innodb_lock_wait_timeout = /*!80000 1 */ /*M! 0 */;
    OPEN doubtful;
    settle: LOOP
        FETCH doubtful INTO of_block;
        IF is_done THEN
            LEAVE settle;
        END IF;
        CALL settle_block(of_block);
    END LOOP;
    CLOSE doubtful;
    SET SESSION innodb_lock_wait_timeout = wait_before;
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

-- By design: only MySQL has a floor below which every block of ids is settled.

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

-- name: has_looked_below
-- Whether this session has looked below the floor in the last ten seconds, and found nothing. There, only late blocks
-- can wait, unless somebody has set the counter of pending back by hand. The look steps over every deleted row that an
-- old read view keeps, so it is not made each time.
CREATE FUNCTION has_looked_below() RETURNS BOOLEAN
NO SQL
BEGIN
    RETURN COALESCE(CAST(@penstock_looked AS CHAR) REGEXP '^[0-9]{1,15}$'
                    AND @penstock_looked BETWEEN UNIX_TIMESTAMP() - 9 AND UNIX_TIMESTAMP(), FALSE);
END;

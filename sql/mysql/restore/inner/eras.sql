-- By design: transaction numbers begin again with an era on PostgreSQL; MySQL has none in its rows.

-- name: open_era
-- Begins a new era after a restore, and with it a new history. After the load of a dump, pending and the index of the
-- log may contradict each other, so they are compared. A replica or a copy of the files is as consistent as the
-- server was.
CREATE PROCEDURE open_era(server VARCHAR(200), made BIGINT, is_loaded BOOLEAN)
BEGIN
    DECLARE boundary, first_id BIGINT;
    DECLARE number, opened INT;
    DECLARE oldest_at DATETIME(6) DEFAULT '2000-01-01';
    CALL find_highest_id(boundary);
    SET first_id = boundary + 1;
    IF is_loaded THEN
        CALL find_doubtful(boundary, first_id, oldest_at);
        -- A block that the repair cannot lock is left to an ordinary pass, which looks above the floor.
        UPDATE sequencer SET floor_block = LEAST(floor_block, GREATEST(first_id DIV 256 - 1, 0)) WHERE singleton;
    END IF;
    SELECT MAX(e.era) + 1 INTO number FROM eras AS e;
    INSERT INTO eras (era, server, made, boundary_id, repaired_id, oldest_at)
    VALUES (number, server, made, boundary, first_id - 1, oldest_at);
    CALL open_history(CONCAT('era ', number, ': another server, or one that a dump was loaded into'), opened);
END;

-- name: enter_era
-- Opens the next era if the log has moved to another server or was restored. state is the sequencer's row: while it
-- is as this session has left it, nothing was restored meanwhile, and the slow query of the catalog is not needed.
-- Returns whether a repair is under way.
CREATE PROCEDURE enter_era(state VARCHAR(200), OUT is_repair BOOLEAN)
BEGIN
    DECLARE server_now, server_then VARCHAR(200);
    DECLARE made_now, made_then BIGINT;
    IF NOT COALESCE(state = @penstock_state, FALSE) THEN
        SET @penstock_state = state;
        CALL log_identity(server_now, made_now);
        SELECT MAX(n.server), MAX(n.made) INTO server_then, made_then
        FROM (SELECT e.server, e.made FROM eras AS e ORDER BY e.era DESC LIMIT 1) AS n;
        IF server_then IS NULL THEN
            INSERT INTO eras (era, server, made, boundary_id, repaired_id, oldest_at)
            VALUES (1, server_now, made_now, 0, 0, '2000-01-01');
        ELSEIF server_then <> server_now OR made_then <> made_now THEN
            -- If this is rolled back, it has to be looked at again.
            SET @penstock_state = NULL;
            CALL open_era(server_now, made_now, made_then <> made_now);
        END IF;
    END IF;
    SELECT COUNT(*) INTO is_repair
    FROM (SELECT e.boundary_id, e.repaired_id FROM eras AS e ORDER BY e.era DESC LIMIT 1) AS n
    WHERE n.repaired_id < n.boundary_id;
END;

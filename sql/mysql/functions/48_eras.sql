-- name: find_log_identity
-- Which server this is, and when log_mark was made (seconds since 1970). MySQL keeps the first in its data directory:
-- a copy of the directory has the same one, a replica another one. The second is the time of the CREATE TABLE.
-- MariaDB identifies a server only by its server_id, which replicas must not share; but there the second is the time
-- of the file, so that a copy of the files is recognized too.
CREATE PROCEDURE find_log_identity(OUT server VARCHAR(200), OUT made BIGINT)
READS SQL DATA
BEGIN
    DECLARE zone VARCHAR(64) DEFAULT @@SESSION.time_zone;
    -- In a zone with summer time, one hour of the year occurs twice.
    SET SESSION time_zone = '+00:00';
    SELECT COALESCE(MAX(UNIX_TIMESTAMP(t.CREATE_TIME)), 0) INTO made
    FROM information_schema.TABLES AS t
    WHERE t.TABLE_SCHEMA = DATABASE() AND t.TABLE_NAME = 'log_mark';
    SET SESSION time_zone = zone;
    SET server = /*!80000 @@GLOBAL.server_uuid */ /*M! @@GLOBAL.server_id */;
END;

-- name: find_highest_id
-- The highest event id that occurs anywhere in the log.
CREATE PROCEDURE find_highest_id(OUT highest BIGINT)
READS SQL DATA
BEGIN
    SELECT GREATEST(s.settled_block * 256 + 255, COALESCE((SELECT MAX(p.block) * 256 + 255 FROM pending AS p), 0),
                    COALESCE((SELECT MAX(e.id) FROM events AS e), 0),
                    COALESCE((SELECT MAX(c.last_id) FROM chunks AS c), 0))
    INTO highest
    FROM sequencer AS s;
END;

-- name: raise_blocks_above
-- Raises the counter of blocks above an event id. To raise a counter for good, this inserts a row with an explicit
-- number and deletes it before anyone sees it.
CREATE PROCEDURE raise_blocks_above(highest BIGINT)
BEGIN
    DECLARE given BIGINT;
    INSERT INTO pending (event_count) VALUES (1);
    SET given = LAST_INSERT_ID();
    DELETE FROM pending WHERE block = given;
    IF given <= highest DIV 256 THEN
        INSERT INTO pending (block, event_count) VALUES (highest DIV 256 + 1, 1);
        DELETE FROM pending WHERE block = highest DIV 256 + 1;
    END IF;
END;

-- name: raise_block_counter
-- Raises the counter of blocks above what was sequenced or waits, in a log that runs. The caller has locked the
-- sequencer's row.
CREATE PROCEDURE raise_block_counter()
BEGIN
    DECLARE reached BIGINT;
    SELECT GREATEST(s.settled_block, COALESCE((SELECT MAX(p.block) FROM pending AS p), 0)) INTO reached
    FROM sequencer AS s;
    CALL raise_blocks_above(reached * 256);
END;

-- name: raise_counters
-- After a restore: raises the counters, so that no id is given out a second time. A dump of only the rows does not
-- contain the counters, and pending is usually empty. Events that were published with a counter that was set back
-- wait below the floor; look_below_floor finds them.
CREATE PROCEDURE raise_counters()
BEGIN
    DECLARE gone_topic, last_topic, highest BIGINT;
    CALL find_highest_id(highest);
    CALL raise_blocks_above(highest);
    -- The events of a topic with the id of a deleted one would be discarded.
    SELECT MAX(d.topic_id) INTO gone_topic FROM deleted_topics AS d;
    SELECT MAX(t.id) INTO last_topic FROM topics AS t;
    IF gone_topic > COALESCE(last_topic, 0) THEN
        INSERT INTO topics (id, namespace_id, name, address, partitions) VALUES (gone_topic, 0, '', '', 1);
        DELETE FROM topics WHERE id = gone_topic;
    END IF;
    CALL raise_other_counters();
END;

-- name: raise_other_counters
-- The same for ids of rows that may be deleted while other rows still refer to them. Otherwise a new subscription
-- would take the positions of a deleted one with its id, a new block the failures of an old one, and a queue could deal
-- nothing.
CREATE PROCEDURE raise_other_counters()
BEGIN
    DECLARE gone, last BIGINT;
    SELECT GREATEST(COALESCE((SELECT MAX(p.subscription_id) FROM positions AS p), 0),
                    COALESCE((SELECT MAX(h.subscription_id) FROM lease_history AS h), 0),
                    COALESCE((SELECT MAX(b.subscription_id) FROM blocks AS b), 0),
                    COALESCE((SELECT MAX(d.subscription_id) FROM dropped_letters AS d), 0),
                    COALESCE((SELECT MAX(m.subscription_id) FROM removals AS m), 0))
    INTO gone;
    SELECT MAX(s.id) INTO last FROM subscriptions AS s;
    IF gone > COALESCE(last, 0) THEN
        INSERT INTO subscriptions (id, name) VALUES (gone, '');
        DELETE FROM subscriptions WHERE id = gone;
    END IF;
    SELECT MAX(f.block_id) INTO gone FROM relay_failures AS f;
    SELECT MAX(b.id) INTO last FROM blocks AS b;
    IF gone > COALESCE(last, 0) THEN
        INSERT INTO blocks (id, subscription_id, partition_id, first_sequence, last_sequence, lease_epoch)
        VALUES (gone, 0, 0, 0, 0, 0);
        DELETE FROM blocks WHERE id = gone;
    END IF;
    SELECT MAX(d.id) INTO gone FROM dropped_letters AS d;
    SELECT MAX(d.id) INTO last FROM dead_letters AS d;
    IF gone > COALESCE(last, 0) THEN
        INSERT INTO dead_letters (
            subscription_id, partition_id, sequence, history, event_id, type, content_type, payload, created_at, reason,
            id)
        VALUES (0, 0, 0, 0, REPEAT(CHAR(0), 16), '', '', '', UTC_TIMESTAMP(6), '', gone);
        DELETE FROM dead_letters WHERE id = gone;
    END IF;
    SELECT MAX(t.last_id) INTO gone FROM queue_turns AS t;
    SELECT MAX(r.id) INTO last FROM queue_ranges AS r;
    IF gone > COALESCE(last, 0) THEN
        INSERT INTO queue_ranges (id, subscription_id, partition_id, first_sequence, last_sequence)
        VALUES (gone, 0, 0, 0, 0);
        DELETE FROM queue_ranges WHERE subscription_id = 0 AND id = gone;
    END IF;
END;

-- name: find_doubtful
-- For a log that was loaded from a dump: the first id that has to be compared with the index. It is the lowest id
-- that waits, or the id of a day before the newest event, because a dump is inconsistent only about events that were
-- in flight while it was made. oldest_at: no event above the first id is older than this.
CREATE PROCEDURE find_doubtful(boundary BIGINT, OUT first_id BIGINT, OUT oldest_at DATETIME(6))
READS SQL DATA
BEGIN
    DECLARE low, middle, waiting BIGINT DEFAULT 0;
    DECLARE high BIGINT DEFAULT boundary;
    DECLARE here, since DATETIME(6);
    SELECT MAX(n.created_at) - INTERVAL 1 DAY INTO since
    FROM (SELECT e.created_at FROM events AS e ORDER BY e.id DESC LIMIT 1) AS n;
    WHILE high - low > 256 DO
        SET middle = (low + high) DIV 2;
        SELECT MAX(n.created_at) INTO here
        FROM (SELECT e.created_at FROM events AS e WHERE e.id >= middle ORDER BY e.id LIMIT 1) AS n;
        IF COALESCE(here >= since, TRUE) THEN
            SET high = middle;
        ELSE
            SET low = middle;
        END IF;
    END WHILE;
    SELECT COALESCE(MIN(p.block) * 256, low) INTO waiting FROM pending AS p WHERE p.event_count > 0;
    SET first_id = LEAST(low, waiting) DIV 256 * 256;
    SELECT MIN(n.created_at) INTO here
    FROM (SELECT e.created_at FROM events AS e WHERE e.id >= first_id ORDER BY e.id LIMIT 1) AS n;
    -- The clock may have been put back a little between a publish and its sequence.
    SET oldest_at = COALESCE(LEAST(here, since), '2000-01-02') - INTERVAL 1 HOUR;
END;

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
        CALL find_log_identity(server_now, made_now);
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

-- name: find_needs_repair
-- Whether events from before the last restore may lack their sequence although nothing waits: the new era has just
-- begun, or has yet to begin because no pass has noticed the restore.
CREATE PROCEDURE find_needs_repair(OUT is_needed BOOLEAN)
READS SQL DATA
BEGIN
    DECLARE server_now VARCHAR(200);
    DECLARE made_now BIGINT;
    CALL find_log_identity(server_now, made_now);
    SELECT COUNT(*) INTO is_needed
    FROM (SELECT e.* FROM eras AS e ORDER BY e.era DESC LIMIT 1) AS n
    WHERE n.repaired_id < n.boundary_id OR n.server <> server_now OR n.made <> made_now;
END;

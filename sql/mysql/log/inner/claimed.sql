-- By design: MySQL's sequencer claims the blocks that wait; PostgreSQL's works on the differences between snapshots.

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
    FROM delayed_events AS d FORCE INDEX (PRIMARY)
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

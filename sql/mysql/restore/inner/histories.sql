-- name: open_history
-- Begins the next history. A sequence that was read in the history before may be another event now. So every holder
-- loses its lease and has to ask for position and history again. Positions beyond the log are moved back to its end,
-- bookmarks beyond it are marked as lost, stopped partitions continue, and no id is given out twice. The caller has
-- locked the sequencer's row.
CREATE PROCEDURE open_history(reason TEXT, OUT opened INT)
BEGIN
    DECLARE owner_id, part_id BIGINT;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE leased CURSOR FOR
        SELECT l.subscription_id, l.partition_id FROM leases AS l ORDER BY l.subscription_id, l.partition_id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    CALL raise_counters();
    SELECT MAX(h.history) + 1 INTO opened FROM histories AS h;
    INSERT INTO histories (history, reason) VALUES (opened, LEFT(reason, 2000));
    INSERT INTO history_starts (partition_id, history, position)
    SELECT p.id, opened, high_watermark(p.id) FROM partitions AS p;
    OPEN leased;
    lease: LOOP
        FETCH leased INTO owner_id, part_id;
        IF done THEN
            LEAVE lease;
        END IF;
        CALL bring_back(owner_id, part_id, opened);
    END LOOP;
    CLOSE leased;
    CALL cut_relays_back();
    CALL mark_lost_bookmarks(opened);
    DELETE FROM stops;
END;

-- name: bring_back
-- Takes one lease from its holder when a history begins, and moves its position back to the end of the log if it is
-- beyond. lease_epoch rises above every value that can have been given out in the lost time.
CREATE PROCEDURE bring_back(owner_id BIGINT, part_id BIGINT, opened INT)
BEGIN
    DECLARE held_epoch, watermark, stands_at BIGINT;
    DECLARE held_by VARCHAR(255);
    SELECT GREATEST(l.lease_epoch, opened * 4294967296) + 1, l.holder INTO held_epoch, held_by
    FROM leases AS l WHERE l.subscription_id = owner_id AND l.partition_id = part_id
    FOR UPDATE;
    UPDATE leases AS l
    SET l.state = 'AVAILABLE', l.holder = NULL, l.acquired_at = NULL, l.release_deadline = NULL,
        l.lease_epoch = held_epoch
    WHERE l.subscription_id = owner_id AND l.partition_id = part_id;
    IF held_by IS NOT NULL THEN
        INSERT INTO lease_history (subscription_id, partition_id, lease_epoch, holder, `change`, at)
        VALUES (owner_id, part_id, held_epoch, held_by, 'history', UTC_TIMESTAMP(6));
    END IF;
    SET watermark = high_watermark(part_id), stands_at = current_position(owner_id, part_id);
    IF GREATEST(stands_at, current_reached(owner_id, part_id)) > watermark THEN
        INSERT INTO positions (subscription_id, partition_id, position, lease_epoch, reason, reached)
        VALUES (owner_id, part_id, LEAST(stands_at, watermark), held_epoch, 'history', watermark);
        CALL cut_back(owner_id, part_id, watermark);
        CALL send_after(owner_id, part_id, watermark);
    END IF;
END;

-- name: mark_lost_bookmarks
-- Marks the bookmarks that lie beyond the end of the log: other events will get their sequences.
CREATE PROCEDURE mark_lost_bookmarks(opened INT)
BEGIN
    UPDATE bookmarks AS b SET b.lost_in = opened
    WHERE b.lost_in IS NULL AND b.position > high_watermark(b.partition_id);
END;

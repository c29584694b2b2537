-- By design: a slice is a table of its own on PostgreSQL, and a partition that only a program can drop on MySQL.

-- name: carry_positions
-- Copies positions whose newest row lies in a full slice to the newest slice, so that the old one can be dropped.
-- Returns how many. A lease that somebody holds locked is left to the next call, because its position may be about to
-- move. That a person has put a position there stays known. Nothing is copied while that would be more than is thrown
-- away. Raises PS018.
CREATE PROCEDURE carry_positions(max_rows INT)
carry: BEGIN
    DECLARE first_full, last_full, stale, owner_id, part_id, newest BIGINT;
    DECLARE carried INT DEFAULT 0;
    DECLARE is_held, done BOOLEAN DEFAULT FALSE;
    DECLARE old_ones CURSOR FOR
        SELECT n.subscription_id, n.partition_id
        FROM newest_positions AS n
        WHERE n.id <= last_full
        ORDER BY n.subscription_id, n.partition_id
        LIMIT max_rows;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    {{on error: CALL undo_call()}}
    CALL begin_call('carry_positions()');
    CALL require_read_committed('carry_positions()');
    SELECT MIN(s.first_id), MAX(s.last_id) INTO first_full, last_full
    FROM slices AS s
    WHERE s.parent = 'positions' AND s.last_id < (SELECT MAX(p.id) FROM positions AS p);
    SELECT COUNT(*) INTO stale FROM newest_positions AS n WHERE n.id <= last_full;
    IF stale > (last_full - first_full + 1) / 2 OR last_full IS NULL THEN
        SELECT 0 AS carried;
        CALL end_call();
        LEAVE carry;
    END IF;
    OPEN old_ones;
    each_lease: LOOP
        FETCH old_ones INTO owner_id, part_id;
        IF done THEN
            LEAVE each_lease;
        END IF;
        SELECT COUNT(*) INTO is_held
        FROM leases AS l
        WHERE l.subscription_id = owner_id AND l.partition_id = part_id
        FOR UPDATE SKIP LOCKED;
        -- Asked again under the lock.
        SELECT MAX(n.id) INTO newest
        FROM newest_positions AS n
        WHERE n.subscription_id = owner_id AND n.partition_id = part_id;
        IF is_held AND newest <= last_full THEN
            INSERT INTO positions (subscription_id, partition_id, position, reached, lease_epoch, reason, at)
            SELECT p.subscription_id, p.partition_id, p.position, p.reached, p.lease_epoch,
                   IF(p.reason IN ('start', 'seek'), p.reason, 'carried'), p.at
            FROM positions AS p
            WHERE p.id = newest;
            SET carried = carried + 1;
        END IF;
    END LOOP;
    CLOSE old_ones;
    SELECT carried AS carried;
    CALL end_call();
END;

-- name: droppable_slices
-- The slices that nobody needs, by what is committed: events that are all logically gone, positions older than
-- the newest of each lease, blocks before the first that is open, leases of a week ago. Before a slice is
-- dropped, this is asked again after a lock that has waited for every transaction which had written to the ledger or,
-- for events, had taken a number: from then on its rows only become less needed.
CREATE PROCEDURE droppable_slices()
READS SQL DATA
BEGIN
    DECLARE settled_id, first_position, first_block BIGINT;
    CALL refuse_serializable('droppable_slices()');
    CALL settled_events(settled_id);
    SELECT COALESCE(MIN(n.id), 9223372036854775807) INTO first_position FROM newest_positions AS n;
    SET first_block = first_open_block();
    SELECT s.parent, s.slice, s.first_id, s.last_id
    FROM slices AS s JOIN slice_sources AS u ON u.parent = s.parent
    WHERE s.last_id < u.used AND CASE s.parent
        WHEN 'events' THEN s.last_id < settled_id
            AND NOT EXISTS (SELECT * FROM delayed_events AS d WHERE d.id BETWEEN s.first_id AND s.last_id)
            AND NOT EXISTS (
                SELECT * FROM needed_events AS n
                WHERE n.first_id <= s.last_id AND n.last_id >= s.first_id AND n.id BETWEEN s.first_id AND s.last_id)
        WHEN 'positions' THEN s.last_id < first_position
        WHEN 'lease_history' THEN NOT EXISTS (
            SELECT * FROM lease_history AS h
            WHERE h.id BETWEEN s.first_id AND s.last_id AND h.at > UTC_TIMESTAMP(6) - INTERVAL 7 DAY)
        ELSE s.last_id < first_block
    END
    ORDER BY s.parent, s.first_id;
END;

-- name: sparse_slices
-- The slices of events of which less than the share kept_share is still needed: what is needed can take the place of
-- the whole. How many events a slice holds is the engine's estimate, which grows with every insert.
CREATE PROCEDURE sparse_slices()
READS SQL DATA
BEGIN
    DECLARE settled_id, expiry BIGINT;
    DECLARE share DOUBLE;
    CALL refuse_serializable('sparse_slices()');
    CALL settled_events(settled_id);
    CALL find_setting('kept_share', share);
    /*!80000 SET expiry = @@SESSION.information_schema_stats_expiry, @@SESSION.information_schema_stats_expiry = 0; */
    SELECT f.slice, f.first_id, f.last_id
    FROM (
        SELECT s.slice, s.first_id, s.last_id, s.row_estimate, (
                   SELECT COUNT(*) FROM needed_events AS n
                   WHERE n.first_id <= s.last_id AND n.last_id >= s.first_id AND n.id BETWEEN s.first_id AND s.last_id
               ) + (SELECT COUNT(*) FROM delayed_events AS d WHERE d.id BETWEEN s.first_id AND s.last_id) AS needed
        FROM slices AS s
        WHERE s.parent = 'events' AND s.last_id < settled_id
    ) AS f
    -- Not again, when what is there was kept.
    WHERE f.needed BETWEEN 1 AND LEAST(share, 0.5) * f.row_estimate
    ORDER BY f.first_id;
    /*!80000 SET @@SESSION.information_schema_stats_expiry = expiry; */
END;

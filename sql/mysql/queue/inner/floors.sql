-- name: move_floors
-- Moves the position of each partition to before its lowest unfinished event. Events out of the window are copies and
-- do not count; what waits behind its key does. A lease row that is locked is left to the next turn.
CREATE PROCEDURE move_floors(owner_id BIGINT, floor_id BIGINT)
BEGIN
    DECLARE part_id, held_epoch, lowest, dealt_to BIGINT;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE moved CURSOR FOR
        SELECT l.partition_id, COALESCE(u.sequence - 1, current_reached(owner_id, l.partition_id))
        FROM leases AS l
        LEFT JOIN (
            SELECT n.partition_id, MIN(n.sequence) AS sequence
            FROM (
                SELECT r.partition_id, r.first_sequence AS sequence
                FROM queue_ranges AS r
                WHERE r.subscription_id = owner_id AND r.id >= floor_id AND r.waiting_id IS NULL
                UNION ALL
                SELECT k.partition_id, MIN(k.sequence)
                FROM queue_keys AS k FORCE INDEX (queue_keys_state)
                WHERE k.subscription_id = owner_id AND k.state IN ('behind', 'unsure') AND k.waiting_id = 0
                GROUP BY k.partition_id
            ) AS n
            GROUP BY n.partition_id
        ) AS u ON u.partition_id = l.partition_id
        WHERE l.subscription_id = owner_id
          AND COALESCE(u.sequence - 1, current_reached(owner_id, l.partition_id))
              > current_position(owner_id, l.partition_id)
        ORDER BY l.partition_id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    OPEN moved;
    each_part: LOOP
        FETCH moved INTO part_id, lowest;
        IF done THEN
            LEAVE each_part;
        END IF;
        SET held_epoch = (
            SELECT l.lease_epoch FROM leases AS l
            WHERE l.subscription_id = owner_id AND l.partition_id = part_id
            FOR UPDATE SKIP LOCKED);
        -- Asked again under the lock: a new history may have brought the position back.
        SET dealt_to = current_reached(owner_id, part_id);
        IF held_epoch IS NOT NULL AND lowest <= dealt_to THEN
            INSERT INTO positions (subscription_id, partition_id, position, lease_epoch, reason, reached)
            VALUES (owner_id, part_id, lowest, held_epoch, 'queue', dealt_to);
        END IF;
    END LOOP;
    CLOSE moved;
END;

-- name: move_idle_floors
-- Moves the positions of queues from which nobody receives any more: what was finished after the last receive. A queue
-- whose position cannot move is left out, or as many of them would hide all later ones. Needs READ COMMITTED: an older
-- snapshot does not see what another session dealt before this one had the lock.
CREATE PROCEDURE move_idle_floors(max_rows INT)
BEGIN
    DECLARE found_id, owner_id, seen_floor BIGINT;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE idle CURSOR FOR
        SELECT t.subscription_id
        FROM queue_turns AS t
        WHERE t.rest_until NOT BETWEEN UTC_TIMESTAMP(6) AND UTC_TIMESTAMP(6) + INTERVAL 5 SECOND AND EXISTS (
            SELECT * FROM leases AS l
            WHERE l.subscription_id = t.subscription_id
              AND current_position(t.subscription_id, l.partition_id)
                  < current_reached(t.subscription_id, l.partition_id)
              AND NOT is_in_hand(t.subscription_id, l.partition_id,
                                 current_position(t.subscription_id, l.partition_id) + 1, t.floor_id))
        ORDER BY t.subscription_id
        LIMIT max_rows;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    OPEN idle;
    each_queue: LOOP
        FETCH idle INTO found_id;
        IF done THEN
            LEAVE each_queue;
        END IF;
        SET owner_id = (
            SELECT q.subscription_id FROM queues AS q WHERE q.subscription_id = found_id FOR UPDATE SKIP LOCKED);
        IF owner_id IS NOT NULL THEN
            SELECT t.floor_id INTO seen_floor FROM queue_turns AS t WHERE t.subscription_id = owner_id;
            CALL move_floors(owner_id, seen_floor);
        END IF;
    END LOOP;
    CLOSE idle;
END;

-- name: unfinished
-- The sequences of a range whose bits are not set.
CREATE OR REPLACE FUNCTION unfinished(first_sequence bigint, last_sequence bigint, finished bit varying)
RETURNS SETOF bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT s
    FROM generate_series(unfinished.first_sequence, unfinished.last_sequence) AS s
    WHERE unfinished.finished IS NULL OR get_bit(unfinished.finished, (s - unfinished.first_sequence)::integer) = 0
$$;

-- name: first_unfinished
-- The first sequence of a range whose bit is not set.
CREATE OR REPLACE FUNCTION first_unfinished(range queue_ranges) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF range.finished IS NULL THEN
        RETURN range.first_sequence;
    END IF;
    RETURN min(s) FROM unfinished(range.first_sequence, range.last_sequence, range.finished) AS s;
END
$$;

-- name: move_floors
-- Moves the position of each partition to before its lowest unfinished event. Events out of the window are copies and
-- do not count; what waits behind its key does. A lease row that is locked is left to the next turn.
CREATE OR REPLACE FUNCTION move_floors(queue queues, floor_id bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    WITH present AS MATERIALIZED (
        SELECT r.partition_id, min(
                   CASE WHEN r.finished IS NULL THEN r.first_sequence ELSE first_unfinished(r) END) AS sequence
        FROM queue_ranges AS r
        WHERE r.subscription_id = queue.subscription_id AND r.id >= move_floors.floor_id AND r.waiting_id IS NULL
        GROUP BY r.partition_id
        UNION ALL
        SELECT k.partition_id, min(k.sequence)
        FROM queue_keys AS k
        WHERE queue."order" = 'key' AND k.subscription_id = queue.subscription_id AND k.state <> 'first'
          AND k.waiting_id = 0
        GROUP BY k.partition_id
    ), unfinished AS MATERIALIZED (
        SELECT p.partition_id, min(p.sequence) AS sequence FROM present AS p GROUP BY p.partition_id
    ), moved AS MATERIALIZED (
        SELECT l.partition_id, l.lease_epoch, stands.reached, COALESCE(u.sequence - 1, stands.reached) AS position
        FROM leases AS l
        CROSS JOIN LATERAL (
            SELECT o.position, COALESCE(o.reached, o.position) AS reached
            FROM positions AS o
            WHERE o.subscription_id = l.subscription_id AND o.partition_id = l.partition_id
            ORDER BY o.id DESC
            LIMIT 1
        ) AS stands
        LEFT JOIN unfinished AS u ON u.partition_id = l.partition_id
        WHERE l.subscription_id = queue.subscription_id
          AND COALESCE(u.sequence - 1, stands.reached) > stands.position
        FOR NO KEY UPDATE OF l SKIP LOCKED
    )
    INSERT INTO positions (subscription_id, partition_id, position, lease_epoch, reason, reached)
    SELECT queue.subscription_id, m.partition_id, m.position, m.lease_epoch, 'queue', m.reached
    FROM moved AS m;
END
$$;

-- name: move_idle_floors
-- Moves the positions of queues from which nobody receives any more: what was finished after the last receive. A queue
-- whose position cannot move is left out, or as many of them would hide all later ones. Needs READ COMMITTED: an older
-- snapshot does not see what another session dealt before this one had the lock.
CREATE OR REPLACE FUNCTION move_idle_floors(max_rows integer) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    queue queues;
BEGIN
    FOR queue IN
        SELECT q.*
        FROM queues AS q
        WHERE (newest_turn(q.subscription_id)).rest_until
                  NOT BETWEEN clock_timestamp() AND clock_timestamp() + interval '5 seconds' AND EXISTS (
            SELECT FROM leases AS l
            CROSS JOIN LATERAL (
                SELECT o.position, o.reached
                FROM positions AS o
                WHERE o.subscription_id = l.subscription_id AND o.partition_id = l.partition_id
                ORDER BY o.id DESC
                LIMIT 1
            ) AS stands
            WHERE l.subscription_id = q.subscription_id AND stands.position < stands.reached AND NOT is_in_hand(
                q.subscription_id, l.partition_id, stands.position + 1, (newest_turn(q.subscription_id)).floor_id))
        ORDER BY q.subscription_id
        LIMIT max_rows
        FOR NO KEY UPDATE OF q SKIP LOCKED
    LOOP
        PERFORM move_floors(queue, (newest_turn(queue.subscription_id)).floor_id);
    END LOOP;
END
$$;

-- name: is_in_hand
-- Whether an event that a queue has dealt is not finished: then the position before it cannot move.
CREATE OR REPLACE FUNCTION is_in_hand(owner_id bigint, source_id bigint, sequence bigint, floor_id bigint)
RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM queue_ranges AS r
        WHERE r.subscription_id = owner_id AND r.id >= floor_id AND r.partition_id = source_id
          AND r.waiting_id IS NULL AND is_in_hand.sequence BETWEEN r.first_sequence AND r.last_sequence
          AND (r.finished IS NULL OR get_bit(r.finished, (is_in_hand.sequence - r.first_sequence)::integer) = 0)
    ) OR EXISTS (
        SELECT FROM queue_keys AS k
        WHERE k.subscription_id = owner_id AND k.partition_id = source_id AND k.sequence = is_in_hand.sequence
          AND k.state <> 'first' AND k.waiting_id = 0);
END
$$;

-- name: queue_counts
-- How many events of a queue are ready, handed out, and waiting outside the window.
CREATE OR REPLACE FUNCTION queue_counts(owner_id bigint, OUT ready bigint, OUT in_flight bigint, OUT delayed bigint)
LANGUAGE sql STABLE SET enable_seqscan = off AS $$
    SELECT (
               SELECT COALESCE(sum(
                   high_watermark(l.partition_id) - GREATEST(stands.reached, p.low_sequence - 1)), 0)
               FROM leases AS l
               JOIN partitions AS p ON p.id = l.partition_id
               CROSS JOIN LATERAL (
                   SELECT COALESCE(o.reached, o.position) AS reached
                   FROM positions AS o
                   WHERE o.subscription_id = l.subscription_id AND o.partition_id = l.partition_id
                   ORDER BY o.id DESC
                   LIMIT 1
               ) AS stands
               WHERE l.subscription_id = owner_id
           ) + COALESCE(sum(w.events) FILTER (WHERE NOT w.claimed), 0) + (
               SELECT count(*) FROM queue_keys AS k WHERE k.subscription_id = owner_id AND k.state <> 'first'),
           COALESCE(sum(w.events) FILTER (WHERE w.claimed), 0),
           (SELECT count(*) FROM queue_waiting AS a WHERE a.subscription_id = owner_id AND a.due_at IS NOT NULL)
    FROM (
        SELECT r.token IS NOT NULL AND r.deadline > clock_timestamp() AS claimed,
               r.last_sequence - r.first_sequence + 1 - COALESCE(bit_count(r.finished), 0) AS events
        FROM queue_ranges AS r
        WHERE r.subscription_id = owner_id AND r.id >= (newest_turn(owner_id)).floor_id
    ) AS w
$$;

-- name: state_of
-- What peek says of a range in the window.
CREATE OR REPLACE FUNCTION state_of(token uuid, deadline timestamptz) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN state_of.token IS NOT NULL AND state_of.deadline > clock_timestamp() THEN 'in_flight'
                ELSE 'ready' END
$$;

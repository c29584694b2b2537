-- name: peek
-- The next unfinished events of each partition, and what waits outside the window, without handing anything out: at
-- most max_events. state is ready, in_flight, delayed or behind (an earlier event of its key). Raises PS006, PS013,
-- PS042.
CREATE OR REPLACE FUNCTION peek(subscription text, max_events integer DEFAULT 10)
RETURNS TABLE (
    state text, visible_at timestamptz, deliveries integer, failures integer, topic text, partition integer,
    sequence bigint, event_id uuid, key text, type text, content_type text, headers jsonb, payload bytea,
    created_at timestamptz, sequenced_at timestamptz, history integer
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    queue queues%ROWTYPE := require_queue(subscription, 'peek');
    floor_id bigint := (newest_turn(queue.subscription_id)).floor_id;
BEGIN
    IF max_events IS NULL OR max_events NOT BETWEEN 1 AND 1000 THEN
        PERFORM refuse('PS006', format('cannot peek at %s events', max_events), 'Use 1 to 1,000.');
    END IF;
    RETURN QUERY
    WITH windowed AS (
        SELECT r.partition_id, s AS sequence, r.deliveries, state_of(r.token, r.deadline) AS state, r.deadline
        FROM (
            SELECT * FROM queue_ranges AS w
            WHERE w.subscription_id = queue.subscription_id AND w.id >= floor_id AND w.waiting_id IS NULL
            ORDER BY w.id
            LIMIT max_events
        ) AS r
        CROSS JOIN LATERAL unfinished(r.first_sequence, r.last_sequence, r.finished) AS s
    ), copies AS MATERIALIZED (
        SELECT c.* FROM queue_waiting AS c
        WHERE c.subscription_id = queue.subscription_id
        ORDER BY c.sequence, c.partition_id
        LIMIT max_events
    ), returned AS MATERIALIZED (
        SELECT r.waiting_id, r.deliveries, state_of(r.token, r.deadline) AS state, r.deadline
        FROM queue_ranges AS r
        WHERE r.subscription_id = queue.subscription_id AND r.id >= floor_id
          AND r.waiting_id IN (SELECT c.id FROM copies AS c)
    ), placed AS (
        SELECT w.* FROM windowed AS w
        UNION ALL
        (SELECT k.partition_id, k.sequence, 0, 'behind', NULL
         FROM queue_keys AS k
         WHERE k.subscription_id = queue.subscription_id AND k.state <> 'first' AND k.waiting_id = 0
         ORDER BY k.sequence, k.partition_id
         LIMIT max_events)
        UNION ALL
        SELECT l.partition_id, s, 0, 'ready', NULL
        FROM leases AS l
        JOIN partitions AS p ON p.id = l.partition_id
        CROSS JOIN LATERAL (
            SELECT GREATEST(COALESCE(o.reached, o.position), p.low_sequence - 1) AS reached FROM positions AS o
            WHERE o.subscription_id = l.subscription_id AND o.partition_id = l.partition_id
            ORDER BY o.id DESC
            LIMIT 1
        ) AS stands
        CROSS JOIN LATERAL generate_series(
            stands.reached + 1, LEAST(stands.reached + max_events, high_watermark(l.partition_id))) AS s
        WHERE l.subscription_id = queue.subscription_id
    )
    SELECT p.state, CASE WHEN p.state = 'in_flight' THEN p.deadline END, p.deliveries, 0,
           t.address, (p.partition_id & 65535)::integer, l.*, current_history()
    FROM (SELECT * FROM placed AS o ORDER BY o.sequence, o.partition_id LIMIT max_events) AS p
    JOIN topics AS t ON t.id = p.partition_id >> 16
    CROSS JOIN LATERAL read_log(p.partition_id, p.sequence, 1) AS l
    UNION ALL
    SELECT CASE WHEN a.due_at > clock_timestamp() THEN 'delayed' WHEN b.waiting_id IS NOT NULL THEN 'behind'
                ELSE COALESCE(w.state, 'ready') END,
           COALESCE(a.due_at, CASE WHEN w.state = 'in_flight' THEN w.deadline END),
           COALESCE(w.deliveries, a.deliveries) + a.deliveries_before, a.failures, t.address,
           (a.partition_id & 65535)::integer, a.sequence, a.event_id, a.key, a.type, a.content_type, a.headers,
           COALESCE(a.body, a.payload), a.created_at, a.sequenced_at, a.history
    FROM copies AS a
    JOIN topics AS t ON t.id = a.partition_id >> 16
    LEFT JOIN returned AS w ON w.waiting_id = a.id
    LEFT JOIN queue_keys AS b
        ON b.subscription_id = a.subscription_id AND b.partition_id = a.partition_id AND b.sequence = a.sequence
        AND b.waiting_id = a.id AND b.state <> 'first'
    ORDER BY 7, 5, 6
    LIMIT max_events;
END
$$;

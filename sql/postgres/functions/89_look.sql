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

-- name: queue_statistics
-- How many events of a queue are ready, handed out, waiting for a retry, and dead, and what they are together without
-- the dead ones. Raises PS013, PS042.
CREATE OR REPLACE FUNCTION queue_statistics(subscription text)
RETURNS TABLE (size bigint, ready bigint, in_flight bigint, delayed bigint, dead bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT c.ready + c.in_flight + c.delayed, c.ready, c.in_flight, c.delayed, (
               SELECT count(*) FROM dead_letters AS d WHERE d.subscription_id = q.subscription_id)
    FROM require_queue(queue_statistics.subscription, 'peek') AS q
    CROSS JOIN LATERAL queue_counts(q.subscription_id) AS c
$$;

-- name: queue_pointers
-- Where a queue stands in each partition. reader: the sequence that is dealt next. repair: the lowest one that is not
-- finished; retention waits for it. invisibility: the lowest one that is handed out now or waits for a retry, NULL when
-- there is none. behind: how many wait behind an earlier event of their key. Raises PS013, PS042.
CREATE OR REPLACE FUNCTION queue_pointers(subscription text)
RETURNS TABLE (
    topic text, partition integer, reader bigint, repair bigint, invisibility bigint, behind bigint
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off AS $$
    WITH queue AS MATERIALIZED (
        SELECT q.subscription_id, (newest_turn(q.subscription_id)).floor_id
        FROM require_queue(queue_pointers.subscription, 'peek') AS q
    ), unfinished AS (
        SELECT r.partition_id, CASE WHEN r.waiting_id IS NULL THEN first_unfinished(r) END AS repair,
               CASE WHEN r.token IS NOT NULL AND r.deadline > clock_timestamp() THEN first_unfinished(r) END
                   AS invisibility, 0 AS behind
        FROM queue AS q JOIN queue_ranges AS r ON r.subscription_id = q.subscription_id AND r.id >= q.floor_id
        UNION ALL
        SELECT k.partition_id, CASE WHEN k.waiting_id = 0 THEN k.sequence END, NULL, 1
        FROM queue AS q JOIN queue_keys AS k ON k.subscription_id = q.subscription_id AND k.state <> 'first'
        UNION ALL
        SELECT w.partition_id, NULL, w.sequence, 0
        FROM queue AS q JOIN queue_waiting AS w ON w.subscription_id = q.subscription_id AND w.due_at IS NOT NULL
    ), lowest AS MATERIALIZED (
        SELECT u.partition_id, min(u.repair) AS repair, min(u.invisibility) AS invisibility,
               sum(u.behind) AS behind
        FROM unfinished AS u
        GROUP BY u.partition_id
    )
    SELECT t.address, (l.partition_id & 65535)::integer, stands.reached + 1, COALESCE(u.repair, stands.reached + 1),
           u.invisibility, COALESCE(u.behind, 0)
    FROM queue AS q
    JOIN leases AS l ON l.subscription_id = q.subscription_id
    JOIN partitions AS p ON p.id = l.partition_id
    JOIN topics AS t ON t.id = l.partition_id >> 16
    CROSS JOIN LATERAL (
        SELECT GREATEST(COALESCE(o.reached, o.position), p.low_sequence - 1) AS reached
        FROM positions AS o
        WHERE o.subscription_id = l.subscription_id AND o.partition_id = l.partition_id
        ORDER BY o.id DESC
        LIMIT 1
    ) AS stands
    LEFT JOIN lowest AS u ON u.partition_id = l.partition_id
    ORDER BY 1, 2
$$;

-- name: state_of
-- What peek says of a range in the window.
CREATE OR REPLACE FUNCTION state_of(token uuid, deadline timestamptz) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN state_of.token IS NOT NULL AND state_of.deadline > clock_timestamp() THEN 'in_flight'
                ELSE 'ready' END
$$;

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
           COALESCE(w.deliveries, a.deliveries), a.failures, t.address,
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

-- name: has_removed
-- Whether retention has removed events that a queue has dealt and not finished: its position is below them.
CREATE OR REPLACE FUNCTION has_removed(owner_id bigint) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM leases AS l
        JOIN partitions AS p ON p.id = l.partition_id
        CROSS JOIN LATERAL (
            SELECT o.position
            FROM positions AS o
            WHERE o.subscription_id = l.subscription_id AND o.partition_id = l.partition_id
            ORDER BY o.id DESC
            LIMIT 1
        ) AS stands
        WHERE l.subscription_id = owner_id AND stands.position < p.low_sequence - 1);
END
$$;

-- name: drop_removed
-- Ends what a queue has dealt and retention has removed: a receiver would get a claim of nothing, again and again. That
-- it was skipped is recorded already. A claim that somebody has stays until its time is over: he may have read it. What
-- waits behind the key of such an event and is gone too ends with it: nobody else can be about to finish that key.
CREATE OR REPLACE FUNCTION drop_removed(queue queues, floor_id bigint) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    gone queue_piece[];
BEGIN
    WITH removed AS MATERIALIZED (
        SELECT r.id, p.low_sequence
        FROM queue_ranges AS r
        JOIN partitions AS p ON p.id = r.partition_id
        WHERE r.subscription_id = queue.subscription_id AND r.id >= drop_removed.floor_id AND r.token IS NULL
          AND r.waiting_id IS NULL AND r.first_sequence < p.low_sequence
        ORDER BY r.id
        FOR UPDATE OF r SKIP LOCKED
    ), cut AS (
        UPDATE queue_ranges AS r SET first_sequence = m.low_sequence
        FROM removed AS m
        WHERE r.id = m.id AND r.last_sequence >= m.low_sequence
    ), dropped AS (
        DELETE FROM queue_ranges AS r
        USING removed AS m
        WHERE r.id = m.id AND r.last_sequence < m.low_sequence
        RETURNING r.*
    )
    SELECT array_agg(ROW(0, d.id, d.partition_id, d.first_sequence, d.last_sequence, d.deliveries, NULL, NULL,
                         NULL)::queue_piece)
    INTO gone
    FROM dropped AS d;
    IF queue."order" = 'none' OR gone IS NULL THEN
        RETURN;
    END IF;
    DELETE FROM queue_keys AS k
    USING (
        SELECT DISTINCT f.partition_id, f.key_digest, p.low_sequence
        FROM unnest(gone) AS g
        JOIN queue_keys AS f
            ON f.subscription_id = queue.subscription_id AND f.partition_id = g.partition_id
            AND f.sequence = g.first_sequence AND f.waiting_id = 0
        JOIN partitions AS p ON p.id = g.partition_id
    ) AS d
    WHERE k.subscription_id = queue.subscription_id AND k.partition_id = d.partition_id
      AND k.key_digest = d.key_digest AND k.sequence < d.low_sequence AND k.waiting_id = 0 AND k.state <> 'first';
    PERFORM finish_keys(queue, gone);
END
$$;

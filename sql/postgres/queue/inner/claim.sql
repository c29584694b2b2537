-- name: read_claims
-- The events of claims. Ranges of a partition that are near each other are read as one: to begin a read takes as long
-- as to read 50 events. With the order of keys each event is a range, and its neighbours wait behind others. All are
-- read before they are joined to their claims, or each claim would read all of them.
CREATE OR REPLACE FUNCTION read_claims(claimed queue_ranges[])
RETURNS TABLE (
    claim bigint, token uuid, deadline timestamptz, deliveries integer, failures integer, topic text,
    partition integer, sequence bigint, event_id uuid, key text, type text, content_type text, headers jsonb,
    payload bytea, created_at timestamptz, sequenced_at timestamptz, history integer
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT
SET enable_seqscan = off SET jit = off AS $$
BEGIN
    RETURN QUERY
    WITH given AS MATERIALIZED (
        SELECT n.*, count(*) FILTER (WHERE n.gap > 20) OVER (
                   PARTITION BY n.partition_id ORDER BY n.first_sequence) AS island
        FROM (
            SELECT c.*, c.first_sequence - lag(c.last_sequence) OVER (
                       PARTITION BY c.partition_id ORDER BY c.first_sequence) AS gap
            FROM unnest(claimed) AS c
            WHERE c.waiting_id IS NULL
        ) AS n
    ), found AS MATERIALIZED (
        SELECT i.partition_id, l.*
        FROM (
            SELECT g.partition_id, min(g.first_sequence) AS lowest, max(g.last_sequence) AS highest
            FROM given AS g
            GROUP BY g.partition_id, g.island
        ) AS i
        CROSS JOIN LATERAL read_log(i.partition_id, i.lowest, (i.highest - i.lowest + 1)::integer) AS l
    )
    SELECT g.id, g.token, g.deadline, g.deliveries, 0, t.address, (g.partition_id & 65535)::integer, f.sequence,
           f.event_id, f.key, f.type, f.content_type, f.headers, f.payload, f.created_at, f.sequenced_at,
           (SELECT current_history())
    FROM (
        SELECT n.*, generate_series(n.first_sequence, n.last_sequence) AS sequence FROM given AS n
    ) AS g
    JOIN found AS f ON f.partition_id = g.partition_id AND f.sequence = g.sequence
    JOIN topics AS t ON t.id = g.partition_id >> 16
    UNION ALL
    SELECT c.id, c.token, c.deadline, c.deliveries + w.deliveries_before, w.failures, t.address,
           (c.partition_id & 65535)::integer, w.sequence, w.event_id, w.key, w.type, w.content_type, w.headers,
           COALESCE(w.body, w.payload), w.created_at, w.sequenced_at, w.history
    FROM unnest(claimed) AS c
    JOIN queue_waiting AS w ON w.id = c.waiting_id
    JOIN topics AS t ON t.id = c.partition_id >> 16
    ORDER BY 1, 8;
END
$$;

-- name: is_dealt_ahead
-- Whether whoever claims this range deals the next ones, so that hardly anybody waits for the dealer: one range in
-- eight beyond the middle of the window, because all others would only find the dealer at work. A short window has all
-- that there was, and nobody looks for more before it is empty. What stands behind last_id was cut off or put back.
CREATE OR REPLACE FUNCTION is_dealt_ahead(id bigint, free_id bigint, last_id bigint, max_events integer) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT id > (free_id + last_id) / 2 AND id <= last_id AND id % 8 = 0
           AND last_id - free_id >= LEAST(200, 10000 / max_events)
$$;

-- name: claim_events
-- Claims free ranges, and takes the turn of the dealer when it is due or nothing is free. While another session deals,
-- this waits for it only when there is nothing else to do. one is what the caller has claimed already, if anything.
CREATE OR REPLACE FUNCTION claim_events(
    subscription text, max_events integer, visibility_seconds double precision, one queue_ranges
) RETURNS queue_ranges[]
LANGUAGE plpgsql AS $$
DECLARE
    queue queues%ROWTYPE := require_queue(subscription, 'receive');
    last queue_turns%ROWTYPE := newest_turn(queue.subscription_id);
    deadline timestamptz;
    claimed queue_ranges[] := '{}';
BEGIN
    PERFORM require_read_committed('receive()');
    visibility_seconds := COALESCE(visibility_seconds, queue.visibility_seconds);
    IF max_events IS NULL OR max_events NOT BETWEEN 1 AND 1000 OR NOT visibility_seconds BETWEEN 0 AND 43200 THEN
        PERFORM refuse('PS006', format('cannot receive %s events for %s seconds', max_events, visibility_seconds),
                       'Receive 1 to 1,000 events at a time, for 0 to 43,200 seconds.');
    ELSIF is_paused(queue.subscription_id) THEN
        RETURN CASE WHEN one.id IS NULL THEN '{}' ELSE ARRAY[one] END;
    END IF;
    deadline := clock_timestamp() + make_interval(secs => visibility_seconds);
    IF last.rest_until NOT BETWEEN clock_timestamp() AND clock_timestamp() + interval '5 seconds' AND (
        last.floor_id <= last.last_id OR has_due(queue.subscription_id, clock_timestamp())
        OR (queue."order" = 'key' AND has_unsure(queue.subscription_id)))
        AND turn_queue(queue, max_events)
    THEN
        last := newest_turn(queue.subscription_id);
    END IF;
    -- To look first is cheap. A worker that follows publishers finds nothing free before it has dealt, each time.
    IF one.id IS NOT NULL OR EXISTS (
        SELECT FROM queue_ranges AS r
        WHERE r.subscription_id = queue.subscription_id AND r.id >= last.free_id AND r.token IS NULL)
    THEN
        claimed := claim_ranges(queue.subscription_id, last, max_events, deadline, one);
    END IF;
    IF cardinality(claimed) > 0 THEN
        IF is_dealt_ahead((claimed[1]).id, last.free_id, last.last_id, max_events)
            AND has_undealt(queue.subscription_id)
        THEN
            PERFORM turn_queue(queue, max_events);
        END IF;
    ELSIF has_undealt(queue.subscription_id) THEN
        IF NOT turn_queue(queue, max_events) THEN
            PERFORM wait_for_dealer(queue.subscription_id);
        END IF;
        claimed := claim_ranges(queue.subscription_id, newest_turn(queue.subscription_id), max_events, deadline, one);
    END IF;
    RETURN claimed;
END
$$;

-- name: wait_for_dealer
-- Waits until the dealer has committed, and lets the next ones through at once: an error undoes the lock.
CREATE OR REPLACE FUNCTION wait_for_dealer(owner_id bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM queues AS q WHERE q.subscription_id = owner_id FOR SHARE;
    RAISE EXCEPTION 'lets go of the lock';
EXCEPTION WHEN raise_exception THEN
    NULL;
END
$$;

-- name: claim_ranges
-- Claims free ranges with together at most max_events events, with those of one, the first ones that nobody else is
-- just claiming. The last one is cut when it is too long. Each look begins after what is claimed already, so rows are
-- locked in one order: SKIP LOCKED waits for a row that was updated, and is again, while it is looked at.
CREATE OR REPLACE FUNCTION claim_ranges(
    owner_id bigint, last queue_turns, max_events integer, deadline timestamptz, one queue_ranges
) RETURNS queue_ranges[]
LANGUAGE plpgsql AS $$
DECLARE
    claimed queue_ranges[] := CASE WHEN one.id IS NULL THEN '{}' ELSE ARRAY[one] END;
    more queue_ranges[];
    missing integer := max_events - COALESCE(one.last_sequence - one.first_sequence + 1, 0);
    wanted integer := (max_events + last.range_size - 1) / last.range_size;
    highest bigint := COALESCE(one.id, 0);
BEGIN
    WHILE missing > 0 AND (one.id IS NULL OR one.deliveries < 3) LOOP
        more := claim_several(owner_id, GREATEST(last.free_id, highest + 1), missing, LEAST(wanted, missing), deadline,
                              cardinality(claimed) = 0);
        EXIT WHEN cardinality(more) = 0;
        one := more[1];
        claimed := claimed || more;
        SELECT missing - sum(m.last_sequence - m.first_sequence + 1), max(m.id) INTO missing, highest
        FROM unnest(more) AS m;
        wanted := 2 * GREATEST(wanted, 10);
    END LOOP;
    RETURN claimed;
END
$$;

-- name: claim_several
-- Claims several free ranges in one statement. A suspect, which was handed out twice and never finished, is claimed
-- only alone: as the first one, where that is allowed.
CREATE OR REPLACE FUNCTION claim_several(
    owner_id bigint, free_id bigint, max_events integer, max_ranges integer, deadline timestamptz, alone boolean
) RETURNS queue_ranges[]
LANGUAGE plpgsql AS $$
DECLARE
    claimed queue_ranges[];
BEGIN
    WITH free AS MATERIALIZED (
        SELECT r.*
        FROM queue_ranges AS r
        WHERE r.subscription_id = owner_id AND r.id >= claim_several.free_id AND r.token IS NULL
        ORDER BY r.id
        LIMIT max_ranges
        FOR UPDATE SKIP LOCKED
    ), fitting AS MATERIALIZED (
        SELECT f.id, f.first_sequence, f.last_sequence, f.deliveries, f.partition_id,
               LEAST(f.last_sequence, f.first_sequence + max_events - f.before - 1) AS until
        FROM (
            SELECT g.*, COALESCE(sum(g.last_sequence - g.first_sequence + 1) OVER earlier, 0) AS before,
                   row_number() OVER w AS place, first_value(g.deliveries) OVER w AS leading
            FROM free AS g
            WINDOW w AS (ORDER BY g.id), earlier AS (w ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
        ) AS f
        WHERE f.before < max_events
          AND CASE WHEN f.place = 1 THEN f.deliveries < 2 OR alone ELSE f.deliveries < 2 AND f.leading < 2 END
    ), whole AS (
        UPDATE queue_ranges AS r
        SET token = gen_random_uuid(), deadline = claim_several.deadline, deliveries = r.deliveries + 1,
            former = NULL, former_token = NULL
        FROM fitting AS f
        WHERE r.id = f.id AND f.until = f.last_sequence
        RETURNING r.*
    ), rest AS (
        UPDATE queue_ranges AS r SET first_sequence = f.until + 1
        FROM fitting AS f
        WHERE r.id = f.id AND f.until < f.last_sequence
    ), cut AS (
        INSERT INTO queue_ranges (
            subscription_id, partition_id, first_sequence, last_sequence, deliveries, token, deadline)
        SELECT owner_id, f.partition_id, f.first_sequence, f.until, f.deliveries + 1, gen_random_uuid(),
               claim_several.deadline
        FROM fitting AS f
        WHERE f.until < f.last_sequence
        RETURNING queue_ranges.*
    )
    SELECT array_agg(c::queue_ranges) INTO claimed
    FROM (SELECT * FROM whole UNION ALL SELECT * FROM cut) AS c;
    RETURN COALESCE(claimed, '{}');
END
$$;

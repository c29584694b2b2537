-- name: turn_queue
-- Does what all receivers of a queue need once: brings expired claims and due events back, finds the first free range,
-- deals new ranges, and moves the positions. Returns false when another session is doing it. range_size is what the
-- caller asks for at a time.
CREATE OR REPLACE FUNCTION turn_queue(queue queues, range_size integer) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    begun timestamptz := clock_timestamp();
    last queue_turns%ROWTYPE;
    is_due boolean;
    has_more boolean := false;
    is_passed boolean;
    before bigint;
    seen record;
    room bigint;
    brought integer;
BEGIN
    -- The settings under the lock: the order may have been set since the call began.
    SELECT q.* INTO queue FROM queues AS q WHERE q.subscription_id = queue.subscription_id
    FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    last := newest_turn(queue.subscription_id);
    is_due := last.rest_until <= begun OR last.rest_until > begun + interval '5 seconds';
    -- All queues share this counter. A range below before + 1 that is dealt now would be seen by nobody.
    SELECT last_given('queue_ranges_id', c.last_value, c.is_called) INTO before FROM queue_ranges_id AS c;
    IF before < last.last_id THEN
        -- What is dealt would stand below the first free range, where no receiver looks.
        PERFORM refuse_set_back('queue_ranges_id');
    ELSIF last.id > (SELECT c.last_value - (NOT c.is_called)::integer FROM queue_turns_id AS c) THEN
        PERFORM refuse_set_back('queue_turns_id');
    END IF;
    is_passed := is_due AND has_removed(queue.subscription_id);
    FOR look IN 1..2 LOOP
        -- A range that somebody is just cutting is still seen whole, so nothing that is not seen yet is below these.
        SELECT COALESCE(min(r.id), before + 1) AS floor_id,
               COALESCE(min(r.id) FILTER (WHERE r.token IS NULL), before + 1) AS free_id,
               COALESCE(sum(r.last_sequence - r.first_sequence + 1 - COALESCE(bit_count(r.finished), 0)), 0)::bigint
                   AS events,
               COALESCE(sum(r.last_sequence - r.first_sequence + 1) FILTER (WHERE r.token IS NULL), 0)::bigint
                   AS free_events,
               COALESCE(bool_or(r.deadline NOT BETWEEN begun AND begun + interval '12 hours'), false) AS has_ended
        INTO seen
        FROM queue_ranges AS r
        WHERE r.subscription_id = queue.subscription_id AND r.id >= last.floor_id;
        -- Most turns have nothing to bring back or to move: what looks for it is begun only after it was seen.
        EXIT WHEN look = 2 OR NOT is_due
            OR NOT (seen.has_ended OR seen.floor_id < last.free_id - 5000 OR queue."order" = 'key' OR is_passed);
        has_more := end_claims(queue, last.floor_id, begun);
        PERFORM move_claims(queue.subscription_id, last, begun);
        IF queue."order" = 'key' THEN
            has_more := settle_keys(queue.subscription_id) OR has_more;
        END IF;
        IF is_passed THEN
            PERFORM drop_removed(queue, last.floor_id);
        END IF;
    END LOOP;
    seen.events := seen.events + events_behind(queue);
    room := LEAST(queue.max_in_flight - seen.events, LEAST(400 * range_size, 20000) - seen.free_events);
    IF is_due THEN
        brought := bring_due(queue.subscription_id, begun, LEAST(queue.max_in_flight - seen.events, 1000));
        room := room - brought;
        has_more := has_more OR brought >= 1000;
    END IF;
    IF queue."order" = 'none' THEN
        PERFORM deal(queue.subscription_id, range_size, room);
    ELSE
        PERFORM deal_in_order(queue.subscription_id, room);
        range_size := 1;
    END IF;
    IF is_due THEN
        PERFORM move_floors(queue, seen.floor_id);
    END IF;
    INSERT INTO queue_turns (subscription_id, floor_id, free_id, last_id, range_size, rest_until)
    SELECT queue.subscription_id, seen.floor_id, seen.free_id,
           last_given('queue_ranges_id', c.last_value, c.is_called), turn_queue.range_size,
           -- No rest while there is more to bring back than one turn takes, or a dead fleet would keep it for hours.
           CASE WHEN has_more THEN begun
                WHEN is_due THEN rest_after(queue.subscription_id, begun)
                ELSE last.rest_until END
    FROM queue_ranges_id AS c;
    RETURN true;
END
$$;

-- name: rest_after
-- When somebody has to look at a queue again, after a look that began at begun: after a tenth of a second, and so that
-- looks take a twentieth of the time, but within five seconds: one that had to wait for somebody would keep what is due
-- from everybody for long. When a delayed event is due sooner, then, so that looks take a sixth of it. A time that is
-- further ahead was stored before the clock was set back, and counts as over.
CREATE OR REPLACE FUNCTION rest_after(owner_id bigint, begun timestamptz) RETURNS timestamptz
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN LEAST(n.now + interval '5 seconds', GREATEST(n.now + 5 * (n.now - begun), LEAST(
        GREATEST(n.now + interval '100 milliseconds', n.now + 20 * (n.now - begun)), (
            SELECT w.due_at
            FROM queue_waiting AS w
            WHERE w.subscription_id = owner_id AND w.due_at > n.now
            ORDER BY w.due_at
            LIMIT 1))))
    FROM clock_timestamp() AS n (now);
END
$$;

-- name: has_due
-- Whether an event out of the window is due. Nothing waits for longer than a year: what does was put there before the
-- clock was set back.
CREATE OR REPLACE FUNCTION has_due(subscription_id bigint, now timestamptz) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM queue_waiting AS w
        WHERE w.subscription_id = has_due.subscription_id
          AND (w.due_at <= has_due.now OR w.due_at > has_due.now + interval '366 days'));
END
$$;

-- name: end_claims
-- Frees the events of claims whose time is over, each alone, so that one bad event does not end the deliveries of its
-- neighbours. Their receipts stay good until the events are handed out again. An event that was handed out too often
-- becomes a dead letter. A claim that somebody is just finishing is locked, and is left to the next turn. Returns
-- whether there may be more: it takes claims, the oldest first, until they have 5,000 events. To make a dead letter
-- takes as long as 25 others: it is copied. No claim is longer than 12 hours: one that ends later was made before the
-- clock was set back, and is over.
CREATE OR REPLACE FUNCTION end_claims(queue queues, floor_id bigint, now timestamptz) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    ended queue_piece[];
    tokens uuid[];
    done bigint;
BEGIN
    WITH locked AS MATERIALIZED (
        SELECT r.id, (r.last_sequence - r.first_sequence + 1)
                     * CASE WHEN r.deliveries < queue.max_deliveries THEN 1 ELSE 25 END AS work
        FROM queue_ranges AS r
        WHERE r.subscription_id = queue.subscription_id AND r.id >= end_claims.floor_id
          AND r.deadline NOT BETWEEN end_claims.now AND end_claims.now + interval '12 hours'
        ORDER BY r.id
        LIMIT 5000
        FOR UPDATE SKIP LOCKED
    ), old AS MATERIALIZED (
        SELECT n.id, n.work
        FROM (SELECT l.id, l.work, sum(l.work) OVER (ORDER BY l.id) - l.work AS before FROM locked AS l) AS n
        WHERE n.before < 5000
    ), gone AS (
        DELETE FROM queue_ranges AS r USING old AS o WHERE r.id = o.id RETURNING r.*, o.work
    )
    SELECT array_agg(ROW(0, COALESCE(g.former, g.id), g.partition_id, g.first_sequence, g.last_sequence, g.deliveries,
                         g.deadline, g.finished, g.waiting_id)::queue_piece ORDER BY g.id),
           array_agg(g.token ORDER BY g.id), sum(g.work)
    INTO ended, tokens, done
    FROM gone AS g;
    IF ended IS NULL THEN
        RETURN false;
    END IF;
    PERFORM bury_pieces(queue, ARRAY(
        SELECT p FROM unnest(ended) AS p WHERE p.deliveries >= queue.max_deliveries
    ), 'was handed out as often as it may be, and never finished');
    INSERT INTO queue_ranges (
        subscription_id, partition_id, first_sequence, last_sequence, deliveries, waiting_id, former, former_token)
    SELECT queue.subscription_id, g.partition_id, s, s, g.deliveries, g.waiting_id, g.claim, g.token
    FROM unnest(ended, tokens) WITH ORDINALITY AS g (entry, claim, partition_id, first_sequence, last_sequence,
        deliveries, deadline, finished, waiting_id, token, n)
    CROSS JOIN LATERAL unfinished(g.first_sequence, g.last_sequence, g.finished) AS s
    WHERE g.deliveries < queue.max_deliveries
    ORDER BY g.n, s;
    RETURN done >= 5000;
END
$$;

-- name: move_claims
-- Writes claims that are held for long to the end of the window, with receipts, deadline and all, so that the window
-- stays short and its slices can go. Those whose time is over come back soon, and are left where they stand.
CREATE OR REPLACE FUNCTION move_claims(owner_id bigint, last queue_turns, now timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    WITH old AS MATERIALIZED (
        SELECT r.id
        FROM queue_ranges AS r
        WHERE r.subscription_id = owner_id AND r.id >= last.floor_id AND r.id < last.free_id - 5000
          AND r.deadline > move_claims.now
        ORDER BY r.id
        LIMIT 1000
        FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM queue_ranges AS r USING old AS o WHERE r.id = o.id RETURNING r.*
    )
    INSERT INTO queue_ranges (
        subscription_id, partition_id, first_sequence, last_sequence, deliveries, token, deadline, finished,
        waiting_id, former, former_token)
    SELECT g.subscription_id, g.partition_id, g.first_sequence, g.last_sequence, g.deliveries, g.token, g.deadline,
           g.finished, g.waiting_id, COALESCE(g.former, g.id), g.former_token
    FROM gone AS g
    ORDER BY g.id;
END
$$;

-- name: bring_due
-- Brings events that are due into the window again, the earliest first. Returns how many.
CREATE OR REPLACE FUNCTION bring_due(owner_id bigint, now timestamptz, room bigint) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    brought integer;
BEGIN
    WITH due AS MATERIALIZED (
        SELECT w.id, w.due_at
        FROM queue_waiting AS w
        WHERE w.subscription_id = owner_id
          AND (w.due_at <= bring_due.now OR w.due_at > bring_due.now + interval '366 days')
        ORDER BY w.due_at
        LIMIT GREATEST(room, 0)
        FOR UPDATE SKIP LOCKED
    ), taken AS (
        UPDATE queue_waiting AS w SET due_at = NULL FROM due AS d WHERE w.id = d.id
        RETURNING w.id, w.partition_id, w.sequence, w.deliveries, d.due_at
    )
    INSERT INTO queue_ranges (
        subscription_id, partition_id, first_sequence, last_sequence, deliveries, waiting_id)
    SELECT owner_id, t.partition_id, t.sequence, t.sequence, t.deliveries, t.id
    FROM taken AS t
    ORDER BY t.due_at;
    GET DIAGNOSTICS brought = ROW_COUNT;
    RETURN brought;
END
$$;

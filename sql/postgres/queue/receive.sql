-- name: receive
-- Hands out at most max_events events, invisible to others for visibility_seconds (NULL: the queue's own). Each claim
-- that comes with them counts as a delivery, so commit that before a handler gets them. Events come from the log in its
-- order, unless they came back. An event that was handed out twice and never finished is handed out alone. Nothing is
-- returned while the subscription is paused, or max_in_flight are handed out. Raises PS006, PS013, PS018, PS042.
CREATE OR REPLACE FUNCTION receive(
    subscription text, max_events integer DEFAULT 1, visibility_seconds double precision DEFAULT NULL
) RETURNS TABLE (
    claim bigint, token uuid, deadline timestamptz, deliveries integer, failures integer, topic text,
    partition integer, sequence bigint, event_id uuid, key text, type text, content_type text, headers jsonb,
    payload bytea, created_at timestamptz, sequenced_at timestamptz, history integer
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    look record;
    one queue_ranges%ROWTYPE;
    claimed queue_ranges[];
    place record;
    ids bigint[];
    ats timestamptz[];
BEGIN
    -- The plain case is four queries: each further one, and each function that is called, costs more than the work.
    -- What is not plain in any way finds no row here, and claim_events looks again.
    SELECT q.subscription_id, t.free_id, t.last_id,
           clock_timestamp() + make_interval(secs => COALESCE(receive.visibility_seconds, q.visibility_seconds))
               AS deadline
    INTO look
    FROM subscriptions AS s
    JOIN queues AS q ON q.subscription_id = s.id
    CROSS JOIN LATERAL (
        SELECT n.* FROM queue_turns AS n WHERE n.subscription_id = s.id ORDER BY n.id DESC LIMIT 1
    ) AS t
    WHERE s.name = receive.subscription AND s.paused_at IS NULL
      AND current_setting('transaction_isolation') = 'read committed'
      AND ((SELECT p FROM plain_login() AS p) OR no_walls() OR may_use(s.id, 'receive'))
      AND COALESCE(receive.visibility_seconds, q.visibility_seconds) BETWEEN 0 AND 43200
      AND t.range_size = receive.max_events
      AND t.rest_until BETWEEN clock_timestamp() AND clock_timestamp() + interval '5 seconds';
    IF FOUND THEN
        UPDATE queue_ranges AS r
        SET token = gen_random_uuid(), deadline = look.deadline, deliveries = r.deliveries + 1,
            former = NULL, former_token = NULL
        -- The bounds leave out the other slices before any is opened. A range that is too long is not passed over, or
        -- it would wait as long as there are shorter ones: claim_events cuts it.
        WHERE r.id BETWEEN look.free_id AND look.last_id AND r.last_sequence - r.first_sequence < max_events
          AND r.id = (
            SELECT f.id
            FROM queue_ranges AS f
            WHERE f.subscription_id = look.subscription_id AND f.id BETWEEN look.free_id AND look.last_id
              AND f.token IS NULL
            ORDER BY f.id
            LIMIT 1
            FOR UPDATE SKIP LOCKED)
        RETURNING r.* INTO one;
    END IF;
    IF one.id IS NULL OR one.last_sequence - one.first_sequence + 1 < max_events OR one.waiting_id IS NOT NULL
        OR is_dealt_ahead(one.id, look.free_id, look.last_id, max_events) THEN
        claimed := claim_events(subscription, max_events, visibility_seconds, one);
        IF cardinality(claimed) = 0 THEN
            RETURN;
        ELSIF cardinality(claimed) > 1 OR (claimed[1]).waiting_id IS NOT NULL THEN
            RETURN QUERY SELECT r.* FROM read_claims(claimed) AS r;
            RETURN;
        END IF;
        one := claimed[1];
    END IF;
    ids := one.event_ids;
    IF cardinality(ids) = 1 THEN
        -- The plain case of one event: no list and no order, which is half of what it costs to begin the query.
        RETURN QUERY
        SELECT one.id, one.token, one.deadline, one.deliveries, 0, t.address, (one.partition_id & 65535)::integer,
               one.first_sequence, e.event_id, e.key, e.type, e.content_type, e.headers, e.payload, e.created_at,
               one.sequenced_at, (SELECT max(h.history) FROM histories AS h)
        FROM topics AS t CROSS JOIN stored_event(ids[1], ids[1], ids[1]) AS e
        WHERE t.id = one.partition_id >> 16;
        RETURN;
    ELSIF ids IS NOT NULL THEN
        SELECT t.address AS topic, (SELECT max(h.history) FROM histories AS h) AS history, b.first_id, b.last_id,
               one.sequenced_at INTO place
        FROM topics AS t CROSS JOIN (SELECT min(i) AS first_id, max(i) AS last_id FROM unnest(ids) AS i) AS b
        WHERE t.id = one.partition_id >> 16;
    ELSE
        -- What one row of the index of the log has of them.
        SELECT t.address AS topic, (SELECT max(h.history) FROM histories AS h) AS history, c.first_id, c.last_id,
               c.sequenced_at,
               c.event_ids[one.first_sequence - c.first_sequence + 1:one.last_sequence - c.first_sequence + 1] AS ids,
               c.sequenced_ats[one.first_sequence - c.first_sequence + 1:
                               one.last_sequence - c.first_sequence + 1] AS ats INTO place
        FROM topics AS t
        LEFT JOIN LATERAL (
            SELECT k.*
            FROM chunks AS k
            WHERE k.partition_id = one.partition_id AND k.first_sequence <= one.first_sequence
            ORDER BY k.first_sequence DESC
            LIMIT 1
        ) AS c ON true
        WHERE t.id = one.partition_id >> 16;
        ids := place.ids;
        ats := place.ats;
    END IF;
    IF cardinality(ids) = 1 AND one.first_sequence = one.last_sequence THEN
        -- No list, no join and no order: that is half of what it costs to begin the query.
        RETURN QUERY
        SELECT one.id, one.token, one.deadline, one.deliveries, 0, place.topic, (one.partition_id & 65535)::integer,
               one.first_sequence, e.event_id, e.key, e.type, e.content_type, e.headers, e.payload, e.created_at,
               COALESCE(ats[1], place.sequenced_at), place.history
        FROM stored_event(ids[1], place.first_id, place.last_id) AS e;
    ELSIF cardinality(ids) = one.last_sequence - one.first_sequence + 1 THEN
        RETURN QUERY
        SELECT one.id, one.token, one.deadline, one.deliveries, 0, place.topic, (one.partition_id & 65535)::integer,
               one.first_sequence + p.n - 1, e.event_id, e.key, e.type, e.content_type, e.headers, e.payload,
               e.created_at, COALESCE(p.at, place.sequenced_at), place.history
        FROM unnest(ids, ats) WITH ORDINALITY AS p (id, at, n)
        CROSS JOIN LATERAL stored_event(p.id, place.first_id, place.last_id) AS e
        ORDER BY p.n;
    ELSE
        RETURN QUERY
        SELECT one.id, one.token, one.deadline, one.deliveries, 0, place.topic, (one.partition_id & 65535)::integer,
               r.*, place.history
        FROM read_log(one.partition_id, one.first_sequence,
                      (one.last_sequence - one.first_sequence + 1)::integer) AS r;
    END IF;
END
$$;

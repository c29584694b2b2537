-- name: bury_claims
-- Makes events dead letters at once that a relay of a queue has received and its sink will never take. Returns for each
-- entry whether it was done, as acknowledge does. Raises PS013, PS018, PS042, PS043, PS044.
CREATE OR REPLACE FUNCTION bury_claims(
    subscription text, claims bigint[], first_sequences bigint[], last_sequences bigint[], tokens uuid[], reason text,
    partly boolean DEFAULT false
) RETURNS boolean[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    queue queues%ROWTYPE := require_queue(subscription, 'acknowledge');
    taken record;
BEGIN
    taken := take_out(queue, claims, first_sequences, last_sequences, tokens, partly);
    PERFORM bury_pieces(queue, taken.pieces, left(COALESCE(bury_claims.reason, ''), 2000));
    RETURN taken.settled;
END
$$;

-- name: relayed_events
-- What has become of events of a queue, from a sequence of a partition on, at most max_events. state: pending (also one
-- that waits for its next attempt, or behind an earlier event of its key), in_flight, sent (finished, or thrown away by
-- purge), failed (a dead letter). attempts counts hand-outs; next_attempt_at is when the next one is due, or when
-- others may get it that is in flight. Raises PS002, PS005, PS006, PS013, PS042.
CREATE OR REPLACE FUNCTION relayed_events(
    subscription text, topic text, partition integer, from_sequence bigint, max_events integer
) RETURNS TABLE (
    sequence bigint, event_id uuid, state text, attempts integer, last_error text, next_attempt_at timestamptz
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    queue queues%ROWTYPE := require_queue(subscription, 'peek');
    source_id bigint := require_partition(topic, partition);
    floor_id bigint := (newest_turn(queue.subscription_id)).floor_id;
    reached bigint := (
        SELECT COALESCE(o.reached, o.position) FROM positions AS o
        WHERE o.subscription_id = queue.subscription_id AND o.partition_id = source_id
        ORDER BY o.id DESC
        LIMIT 1);
BEGIN
    IF max_events IS NULL OR max_events NOT BETWEEN 1 AND 1000 THEN
        PERFORM refuse('PS006', format('cannot look at %s events', max_events), 'Use 1 to 1,000.');
    ELSIF reached IS NULL THEN
        PERFORM refuse_unread(subscription, topic);
    END IF;
    RETURN QUERY
    SELECT l.sequence, l.event_id,
           CASE WHEN COALESCE(b.token, r.token) IS NOT NULL AND COALESCE(b.deadline, r.deadline) > clock_timestamp()
                    THEN 'in_flight'
                WHEN w.id IS NOT NULL OR r.id IS NOT NULL OR l.sequence > reached OR EXISTS (
                    SELECT FROM queue_keys AS k
                    WHERE k.subscription_id = queue.subscription_id AND k.partition_id = source_id
                      AND k.sequence = l.sequence AND k.state <> 'first') THEN 'pending'
                WHEN d.id IS NOT NULL THEN 'failed'
                ELSE 'sent' END,
           CASE WHEN w.id IS NOT NULL THEN COALESCE(b.deliveries, w.deliveries) + w.deliveries_before
                ELSE COALESCE(r.deliveries, d.attempts, CASE WHEN l.sequence > reached THEN 0 END) END,
           COALESCE(w.reason, d.reason, ''),
           CASE WHEN COALESCE(b.token, r.token) IS NOT NULL THEN COALESCE(b.deadline, r.deadline) ELSE w.due_at END
    FROM read_log(source_id, from_sequence, max_events) AS l
    LEFT JOIN queue_waiting AS w
        ON w.subscription_id = queue.subscription_id AND w.partition_id = source_id AND w.sequence = l.sequence
    LEFT JOIN queue_ranges AS b
        ON b.subscription_id = queue.subscription_id AND b.id >= floor_id AND b.waiting_id = w.id
    LEFT JOIN LATERAL (
        SELECT n.* FROM queue_ranges AS n
        WHERE n.subscription_id = queue.subscription_id AND n.id >= floor_id AND n.partition_id = source_id
          AND n.waiting_id IS NULL AND l.sequence BETWEEN n.first_sequence AND n.last_sequence
          AND l.sequence IN (SELECT u FROM unfinished(n.first_sequence, n.last_sequence, n.finished) AS u)
        ORDER BY n.id DESC
        LIMIT 1
    ) AS r ON true
    LEFT JOIN dead_letters AS d
        ON d.subscription_id = queue.subscription_id AND d.partition_id = source_id AND d.sequence = l.sequence
        AND d.history = current_history()
    ORDER BY l.sequence;
END
$$;

-- name: queue_relay_status
-- Where the relay of a queue stands: how many of its events are ready, handed out, waiting for a retry, and dead; the
-- newest failure, of an attempt, an event that died or a sink that takes nothing; and since when it takes nothing.
-- breaker: open or half-open, NULL: closed. Raises PS013, PS042.
CREATE OR REPLACE FUNCTION queue_relay_status(subscription text)
RETURNS TABLE (
    ready bigint, in_flight bigint, delayed bigint, dead bigint, last_error text, failed_at timestamptz, breaker text,
    away_since timestamptz
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    queue queues%ROWTYPE := require_queue(subscription, 'peek');
BEGIN
    RETURN QUERY
    SELECT n.ready, n.in_flight, n.delayed, n.dead, f.error, f.at, b.state, b.since
    FROM queue_statistics(subscription) AS n
    LEFT JOIN relay_breakers AS b ON b.subscription_id = queue.subscription_id AND b.consumer = ''
    LEFT JOIN LATERAL (
        SELECT u.error, u.at
        FROM (
            SELECT b.error, b.changed_at AS at
            UNION ALL
            (SELECT w.reason, w.failed_at FROM queue_waiting AS w
             WHERE w.subscription_id = queue.subscription_id AND w.failed_at IS NOT NULL
             ORDER BY w.failed_at DESC
             LIMIT 1)
            UNION ALL
            (SELECT d.reason, d.died_at FROM dead_letters AS d
             WHERE d.subscription_id = queue.subscription_id
             ORDER BY d.id DESC
             LIMIT 1)
        ) AS u
        WHERE u.at IS NOT NULL
        ORDER BY u.at DESC
        LIMIT 1
    ) AS f ON true;
END
$$;

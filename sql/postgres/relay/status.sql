-- name: note_breaker
-- Records that a process of a relay has opened its breaker, or half opened it; 'closed' forgets it, and the processes
-- that are gone. consumer: '' for all processes of a queue's relay. Raises PS006, PS013.
CREATE OR REPLACE FUNCTION note_breaker(subscription text, consumer text, state text, error text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner_id bigint := (require_subscription(subscription)).id;
BEGIN
    PERFORM commit_durably();
    DELETE FROM relay_breakers AS b
    WHERE b.subscription_id = owner_id AND b.consumer <> '' AND NOT EXISTS (
        SELECT FROM consumers AS c WHERE c.subscription_id = owner_id AND c.id = b.consumer);
    IF state = 'closed' THEN
        DELETE FROM relay_breakers AS b WHERE b.subscription_id = owner_id AND b.consumer = note_breaker.consumer;
        RETURN;
    END IF;
    INSERT INTO relay_breakers AS b (subscription_id, consumer, state, error)
    VALUES (owner_id, note_breaker.consumer, note_breaker.state, left(note_breaker.error, 2000))
    ON CONFLICT ON CONSTRAINT relay_breakers_pkey DO UPDATE
    SET state = excluded.state, error = excluded.error, changed_at = excluded.changed_at;
END
$$;

-- name: relay_status
-- What a relay does in each partition, beside its lag: how many events a second it has passed in the last minute (from
-- its last 1,000 commits), the attempts of its open block with the last error, what its rules have left out, and
-- whether its holder's breaker is open (NULL: closed).
CREATE OR REPLACE FUNCTION relay_status(subscription text)
RETURNS TABLE (
    topic text, partition integer, events_per_second double precision, attempts integer, last_error text,
    failed_at timestamptz, left_out bigint, breaker text, breaker_at timestamptz
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT
SET enable_seqscan = off SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT t.address, p.number, COALESCE(speed.passed, 0), COALESCE(f.attempt, 0), COALESCE(f.error, b.error),
           f.failed_at, COALESCE(w.left_out, 0), b.state, b.changed_at
    FROM subscriptions AS s
    JOIN leases AS l ON l.subscription_id = s.id
    JOIN partitions AS p ON p.id = l.partition_id
    JOIN topics AS t ON t.id = p.topic_id
    LEFT JOIN consumers AS c ON c.subscription_id = s.id AND c.id = l.holder AND c.deadline > clock_timestamp()
    LEFT JOIN relay_breakers AS b ON b.subscription_id = s.id AND b.consumer = c.id
    LEFT JOIN relay_places AS w ON w.subscription_id = s.id AND w.partition_id = p.id AND w.place = ''
    LEFT JOIN LATERAL (
        SELECT r.attempt, r.error, r.failed_at FROM relay_failures AS r
        WHERE r.block_id = (SELECT o.id FROM find_open_block(s.id, p.id) AS o)
        ORDER BY r.attempt DESC
        LIMIT 1
    ) AS f ON true
    CROSS JOIN LATERAL (
        SELECT (max(n.position) - min(n.position))
               / GREATEST(extract(epoch FROM clock_timestamp() - min(n.at)), 1)::double precision AS passed
        FROM (
            SELECT q.position, q.at, q.reason FROM positions AS q
            WHERE q.subscription_id = s.id AND q.partition_id = p.id
            ORDER BY q.id DESC
            LIMIT 1000
        ) AS n
        WHERE n.at > clock_timestamp() - interval '1 minute' AND n.reason IN ('commit', 'carried', 'start')
    ) AS speed
    WHERE s.name = relay_status.subscription AND ((SELECT no_walls()) OR NOT reads_unseen(s.id))
      AND (NOT t.restricted AND (SELECT as_login()) OR has_right(t.namespace_id, 'read'))
    ORDER BY t.address, p.number;
END
$$;

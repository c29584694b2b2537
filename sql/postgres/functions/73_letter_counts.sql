-- name: dead_letter_counts
-- How many dead letters one subscription has, or each subscription (NULL), by state, and for how long the oldest has
-- been there. Of each subscription the oldest 10,000 are looked at: 10,000 means that many or more.
CREATE OR REPLACE FUNCTION dead_letter_counts(subscription text DEFAULT NULL)
RETURNS TABLE (subscription text, dead bigint, parked bigint, redriven bigint, oldest_seconds double precision)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
    SELECT s.name, c.dead, c.parked, c.redriven, c.oldest_seconds
    FROM subscriptions AS s
    CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE d.redriven_at IS NULL AND NOT d.parked) AS dead,
               count(*) FILTER (WHERE d.redriven_at IS NULL AND d.parked) AS parked,
               count(*) FILTER (WHERE d.redriven_at IS NOT NULL) AS redriven,
               COALESCE(extract(epoch FROM clock_timestamp() - min(d.died_at)), 0)::double precision AS oldest_seconds
        FROM (
            SELECT l.redriven_at, l.parked, l.died_at
            FROM dead_letters AS l
            WHERE l.subscription_id = s.id
            ORDER BY l.id
            LIMIT 10000
        ) AS d
    ) AS c
    WHERE (dead_letter_counts.subscription IS NULL OR s.name = dead_letter_counts.subscription)
      AND (NOT EXISTS (SELECT FROM namespace_grants) OR NOT reads_hidden(s.id))
    ORDER BY s.name
$$;

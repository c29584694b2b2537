-- name: log_status
-- The state of the log in one row: what waits, when the sequencer last found work, the oldest open transaction, and
-- how many event ids the storage can still take. For a login that does not pass the walls, it counts only what the
-- login may see, and figures that do not belong to a topic are NULL.
CREATE OR REPLACE FUNCTION log_status(
    OUT unsequenced_events bigint, OUT unsequenced_age_seconds double precision,
    OUT last_pass_age_seconds double precision, OUT oldest_transaction_seconds double precision,
    OUT event_ids_ready bigint, OUT rejected_commits bigint, OUT history integer, OUT topics bigint,
    OUT subscriptions bigint
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT u.events, u.oldest_age_seconds,
           CASE WHEN l.whole THEN
               extract(epoch FROM clock_timestamp() - (SELECT t.passed_at FROM ticks AS t ORDER BY t.id DESC LIMIT 1))
           END,
           CASE WHEN l.whole THEN COALESCE((
               SELECT max(extract(epoch FROM clock_timestamp() - a.xact_start))
               FROM pg_stat_activity AS a
               WHERE a.datname = current_database() AND a.backend_xmin IS NOT NULL
                 AND a.pid <> pg_backend_pid()), 0) END,
           (SELECT r.ready FROM slices_ready() AS r WHERE r.parent = 'events' AND l.whole),
           rejected_commits(), current_history(),
           (SELECT count(*) FROM topics AS t
            WHERE l.whole OR NOT t.restricted AND (SELECT as_login()) OR has_right(t.namespace_id, 'any')),
           (SELECT count(*) FROM subscriptions AS s WHERE l.whole OR NOT reads_hidden(s.id))
    FROM unsequenced() AS u, (SELECT sees_all() AS whole OFFSET 0) AS l
$$;

-- name: sequence_gaps
-- Partitions whose index of the log has a hole or an overlap above the low sequence: always empty unless something is
-- badly wrong. Each partition is looked at from a sequence on up to which it is known to be whole, by its number; else
-- from its low sequence.
CREATE OR REPLACE FUNCTION sequence_gaps(topic text, known bigint[] DEFAULT NULL)
RETURNS TABLE (partition integer, expected bigint, found bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    source_id bigint := require_topic(topic);
BEGIN
    RETURN QUERY
    SELECT p.number, g.expected, g.first_sequence
    FROM partitions AS p
    CROSS JOIN LATERAL (
        SELECT GREATEST(p.low_sequence, sequence_gaps.known[p.number + 1]) AS sequence OFFSET 0
    ) AS b
    CROSS JOIN LATERAL (
        SELECT c.first_sequence, cardinality(c.event_ids) = c.event_count AS whole,
               lag(c.first_sequence + c.event_count, 1, LEAST(c.first_sequence, b.sequence))
                   OVER (ORDER BY c.first_sequence) AS expected
        FROM chunks AS c
        WHERE c.partition_id = p.id
          AND c.first_sequence >= COALESCE((
              SELECT h.first_sequence
              FROM chunks AS h
              WHERE h.partition_id = p.id AND h.first_sequence <= b.sequence
              ORDER BY h.first_sequence DESC
              LIMIT 1), 0)
          AND c.first_sequence + c.event_count > b.sequence
    ) AS g
    WHERE p.topic_id = source_id AND (g.first_sequence <> g.expected OR NOT g.whole)
    ORDER BY p.number, g.first_sequence
    LIMIT 100;
END
$$;

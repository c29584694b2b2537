-- name: queue_statistics
-- How many events of a queue are ready, handed out, waiting for a retry, and dead, and what they are together without
-- the dead ones. Raises PS013, PS042.
CREATE OR REPLACE FUNCTION queue_statistics(subscription text)
RETURNS TABLE (size bigint, ready bigint, in_flight bigint, delayed bigint, dead bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    queue queues%ROWTYPE := require_queue(subscription, 'peek');
BEGIN
    RETURN QUERY
    SELECT c.ready + c.in_flight + c.delayed, c.ready, c.in_flight, c.delayed, (
               SELECT count(*) FROM dead_letters AS d WHERE d.subscription_id = queue.subscription_id)
    FROM queue_counts(queue.subscription_id) AS c;
END
$$;

-- name: queue_scheduled
-- How many events were published for later into the topics of a queue and are not due yet: they are not in the log, so
-- no other count has them. It counts no further than 20,000. Raises PS013, PS042.
CREATE OR REPLACE FUNCTION queue_scheduled(subscription text) RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    queue queues%ROWTYPE := require_queue(subscription, 'peek');
BEGIN
    RETURN (
        SELECT count(*)
        FROM (
            SELECT
            FROM (SELECT t.due, t.due_id FROM ticks AS t ORDER BY t.id DESC LIMIT 1) AS taken
            CROSS JOIN leases AS l
            JOIN delayed AS d
                ON d.partition_id = l.partition_id AND d.due >= taken.due AND (d.due, d.id) > (taken.due, taken.due_id)
            WHERE l.subscription_id = queue.subscription_id
            LIMIT 20000
        ) AS coming);
END
$$;

-- name: queue_pointers
-- Where a queue stands in each partition. reader: the sequence that is dealt next. repair: the lowest one that is not
-- finished; retention waits for it. invisibility: the lowest one that is handed out now or waits for a retry, NULL when
-- there is none. behind: how many wait behind an earlier event of their key. Raises PS013, PS042.
CREATE OR REPLACE FUNCTION queue_pointers(subscription text)
RETURNS TABLE (
    topic text, partition integer, reader bigint, repair bigint, invisibility bigint, behind bigint
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    queue queues%ROWTYPE := require_queue(subscription, 'peek');
    first_id bigint := (newest_turn(queue.subscription_id)).floor_id;
BEGIN
    RETURN QUERY
    WITH unfinished AS (
        SELECT r.partition_id, CASE WHEN r.waiting_id IS NULL THEN first_unfinished(r) END AS repair,
               CASE WHEN r.token IS NOT NULL AND r.deadline > clock_timestamp() THEN first_unfinished(r) END
                   AS invisibility, 0 AS behind
        FROM queue_ranges AS r
        WHERE r.subscription_id = queue.subscription_id AND r.id >= first_id
        UNION ALL
        SELECT k.partition_id, CASE WHEN k.waiting_id = 0 THEN k.sequence END, NULL, 1
        FROM queue_keys AS k
        WHERE k.subscription_id = queue.subscription_id AND k.state <> 'first'
        UNION ALL
        SELECT w.partition_id, NULL, w.sequence, 0
        FROM queue_waiting AS w
        WHERE w.subscription_id = queue.subscription_id AND w.due_at IS NOT NULL
    ), lowest AS MATERIALIZED (
        SELECT u.partition_id, min(u.repair) AS repair, min(u.invisibility) AS invisibility,
               sum(u.behind) AS behind
        FROM unfinished AS u
        GROUP BY u.partition_id
    )
    SELECT t.address, (l.partition_id & 65535)::integer, stands.reached + 1, COALESCE(u.repair, stands.reached + 1),
           u.invisibility, COALESCE(u.behind, 0)
    FROM leases AS l
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
    WHERE l.subscription_id = queue.subscription_id
    ORDER BY 1, 2;
END
$$;

-- name: count_log_epochs
-- Counts the bytes of log epochs of a topic with a limit where they are not known: it was sealed by an older version,
-- or erased from since. The oldest first, and no more of them once the call has counted max_events. Returns how many
-- are left; 0 also where there is no limit. It is a call of its own, before a run of clean begins: whoever records a
-- copy waits for the log epochs that it has counted. Raises PS002, PS006, PS018.
CREATE OR REPLACE FUNCTION count_log_epochs(topic text, max_events bigint DEFAULT 100000) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    source_id bigint := require_topic_for(topic, 'operate');
    epoch log_epochs%ROWTYPE;
    counted bigint := 0;
    not_counted bigint := 0;
BEGIN
    PERFORM require_read_committed('count_log_epochs()');
    IF max_events IS NULL OR max_events < 1 THEN
        PERFORM refuse('PS006', format('max_events cannot be %s', max_events), 'Use 1 or more.');
    END IF;
    FOR epoch IN
        SELECT e.*
        FROM retention_policies AS r
        JOIN partitions AS p ON p.topic_id = r.topic_id
        JOIN log_epochs AS e ON e.partition_id = p.id AND e.dropped_at IS NULL
        WHERE r.topic_id = source_id AND r.max_bytes IS NOT NULL AND e.event_bytes IS NULL
        ORDER BY e.sealed_at, e.partition_id, e.log_epoch
    LOOP
        IF counted >= max_events THEN
            not_counted := not_counted + 1;
            CONTINUE;
        END IF;
        -- Locked before it is read: an erasure comes before this, or after it and forgets what was counted.
        PERFORM FROM log_epochs AS e
        WHERE e.partition_id = epoch.partition_id AND e.log_epoch = epoch.log_epoch
        FOR NO KEY UPDATE;
        UPDATE log_epochs AS e
        SET event_bytes = (
            SELECT COALESCE(sum(event_size(r.key, r.type, r.content_type, r.headers, r.payload)), 0)
            FROM read_log(epoch.partition_id, epoch.first_sequence, epoch.event_count::integer) AS r)
        WHERE e.partition_id = epoch.partition_id AND e.log_epoch = epoch.log_epoch AND e.dropped_at IS NULL;
        counted := counted + epoch.event_count;
    END LOOP;
    RETURN not_counted;
END
$$;

-- name: retention_limits
-- How full the topics are that have a limit (max_bytes): size is how many bytes are sealed and not dropped, above how
-- many of them are above the limit, and uncounted how many log epochs no run of clean has counted yet. partition,
-- log_epoch and hold say what keeps the oldest one that has to go; NULL: the next run of clean removes it.
CREATE OR REPLACE FUNCTION retention_limits()
RETURNS TABLE (
    topic text, max_bytes bigint, size bigint, uncounted bigint, above bigint, partition integer, log_epoch integer,
    hold text
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT t.address, r.max_bytes, s.size, s.uncounted, GREATEST(s.size - r.max_bytes, 0), h.partition, h.log_epoch,
           h.hold
    FROM retention_policies AS r
    JOIN topics AS t ON t.id = r.topic_id
    CROSS JOIN LATERAL (
        SELECT COALESCE(sum(e.event_bytes), 0)::bigint AS size, count(*) - count(e.event_bytes) AS uncounted
        FROM partitions AS p JOIN log_epochs AS e ON e.partition_id = p.id AND e.dropped_at IS NULL
        WHERE p.topic_id = t.id
    ) AS s
    LEFT JOIN LATERAL limit_hold(t.id) AS h ON s.size > r.max_bytes
    WHERE r.max_bytes IS NOT NULL AND (NOT t.restricted AND (SELECT as_login()) OR has_right(t.namespace_id, 'any'))
    ORDER BY t.address
$$;

-- name: event_size
-- How many bytes an event says. It is what the limit max_bytes of a topic counts.
CREATE OR REPLACE FUNCTION event_size(key text, type text, content_type text, headers jsonb, payload bytea)
RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT (COALESCE(octet_length(key), 0) + COALESCE(octet_length(type), 0) + COALESCE(octet_length(content_type), 0)
            + COALESCE(octet_length(headers::text), 0) + COALESCE(octet_length(payload), 0))::bigint
$$;

-- name: epochs_over_limit
-- The log epochs for which a topic has no room by its limit max_bytes: in each partition the youngest of them; those
-- before it go too. The youngest of the topic stay that fit together. size: how many bytes are sealed and not dropped.
CREATE OR REPLACE FUNCTION epochs_over_limit(topic_id bigint)
RETURNS TABLE (partition_id bigint, log_epoch integer, size bigint)
LANGUAGE sql STABLE AS $$
    SELECT k.partition_id, max(k.log_epoch), max(k.size)::bigint
    FROM (
        SELECT e.partition_id, e.log_epoch, sum(e.event_bytes) OVER () AS size,
               sum(e.event_bytes) OVER (ORDER BY e.sealed_at DESC, e.partition_id DESC, e.log_epoch DESC) AS kept
        FROM partitions AS p JOIN log_epochs AS e ON e.partition_id = p.id AND e.dropped_at IS NULL
        WHERE p.topic_id = epochs_over_limit.topic_id
    ) AS k
    JOIN retention_policies AS r ON r.topic_id = epochs_over_limit.topic_id AND k.kept > r.max_bytes
    GROUP BY k.partition_id
$$;

-- name: limit_hold
-- What keeps the first log epoch of a topic for which there is no room, and which it is; all NULL when the next run of
-- clean removes all of them, as far as the copies are whole.
CREATE OR REPLACE FUNCTION limit_hold(
    topic_id bigint, OUT "partition" integer, OUT log_epoch integer, OUT hold text
)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    policy retention_policies%ROWTYPE;
    found_row record;
BEGIN
    SELECT r.* INTO policy FROM retention_policies AS r WHERE r.topic_id = limit_hold.topic_id;
    FOR found_row IN
        SELECT p.number, e AS epoch
        FROM epochs_over_limit(limit_hold.topic_id) AS o
        JOIN partitions AS p ON p.id = o.partition_id
        JOIN log_epochs AS e
            ON e.partition_id = o.partition_id AND e.log_epoch <= o.log_epoch AND e.dropped_at IS NULL
        ORDER BY e.sealed_at, e.partition_id, e.log_epoch
    LOOP
        hold := retention_hold(found_row.epoch, policy, NULL, true);
        IF hold IS NOT NULL THEN
            partition := found_row.number;
            log_epoch := (found_row.epoch).log_epoch;
            RETURN;
        END IF;
    END LOOP;
END
$$;

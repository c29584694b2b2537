-- name: is_archived
-- Whether the log epoch that holds a sequence has a verified copy.
CREATE OR REPLACE FUNCTION is_archived(partition_id bigint, sequence bigint) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT FROM epoch_copies AS c
        WHERE c.partition_id = is_archived.partition_id AND c.state = 'verified'
          AND c.log_epoch = find_log_epoch_at(is_archived.partition_id, is_archived.sequence))
$$;

-- name: planned_rows
-- The segments of a plan with their copies. The copies are one range of the manifest's index, joined by hash: the
-- planner expects two rows, and would look 1,000 times for the copies of one log epoch. The order of targets is that of
-- their bytes, because comparing texts by the database's collation took half of the time.
CREATE OR REPLACE FUNCTION planned_rows(
    partition_id bigint, low_sequence bigint, from_sequence bigint, last_wanted bigint
) RETURNS TABLE (
    place text, log_epoch integer, first_sequence bigint, last_sequence bigint, event_count bigint, checksum text,
    target text, state text, location text, layout integer, first_row bigint
)
LANGUAGE plpgsql STABLE SET enable_nestloop = off AS $$
BEGIN
    RETURN QUERY
    WITH segments AS MATERIALIZED (
        SELECT * FROM planned_segments(planned_rows.partition_id, low_sequence, from_sequence, last_wanted)
    )
    SELECT CASE WHEN s.first_sequence < low_sequence AND NOT EXISTS (
               SELECT FROM rehydrated_epochs AS r
               WHERE r.partition_id = planned_rows.partition_id AND r.first_sequence = s.first_sequence)
           THEN 'cold' ELSE 'hot' END, s.log_epoch, s.first_sequence, s.last_sequence,
           s.last_sequence - s.first_sequence + 1, s.checksum, c.target, c.state, c.location, c.layout::integer,
           c.first_row
    FROM segments AS s
    LEFT JOIN (
        SELECT k.log_epoch, k.target, k.state, k.location, k.layout, k.first_row
        FROM epoch_copies AS k
        WHERE k.partition_id = planned_rows.partition_id
          AND k.log_epoch BETWEEN (SELECT min(b.log_epoch) FROM segments AS b)
                              AND (SELECT max(b.log_epoch) FROM segments AS b)
    ) AS c ON c.log_epoch = s.log_epoch
    ORDER BY s.first_sequence, c.target COLLATE "C";
END
$$;

-- name: planned_segments
-- The log epochs of a range, and what follows them unsealed. It has no settings, so that it is inlined into the query
-- that calls it.
CREATE OR REPLACE FUNCTION planned_segments(
    partition_id bigint, low_sequence bigint, from_sequence bigint, last_wanted bigint
) RETURNS TABLE (log_epoch integer, first_sequence bigint, last_sequence bigint, checksum text)
LANGUAGE sql STABLE ROWS 10 AS $$
    SELECT s.log_epoch, s.first_sequence, s.last_sequence, s.checksum
    FROM (
        (
            SELECT e.log_epoch, e.first_sequence, e.last_sequence, e.checksum
            FROM log_epochs AS e
            WHERE e.partition_id = planned_segments.partition_id
              AND e.first_sequence >= COALESCE((
                  SELECT b.first_sequence
                  FROM log_epochs AS b
                  WHERE b.partition_id = planned_segments.partition_id
                    AND b.first_sequence <= planned_segments.from_sequence
                  ORDER BY b.first_sequence DESC
                  LIMIT 1), 0)
              AND e.first_sequence <= planned_segments.last_wanted
              AND e.last_sequence >= planned_segments.from_sequence
            ORDER BY e.first_sequence
            LIMIT 1000
        )
        UNION ALL
        SELECT NULL, u.first_sequence, high_watermark(planned_segments.partition_id), NULL
        FROM (
            SELECT GREATEST(planned_segments.low_sequence, COALESCE((
                SELECT n.last_sequence
                FROM log_epochs AS n
                WHERE n.partition_id = planned_segments.partition_id
                ORDER BY n.first_sequence DESC
                LIMIT 1), 0) + 1) AS first_sequence
        ) AS u
        WHERE u.first_sequence <= planned_segments.last_wanted
    ) AS s
    WHERE planned_segments.from_sequence <= planned_segments.last_wanted
    ORDER BY s.first_sequence
    LIMIT 1000
$$;

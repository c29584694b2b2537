-- By design: PostgreSQL counts what waits by its ticks, MySQL by its waiting blocks.

-- name: restored_events
-- The events that wait before the first pass after a restore, as far as the last tick can tell; its transaction
-- numbers may belong to another cluster. These are events that the tick had not counted as committed, events with a
-- higher id, and events that were written since the tick's row was loaded, unless they are in their place. What has an
-- id from before the era of the tick waits under the same conditions as in repair_events.
CREATE OR REPLACE FUNCTION restored_events(tick ticks) RETURNS TABLE (id bigint, partition_id bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
    WITH bounds AS MATERIALIZED (
        SELECT CASE WHEN (restored_events.tick).repair THEN a.base
                    WHEN (restored_events.tick).complete THEN (restored_events.tick).target
                    ELSE (restored_events.tick).base END AS base,
               loaded_by(restored_events.tick) AS early_tx, a.boundary_id, a.base AS era_base, a.settled,
               is_one_cluster(a.era) AS is_one_cluster
        FROM current_era() AS a
    ), found AS (
        SELECT e.id, e.partition_id, e.due_at, e.tx, e.xmin AS written
        FROM bounds AS b JOIN events AS e ON e.tx >= pg_snapshot_xmax(b.base)
        UNION ALL
        SELECT e.id, e.partition_id, e.due_at, e.tx, e.xmin AS written
        FROM bounds AS b JOIN events AS e ON e.tx = ANY (ARRAY(SELECT pg_snapshot_xip(b.base)))
    )
    SELECT e.id, e.partition_id
    FROM bounds AS b JOIN found AS e
        ON e.id > b.boundary_id OR e.tx < b.settled AND NOT pg_visible_in_snapshot(e.tx, b.era_base)
           OR is_own_number(e.tx, e.written) AND (b.is_one_cluster OR NOT is_over(e.partition_id, e.id))
    WHERE NOT is_placed(e.partition_id, e.id, e.due_at)
    UNION
    SELECT e.id, e.partition_id
    FROM bounds AS b JOIN events AS e ON e.tx >= b.early_tx
    WHERE is_own_number(e.tx, e.xmin) AND NOT is_placed(e.partition_id, e.id, e.due_at)
      AND NOT (is_over(e.partition_id, e.id) AND is_loaded(e.id, e.tx, e.xmin))
    UNION
    SELECT e.id, e.partition_id
    FROM events AS e
    WHERE e.id > (restored_events.tick).highest_id AND NOT is_placed(e.partition_id, e.id, e.due_at)
      AND NOT is_over(e.partition_id, e.id)
    UNION
    SELECT r.id, r.partition_id FROM repair_events(restored_events.tick) AS r WHERE (restored_events.tick).repair
$$;

-- name: waiting_events
-- The committed events that wait for their sequence, up to a limit: those of the next ticks, and those that a
-- repair has not reached.
CREATE OR REPLACE FUNCTION waiting_events(max_events bigint) RETURNS TABLE (id bigint, partition_id bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    tick ticks%ROWTYPE;
BEGIN
    SELECT * INTO tick FROM ticks AS t ORDER BY t.id DESC LIMIT 1;
    IF NOT FOUND THEN
        RETURN;  -- The storage of the ticks is gone, which the doctor names.
    END IF;
    IF is_other_era(tick) THEN
        RETURN QUERY SELECT w.id, w.partition_id FROM restored_events(tick) AS w LIMIT waiting_events.max_events;
        RETURN;
    END IF;
    RETURN QUERY
    SELECT f.id, f.partition_id
    FROM fresh_events(CASE WHEN tick.repair THEN (current_era()).base ELSE tick.target END, pg_current_snapshot(), 0)
        AS f
    UNION ALL
    SELECT f.id, f.partition_id
    FROM fresh_events(tick.base, tick.target, tick.last_id) AS f
    WHERE NOT tick.complete AND NOT tick.repair
    UNION ALL
    SELECT r.id, r.partition_id FROM repair_events(tick) AS r WHERE tick.repair AND NOT tick.complete
    LIMIT waiting_events.max_events;
END
$$;

-- By design: PostgreSQL's sequencer works on the differences between snapshots; MySQL's claims waiting blocks.

-- name: committed_snapshot
-- A snapshot of what is committed now. It counts the caller's own transaction as open, which pg_current_snapshot()
-- does not: what the transaction still publishes has to come with a later tick.
CREATE OR REPLACE FUNCTION committed_snapshot() RETURNS pg_snapshot
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    own xid8 := pg_current_xact_id();
    now pg_snapshot := pg_current_snapshot();
BEGIN
    IF NOT pg_visible_in_snapshot(own, now) THEN
        RETURN now;
    END IF;
    RETURN format('%s:%s:%s', LEAST(own, pg_snapshot_xmin(now)), pg_snapshot_xmax(now), (
        SELECT string_agg(x.tx::text, ',' ORDER BY x.tx)
        FROM (SELECT pg_snapshot_xip(now) AS tx UNION ALL SELECT own) AS x))::pg_snapshot;
END
$$;

-- name: fresh_events
-- The events that became visible between two snapshots and have an id above last_id. It is written so that the
-- planner starts from the index on tx, even before there are statistics: an ORDER BY id, or a condition on the bare
-- id, would make the planner walk the whole primary key. Transactions that are still open are not looked up;
-- otherwise every tick would read all rows that an open bulk load has written. Events from before the era are left to
-- the era's repair. The function has no settings, so that it is inlined into the query that calls it; the caller has
-- to switch sequential scans off.
CREATE OR REPLACE FUNCTION fresh_events(base pg_snapshot, target pg_snapshot, last_id bigint)
RETURNS TABLE (id bigint, partition_id bigint, due_at timestamptz)
LANGUAGE sql STABLE ROWS 1000 AS $$
    SELECT e.id, e.partition_id, e.due_at
    FROM events AS e
    WHERE e.tx >= pg_snapshot_xmax(fresh_events.base)
      AND e.tx < pg_snapshot_xmax(fresh_events.target)
      AND pg_visible_in_snapshot(e.tx, fresh_events.target)
      AND e.id + 0 > fresh_events.last_id
      AND (e.id + 0 > (SELECT a.boundary_id FROM current_era() AS a)
           OR straddles(e.tx, e.xmin, e.partition_id, e.id, e.due_at))
    UNION ALL
    SELECT e.id, e.partition_id, e.due_at
    FROM events AS e
    WHERE e.tx = ANY (ARRAY(
            SELECT x.tx
            FROM pg_snapshot_xip(fresh_events.base) AS x (tx)
            WHERE pg_visible_in_snapshot(x.tx, fresh_events.target)))
      AND e.id + 0 > fresh_events.last_id
      AND (e.id + 0 > (SELECT a.boundary_id FROM current_era() AS a)
           OR straddles(e.tx, e.xmin, e.partition_id, e.id, e.due_at))
$$;

-- name: near_events
-- The first events of a large tick above last_id, in id order, found by a walk along the primary key over ten
-- times max_events ids. Otherwise every pass over a backlog would read the whole backlog. A result of fewer
-- than max_events does not mean that there are no more.
CREATE OR REPLACE FUNCTION near_events(base pg_snapshot, target pg_snapshot, last_id bigint, max_events integer)
RETURNS TABLE (id bigint, partition_id bigint, due_at timestamptz)
LANGUAGE sql STABLE ROWS 1000 AS $$
    SELECT e.id, e.partition_id, e.due_at
    FROM events AS e
    WHERE e.id > near_events.last_id AND e.id <= near_events.last_id + 10 * near_events.max_events::bigint
      AND near_events.last_id > 0
      AND pg_visible_in_snapshot(e.tx, near_events.target) AND NOT pg_visible_in_snapshot(e.tx, near_events.base)
      AND (e.id > (SELECT a.boundary_id FROM current_era() AS a)
           OR straddles(e.tx, e.xmin, e.partition_id, e.id, e.due_at))
    ORDER BY e.id
    LIMIT near_events.max_events
$$;

-- name: has_lower_ids
-- Whether a tick has an event with an id up to after_id although it was published later, because the counter of ids
-- was set back.
CREATE OR REPLACE FUNCTION has_lower_ids(
    base pg_snapshot, target pg_snapshot, last_horizon xid8, after_id bigint
) RETURNS boolean
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM events AS e
        WHERE e.tx >= LEAST(pg_snapshot_xmax(has_lower_ids.base), has_lower_ids.last_horizon)
          AND e.tx < pg_snapshot_xmax(has_lower_ids.target)
          AND (e.tx >= pg_snapshot_xmax(has_lower_ids.base) OR e.tx = has_lower_ids.last_horizon)
          AND e.id + 0 <= has_lower_ids.after_id
          AND pg_visible_in_snapshot(e.tx, has_lower_ids.target) AND is_own_number(e.tx, e.xmin));
END
$$;

-- name: first_id_of
-- The lowest id of the events of some transactions; NULL when they have none.
CREATE OR REPLACE FUNCTION first_id_of(transactions xid8[]) RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
BEGIN
    RETURN min(e.id + 0) FROM events AS e WHERE e.tx = ANY (first_id_of.transactions);
END
$$;

-- name: tick_start
-- An id below every event of the tick that begins; 0 when none is known. Transactions above the base took their ids
-- after the newest horizon below the base. Late transactions are looked up, except the one of the tick before, which
-- took its ids after that tick's highest_id.
CREATE OR REPLACE FUNCTION tick_start(base pg_snapshot, target pg_snapshot, horizon xid8) RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT
SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    settled_id bigint;
    late_id bigint;
    late xid8[] := ARRAY(
        SELECT x.tx FROM pg_snapshot_xip(base) AS x (tx)
        WHERE pg_visible_in_snapshot(x.tx, target) AND x.tx <> tick_start.horizon);
BEGIN
    SELECT t.highest_id INTO settled_id
    FROM ticks AS t
    WHERE t.horizon <= pg_snapshot_xmax(tick_start.base) AND t.era = (SELECT a.era FROM current_era() AS a)
    ORDER BY t.id DESC
    LIMIT 1;
    IF settled_id > 0 AND late <> '{}' THEN
        late_id := first_id_of(late);
    END IF;
    RETURN LEAST(COALESCE(settled_id, 0), late_id - 1);
END
$$;

-- name: nothing_open
-- Whether no transaction but the sequencer's own was open when a tick was taken.
CREATE OR REPLACE FUNCTION nothing_open(tick ticks) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN pg_snapshot_xmax(tick.target) >= tick.horizon
       AND NOT EXISTS (SELECT FROM pg_snapshot_xip(tick.target) AS x (tx) WHERE x.tx <> tick.horizon);
END
$$;

-- name: is_quiet
-- Whether nothing can have come since the last tick, found without a lock. Four things must hold. No id was given out
-- since. When the tick was taken, no transaction was open but the sequencer's own (the list in a snapshot ends below
-- the last transaction that has ended, so the snapshot's end is checked too). No delayed event is due. And no event
-- has come with an id from a counter that was set back, neither from a later transaction nor from the sequencer's.
CREATE OR REPLACE FUNCTION is_quiet(issued bigint, now_due bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    t ticks%ROWTYPE;
BEGIN
    SELECT n.* INTO t FROM ticks AS n ORDER BY n.id DESC LIMIT 1;
    -- A pass that has work ends here: the query below opens every slice of the log before it looks at a row.
    IF t.complete AND NOT t.repair AND t.highest_id = is_quiet.issued AND nothing_open(t) THEN
        RETURN NOT EXISTS (
            SELECT FROM delayed AS d
            WHERE d.due >= t.due AND d.due <= is_quiet.now_due AND (d.due, d.id) > (t.due, t.due_id))
        AND NOT EXISTS (
            SELECT FROM events AS e WHERE e.tx >= pg_snapshot_xmax(t.target) AND is_own_number(e.tx, e.xmin))
        AND NOT (t.horizon < pg_snapshot_xmax(t.target) AND EXISTS (
            SELECT FROM events AS e
            WHERE e.tx = t.horizon AND NOT pg_visible_in_snapshot(e.tx, t.target) AND is_own_number(e.tx, e.xmin)))
        AND NOT is_other_era(t);
    END IF;
    RETURN false;
END
$$;

-- name: next_tick
-- The tick that follows a complete one: it covers everything that was committed since. issued is the newest id that
-- was handed out before the caller's transaction had a number; NULL when that is not known.
CREATE OR REPLACE FUNCTION next_tick(tick ticks, issued bigint) RETURNS ticks
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    IF issued IS NOT NULL THEN
        tick.highest_id := issued;
        tick.horizon := pg_current_xact_id();
    END IF;
    tick.base := CASE WHEN tick.repair THEN (current_era()).base ELSE tick.target END;
    tick.target := committed_snapshot();
    tick.last_id := 0;
    tick.repair := false;
    tick.repair_era := 0;
    tick.repaired_id := 0;
    RETURN tick;
END
$$;

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

-- name: append_chunks
-- One pass: numbers, per partition, the next events of a tick (at most max_events, in id order) and the delayed
-- events that are due (in order of due time and id, at least a quarter of a pass). It appends them to the index of
-- the log in chunks of at most 1,000. Events with a later time go to delayed; those of a deleted topic are only
-- counted. due and due_id say up to where delayed events have now been taken; an event that appears later with an
-- earlier time is numbered at once. grown has a partition once for each of its chunks. base and target are those of
-- the tick. They are separate arguments because taking them out of the record would cost two copies for every event.
CREATE OR REPLACE FUNCTION append_chunks(
    tick ticks, base pg_snapshot, target pg_snapshot, max_events integer, now_due bigint,
    OUT sequenced bigint, OUT seen bigint, OUT highest bigint, OUT due bigint, OUT due_id bigint, OUT due_left boolean,
    OUT grown bigint[]
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET work_mem = '32MB'
SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    -- One statement in stages; what writes does so together.
    -- stage      | what it has                                                      | made from
    -- near       | the tick's next events by a walk along the primary key           | near_events()
    -- near_pass  | how many those are, and whether they fill the pass               | near
    -- far        | the tick's next events by the index on tx, if near does not      | fresh_events()
    -- repaired   | after a restore, instead: what is not in its place               | repair_events()
    -- fresh      | the events of the three that this pass works on                  | near, far, repaired
    -- room       | how many, the highest id, and how many delayed ones there may be | near_pass, far, repaired
    -- ripe       | that many of the delayed events that are due                     | delayed, room
    -- taken      | up to where delayed events are taken, and how groups are sorted  | ripe, room, fresh
    -- put_off    | WRITES delayed: what is to come later                            | fresh, taken
    -- batch      | what gets a sequence now, with the time that it waited for       | fresh, ripe, taken
    -- groups     | the ids of each partition, in the order of their sequences       | fresh, or batch
    -- discarded  | WRITES deleted_topics: counts what nobody can read any more      | groups
    -- heads      | the groups that stay, each with its next sequence                | groups, chunks
    -- pieces     | these, cut at 1,000 events                                       | heads
    -- appended   | WRITES chunks                                                    | pieces
    WITH near AS MATERIALIZED (
        SELECT n.id, n.partition_id, n.due_at
        FROM near_events(append_chunks.base, append_chunks.target, (append_chunks.tick).last_id,
                         append_chunks.max_events) AS n
        WHERE NOT (append_chunks.tick).repair
    ), near_pass AS MATERIALIZED (
        SELECT count(*) = append_chunks.max_events AS is_full, count(*) AS seen, max(n.id) AS highest,
               count(n.due_at) AS with_due
        FROM near AS n
    ), far AS MATERIALIZED (
        SELECT f.id, f.partition_id, f.due_at
        FROM fresh_events(append_chunks.base, append_chunks.target, (append_chunks.tick).last_id) AS f
        WHERE NOT (append_chunks.tick).repair AND NOT (SELECT n.is_full FROM near_pass AS n)
        ORDER BY f.id
        LIMIT append_chunks.max_events
    ), repaired AS MATERIALIZED (
        SELECT r.id, r.partition_id, r.due_at
        FROM repair_events(append_chunks.tick) AS r
        WHERE (append_chunks.tick).repair
        ORDER BY r.id
        LIMIT append_chunks.max_events
    ), fresh AS NOT MATERIALIZED (
        SELECT n.id, n.partition_id, n.due_at FROM near AS n WHERE (SELECT p.is_full FROM near_pass AS p)
        UNION ALL
        SELECT f.id, f.partition_id, f.due_at FROM far AS f
        UNION ALL
        SELECT r.id, r.partition_id, r.due_at FROM repaired AS r
    ), room AS MATERIALIZED (
        SELECT f.seen, f.highest, f.with_due,
               GREATEST(append_chunks.max_events - f.seen, append_chunks.max_events / 4, 1) AS due_events
        FROM (
            SELECT n.seen, n.highest, n.with_due FROM near_pass AS n WHERE n.is_full
            UNION ALL
            SELECT count(*), max(o.id), count(o.due_at)
            FROM (SELECT * FROM far UNION ALL SELECT * FROM repaired) AS o
            HAVING NOT (SELECT n.is_full FROM near_pass AS n)
        ) AS f
    ), ripe AS MATERIALIZED (
        SELECT d.due, d.id, d.partition_id
        FROM delayed AS d
        WHERE d.due >= (append_chunks.tick).due AND d.due <= append_chunks.now_due
          AND (d.due, d.id) > ((append_chunks.tick).due, (append_chunks.tick).due_id)
        ORDER BY d.due, d.id
        LIMIT (SELECT r.due_events FROM room AS r)
    ), taken AS MATERIALIZED (
        SELECT CASE WHEN full_pass.due_left THEN (SELECT max(r.due) FROM ripe AS r)
                    ELSE GREATEST(append_chunks.now_due, (append_chunks.tick).due) END AS due,
               CASE WHEN full_pass.due_left THEN (SELECT r.id FROM ripe AS r ORDER BY r.due DESC, r.id DESC LIMIT 1)
                    WHEN append_chunks.now_due < (append_chunks.tick).due THEN (append_chunks.tick).due_id
                    ELSE 9223372036854775807 END AS due_id,
               full_pass.due_left,
               full_pass.ripe_events > 0 OR full_pass.with_due > 0 OR full_pass.seen < 32 * full_pass.partitions
                   AS by_sort
        FROM (
            SELECT d.ripe_events, r.with_due, r.seen, g.partitions, d.ripe_events = r.due_events AS due_left
            FROM room AS r, (SELECT count(*) AS ripe_events FROM ripe) AS d,
                (SELECT count(*) AS partitions FROM (SELECT FROM fresh AS f GROUP BY f.partition_id) AS p) AS g
        ) AS full_pass
    ), put_off AS (
        INSERT INTO delayed (due, id, partition_id)
        SELECT (extract(epoch FROM f.due_at) * 1000000)::bigint, f.id, f.partition_id
        FROM fresh AS f, taken AS t
        WHERE (SELECT r.with_due FROM room AS r) > 0
          AND f.due_at IS NOT NULL AND ((extract(epoch FROM f.due_at) * 1000000)::bigint, f.id) > (t.due, t.due_id)
    ), batch AS (
        SELECT f.id, f.partition_id, COALESCE((extract(epoch FROM f.due_at) * 1000000)::bigint, 0) AS due
        FROM fresh AS f, taken AS t
        WHERE f.due_at IS NULL OR ((extract(epoch FROM f.due_at) * 1000000)::bigint, f.id) <= (t.due, t.due_id)
        UNION ALL
        SELECT r.id, r.partition_id, r.due FROM ripe AS r
    ), groups AS MATERIALIZED (
        -- Grouped by a hash, then sorted partition by partition: a third of the cost of one sort of all
        -- rows, where partitions have many events each. Where no event has a time to wait for, ids are
        -- all that there is to sort by.
        SELECT g.partition_id, ARRAY(SELECT unnest(g.ids) AS id ORDER BY id) AS ids, g.size, false AS mixed
        FROM (
            SELECT f.partition_id, array_agg(f.id) AS ids, count(*)::integer AS size
            FROM fresh AS f
            WHERE NOT (SELECT t.by_sort FROM taken AS t)
            GROUP BY f.partition_id
        ) AS g
        UNION ALL
        SELECT b.partition_id, array_agg(b.id ORDER BY b.due, b.id), count(*)::integer, max(b.due) > 0
        FROM batch AS b
        WHERE (SELECT t.by_sort FROM taken AS t)
        GROUP BY b.partition_id
    ), discarded AS (
        UPDATE deleted_topics AS d SET discarded = d.discarded + late.size
        FROM (SELECT g.partition_id >> 16 AS topic_id, sum(g.size) AS size FROM groups AS g GROUP BY 1) AS late
        WHERE d.topic_id = late.topic_id
    ), heads AS MATERIALIZED (
        SELECT g.partition_id, g.ids, g.size, g.mixed, COALESCE((
            -- It overflows beyond 10^18, the last sequence that can be read: no event gets a sequence that no reader
            -- can fetch.
            SELECT c.first_sequence + c.event_count + 8223372036854775807 - 8223372036854775807
            FROM chunks AS c
            WHERE c.partition_id = g.partition_id
              -- Leaves out the slices that are ready and still empty.
              AND c.chunk_id <= (SELECT newest_chunk())
            ORDER BY c.first_sequence DESC
            LIMIT 1), 1) AS next_sequence
        FROM groups AS g
        WHERE NOT EXISTS (SELECT FROM deleted_topics AS d WHERE d.topic_id = g.partition_id >> 16)
    ), pieces AS (
        SELECT h.partition_id, h.mixed, h.next_sequence + h.n AS first_sequence, h.ids[h.n + 1:h.n + 1000] AS ids
        FROM (SELECT a.*, generate_series(0, a.size - 1, 1000) AS n FROM heads AS a) AS h
    ), appended AS (
        INSERT INTO chunks (partition_id, first_sequence, event_count, first_id, last_id, event_ids, sequenced_at)
        SELECT p.partition_id, p.first_sequence, cardinality(p.ids),
               CASE WHEN p.mixed THEN (SELECT min(i.id) FROM unnest(p.ids) AS i (id)) ELSE p.ids[1] END,
               CASE WHEN p.mixed THEN (SELECT max(i.id) FROM unnest(p.ids) AS i (id))
                    ELSE p.ids[cardinality(p.ids)] END,
               p.ids, clock_timestamp()
        FROM pieces AS p
        RETURNING partition_id, event_count
    )
    SELECT COALESCE(a.events, 0), r.seen, COALESCE(r.highest, (append_chunks.tick).last_id), t.due, t.due_id,
           t.due_left, COALESCE(a.grown, '{}')
    INTO sequenced, seen, highest, due, due_id, due_left, grown
    FROM room AS r, taken AS t,
        (SELECT sum(g.event_count) AS events, array_agg(g.partition_id) AS grown FROM appended AS g) AS a;
END
$$;

-- name: append_few
-- One pass over a tick of few events, for a fraction of the cost of append_chunks: it walks the primary key between
-- two ids. done is false, and nothing was changed, when an event is delayed, due or of a deleted topic, or when the
-- tick has events outside the two ids because the counter of ids was set back. last_horizon is the number of the tick
-- before, whose transaction is looked up too.
CREATE OR REPLACE FUNCTION append_few(
    base pg_snapshot, target pg_snapshot, last_horizon xid8, after_id bigint, newest_id bigint,
    due bigint, due_id bigint, now_due bigint,
    OUT done boolean, OUT sequenced bigint, OUT seen bigint, OUT highest bigint, OUT grown bigint[]
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    WITH fresh AS MATERIALIZED (
        SELECT e.id, e.partition_id, e.due_at
        FROM events AS e
        WHERE e.id > append_few.after_id AND e.id <= append_few.newest_id
          AND pg_visible_in_snapshot(e.tx, append_few.target) AND NOT pg_visible_in_snapshot(e.tx, append_few.base)
    ), total AS MATERIALIZED (
        SELECT count(*) AS seen, COALESCE(max(f.id), append_few.after_id) AS highest,
               count(f.due_at) = 0 AND NOT EXISTS (
                SELECT FROM fresh AS o JOIN deleted_topics AS d ON d.topic_id = o.partition_id >> 16
            ) AND NOT EXISTS (
                SELECT FROM delayed AS d
                WHERE d.due >= append_few.due AND d.due <= append_few.now_due
                  AND (d.due, d.id) > (append_few.due, append_few.due_id)
            ) AND count(*) <= 1000 AND NOT EXISTS (
                SELECT FROM events AS e
                WHERE e.tx >= LEAST(pg_snapshot_xmax(append_few.base), append_few.last_horizon)
                  AND e.tx < pg_snapshot_xmax(append_few.target)
                  AND (e.tx >= pg_snapshot_xmax(append_few.base) OR e.tx = append_few.last_horizon)
                  AND NOT (e.id + 0 > append_few.after_id AND e.id + 0 <= append_few.newest_id)
                  AND pg_visible_in_snapshot(e.tx, append_few.target) AND is_own_number(e.tx, e.xmin)
            ) AND append_few.after_id >= (SELECT a.boundary_id FROM current_era() AS a) AS done
        FROM fresh AS f
    ), appended AS (
        INSERT INTO chunks (partition_id, first_sequence, event_count, first_id, last_id, event_ids, sequenced_at)
        SELECT g.partition_id, COALESCE((
                -- As in append_chunks.
                SELECT c.first_sequence + c.event_count + 8223372036854775807 - 8223372036854775807
                FROM chunks AS c
                WHERE c.partition_id = g.partition_id AND c.chunk_id <= (SELECT newest_chunk())
                ORDER BY c.first_sequence DESC
                LIMIT 1), 1),
            cardinality(g.ids), g.ids[1], g.ids[cardinality(g.ids)], g.ids, clock_timestamp()
        FROM (
            SELECT f.partition_id, array_agg(f.id ORDER BY f.id) AS ids
            FROM fresh AS f
            WHERE (SELECT t.done FROM total AS t)
            GROUP BY f.partition_id
        ) AS g
        RETURNING partition_id
    )
    SELECT t.done, t.seen, t.seen, t.highest, ARRAY(SELECT a.partition_id FROM appended AS a)
    INTO done, sequenced, seen, highest, grown
    FROM total AS t;
END
$$;

-- name: sequence
-- One pass of the sequencer: gives committed events their sequences. It never waits for an open transaction; an event
-- that commits late comes with the next tick. busy: another session is sequencing. more: call again at once. Raises
-- PS018.
CREATE OR REPLACE FUNCTION sequence(
    max_events integer DEFAULT 10000,
    OUT sequenced bigint, OUT more boolean, OUT busy boolean, OUT grown bigint[]
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    tick ticks%ROWTYPE;
    pass record;
    issued bigint;
    settled_id bigint;
    newest bigint;
    last_horizon xid8;
    has_late boolean;
    begun boolean;
    is_done boolean := false;
    now_due bigint := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
BEGIN
    PERFORM require_read_committed('sequence()');
    IF max_events IS NULL OR max_events NOT BETWEEN 1 AND 1000000 THEN
        PERFORM refuse('PS006', format('a pass of %s events', max_events), 'Use 1 to 1,000,000.');
    END IF;
    IF current_setting('synchronous_commit') IN ('off', 'local') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    sequenced := 0; more := false; busy := false; grown := '{}';
    IF pg_current_xact_id_if_assigned() IS NULL THEN
        -- The lock below gives this transaction its number, so whoever took one of these ids has a smaller one.
        SELECT s.last_value - (NOT s.is_called)::integer INTO issued FROM events_id AS s;
        IF is_quiet(issued, now_due) THEN
            RETURN;
        END IF;
    END IF;
    PERFORM FROM sequencer FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        busy := true;
        RETURN;
    END IF;
    SELECT * INTO STRICT tick FROM ticks AS t ORDER BY t.id DESC LIMIT 1;
    IF is_other_era(tick) THEN
        tick := open_era(tick);
    END IF;
    begun := tick.complete;
    settled_id := tick.highest_id;
    IF begun THEN
        last_horizon := tick.horizon;
        tick := next_tick(tick, issued);
        -- Read after the target: no event in the target has a higher id, unless the sequence was set back. For new
        -- events append_few notices that; with late ones it walks to the end.
        SELECT s.last_value, EXISTS (
            SELECT FROM pg_snapshot_xip(tick.base) AS x (tx)
            WHERE pg_visible_in_snapshot(x.tx, tick.target) AND x.tx <> last_horizon)
        INTO newest, has_late
        FROM events_id AS s;
        -- Below 0, the sequence was set back.
        IF tick.last_id > 0 AND newest - tick.last_id BETWEEN 0 AND LEAST(max_events, 1000) - 1 THEN
            SELECT f.*, GREATEST(tick.due, now_due) AS due, false AS due_left,
                   CASE WHEN now_due < tick.due THEN tick.due_id ELSE 9223372036854775807 END AS due_id
            INTO pass
            FROM append_few(tick.base, tick.target, last_horizon, tick.last_id,
                            CASE WHEN has_late THEN 9223372036854775807 ELSE newest END,
                            tick.due, tick.due_id, now_due) AS f;
            is_done := pass.done;
        END IF;
        -- The walk along the primary key pays off only over a backlog.
        IF newest - tick.last_id <= max_events
            OR tick.last_id > 0 AND has_lower_ids(tick.base, tick.target, last_horizon, tick.last_id) THEN
            tick.last_id := 0;
        END IF;
    END IF;
    IF NOT is_done THEN
        SELECT * INTO pass
        FROM append_chunks(tick, tick.base::text::pg_snapshot, tick.target::text::pg_snapshot, max_events, now_due);
    END IF;
    IF pass.seen = 0 AND pass.sequenced = 0 AND begun AND tick.highest_id = settled_id
        AND (issued IS NULL OR NOT nothing_open(tick)) THEN
        RETURN;  -- Else a row, for once: from then on the log is quiet, where the last tick saw others at work.
    END IF;
    -- After the last pass of a longer tick there may be another tick: a caller that works off a backlog has to look.
    more := pass.seen >= max_events OR pass.due_left OR NOT begun;
    INSERT INTO ticks (id, base, target, last_id, complete, highest_id, horizon, era, repair, done_id, due, due_id,
                       repair_era, repaired_id, chunk_id)
    VALUES (tick.id + 1, tick.base, tick.target, pass.highest, pass.seen < max_events, tick.highest_id, tick.horizon,
            tick.era, tick.repair, tick.done_id, pass.due, pass.due_id, tick.repair_era, tick.repaired_id,
            -- The others are for a counter that was set back while this pass was under way: the next one notices it.
            (SELECT GREATEST(s.last_value - (NOT s.is_called)::integer, tick.chunk_id + cardinality(pass.grown),
                             CASE WHEN pass.grown <> '{}' THEN currval('chunks_id') END)
             FROM chunks_id AS s));
    sequenced := pass.sequenced;
    grown := ARRAY(SELECT DISTINCT g.partition_id FROM unnest(pass.grown) AS g (partition_id) ORDER BY 1);
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
BEGIN
    RETURN t.complete AND NOT t.repair AND t.highest_id = is_quiet.issued
       AND nothing_open(t)
       AND NOT EXISTS (
           SELECT FROM delayed AS d
           WHERE d.due >= t.due AND d.due <= is_quiet.now_due AND (d.due, d.id) > (t.due, t.due_id))
       AND NOT EXISTS (
           SELECT FROM events AS e WHERE e.tx >= pg_snapshot_xmax(t.target) AND is_own_number(e.tx, e.xmin))
       AND NOT (t.horizon < pg_snapshot_xmax(t.target) AND EXISTS (
           SELECT FROM events AS e
           WHERE e.tx = t.horizon AND NOT pg_visible_in_snapshot(e.tx, t.target) AND is_own_number(e.tx, e.xmin)))
       AND NOT is_other_era(t)
    FROM (SELECT * FROM ticks AS n ORDER BY n.id DESC LIMIT 1) AS t;
END
$$;

-- name: next_tick
-- The tick that follows a complete one: it covers everything that was committed since. issued is the newest id that
-- was handed out before the caller's transaction had a number; NULL when that is not known.
CREATE OR REPLACE FUNCTION next_tick(tick ticks, issued bigint) RETURNS ticks
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    last_horizon xid8 := tick.horizon;
BEGIN
    IF issued IS NOT NULL THEN
        tick.highest_id := issued;
        tick.horizon := pg_current_xact_id();
    END IF;
    tick.base := CASE WHEN tick.repair THEN (current_era()).base ELSE tick.target END;
    tick.target := committed_snapshot();
    tick.last_id := tick_start(tick.base, tick.target, last_horizon);
    tick.repair := false;
    tick.repair_era := 0;
    tick.repaired_id := 0;
    RETURN tick;
END
$$;

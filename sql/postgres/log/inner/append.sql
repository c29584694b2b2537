-- By design: PostgreSQL numbers what is in a tick, MySQL what it has claimed of the waiting blocks.

-- name: append_chunks
-- One pass: numbers, per partition, the next events of a tick (at most max_events, in id order) and the delayed
-- events that are due (in order of due time and id, at least a quarter of a pass). It appends them to the index of
-- the log in chunks of at most 1,000. Events with a later time go to delayed; those of a deleted topic are only
-- counted. due and due_id say up to where delayed events have now been taken; an event that appears later with an
-- earlier time is numbered at once. grown has a partition once for each of its chunks. base and target are those of
-- the tick. They are separate arguments because taking them out of the record would cost two copies for every event.
-- No chunk has a number above newest_chunk.
CREATE OR REPLACE FUNCTION append_chunks(
    tick ticks, base pg_snapshot, target pg_snapshot, max_events integer, newest_chunk bigint, now_due bigint,
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
              AND c.chunk_id <= append_chunks.newest_chunk
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
-- One pass over a tick of few events, for a fraction of the cost of append_chunks. It reads them by the numbers of
-- their transactions, so it does not matter where the counter of ids stands. last_horizon is the number of the tick
-- before, whose transaction is looked up too; late has the others that were open then and have ended since. They are
-- looked up by themselves: a range from the oldest of them would read all that others have written meanwhile, and
-- what an open bulk load has. done is false, and nothing was changed, when an event is delayed, due, of a deleted
-- topic or from before the era, or when the tick has max_events. No chunk has a number above newest_chunk.
CREATE OR REPLACE FUNCTION append_few(
    base pg_snapshot, target pg_snapshot, last_horizon xid8, late xid8[], after_id bigint, boundary_id bigint,
    max_events integer, newest_chunk bigint, due bigint, due_id bigint, now_due bigint,
    OUT done boolean, OUT sequenced bigint, OUT seen bigint, OUT highest bigint, OUT grown bigint[]
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    WITH fresh AS MATERIALIZED (
        SELECT e.id, e.partition_id, e.due_at
        FROM (
            SELECT n.id, n.partition_id, n.due_at, n.tx, n.xmin
            FROM events AS n
            WHERE n.tx >= LEAST(pg_snapshot_xmax(append_few.base), append_few.last_horizon)
            UNION ALL
            SELECT o.id, o.partition_id, o.due_at, o.tx, o.xmin
            FROM events AS o
            WHERE o.tx = ANY (append_few.late)
              AND o.tx < LEAST(pg_snapshot_xmax(append_few.base), append_few.last_horizon)
        ) AS e
        WHERE e.tx < pg_snapshot_xmax(append_few.target)
          AND pg_visible_in_snapshot(e.tx, append_few.target) AND NOT pg_visible_in_snapshot(e.tx, append_few.base)
          -- Numbers of another cluster are only in rows from before the era.
          AND (e.id > append_few.boundary_id OR is_own_number(e.tx, e.xmin))
        LIMIT append_few.max_events
    ), total AS MATERIALIZED (
        SELECT count(*) AS seen, COALESCE(max(f.id), append_few.after_id) AS highest,
               count(*) < append_few.max_events AND count(f.due_at) = 0
               AND COALESCE(min(f.id) > append_few.boundary_id, true) AND NOT EXISTS (
                SELECT FROM fresh AS o JOIN deleted_topics AS d ON d.topic_id = o.partition_id >> 16
            ) AND NOT EXISTS (
                SELECT FROM delayed AS d
                WHERE d.due >= append_few.due AND d.due <= append_few.now_due
                  AND (d.due, d.id) > (append_few.due, append_few.due_id)
            ) AS done
        FROM fresh AS f
    ), appended AS (
        INSERT INTO chunks (partition_id, first_sequence, event_count, first_id, last_id, event_ids, sequenced_at)
        SELECT g.partition_id, COALESCE((
                -- As in append_chunks.
                SELECT c.first_sequence + c.event_count + 8223372036854775807 - 8223372036854775807
                FROM chunks AS c
                WHERE c.partition_id = g.partition_id AND c.chunk_id <= append_few.newest_chunk
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

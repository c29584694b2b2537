-- name: fresh_events
-- The events that became visible between two snapshots and have an id above last_id. Starts from the index on tx even
-- where the planner has no statistics yet: an order by id, or a condition on the bare id, would tempt it to walk the whole
-- primary key. Transactions that are
-- still open are not looked up, or a bulk load would cost every tick as many rows as it has written.
CREATE OR REPLACE FUNCTION fresh_events(base pg_snapshot, target pg_snapshot, last_id bigint)
RETURNS TABLE (id bigint, partition_id bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT
SET enable_seqscan = off SET jit = off ROWS 1000 AS $$
    SELECT e.id, e.partition_id
    FROM events AS e
    WHERE e.tx >= pg_snapshot_xmax(fresh_events.base)
      AND e.tx < pg_snapshot_xmax(fresh_events.target)
      AND pg_visible_in_snapshot(e.tx, fresh_events.target)
      AND e.id + 0 > fresh_events.last_id
    UNION ALL
    SELECT e.id, e.partition_id
    FROM events AS e
    WHERE e.tx = ANY (ARRAY(
            SELECT x.tx
            FROM pg_snapshot_xip(fresh_events.base) AS x (tx)
            WHERE pg_visible_in_snapshot(x.tx, fresh_events.target)))
      AND e.id + 0 > fresh_events.last_id
$$;

-- name: tick_start
-- An id below every event of the tick that begins, when a backlog makes it worth knowing; else 0. Transactions above the
-- base took their ids after the newest horizon that lies below it; late ones are looked up.
CREATE OR REPLACE FUNCTION tick_start(base pg_snapshot, target pg_snapshot, max_events integer) RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
    SELECT CASE WHEN newest.id - settled.highest_id <= 10 * tick_start.max_events::bigint THEN 0
        ELSE LEAST(settled.highest_id, (
            SELECT min(e.id + 0) - 1
            FROM events AS e
            WHERE e.tx = ANY (ARRAY(
                SELECT x.tx
                FROM pg_snapshot_xip(tick_start.base) AS x (tx)
                WHERE pg_visible_in_snapshot(x.tx, tick_start.target)))))
    END
    FROM (SELECT s.last_value AS id FROM events_id AS s) AS newest,
        (SELECT t.highest_id
         FROM ticks AS t
         WHERE t.horizon <= pg_snapshot_xmax(tick_start.base)
         ORDER BY t.id DESC
         LIMIT 1) AS settled
$$;

-- name: committed_snapshot
-- What is committed now. The caller's own transaction counts as open, which pg_current_snapshot() does not say of it: what
-- it still publishes has to come with a later tick.
CREATE OR REPLACE FUNCTION committed_snapshot() RETURNS pg_snapshot
LANGUAGE sql VOLATILE AS $$
    SELECT CASE WHEN NOT pg_visible_in_snapshot(own.tx, now.snapshot) THEN now.snapshot
        ELSE format('%s:%s:%s', LEAST(own.tx, pg_snapshot_xmin(now.snapshot)), pg_snapshot_xmax(now.snapshot), (
            SELECT string_agg(x.tx::text, ',' ORDER BY x.tx)
            FROM (SELECT pg_snapshot_xip(now.snapshot) AS tx UNION ALL SELECT own.tx) AS x))::pg_snapshot
    END
    FROM (SELECT pg_current_xact_id() AS tx) AS own, (SELECT pg_current_snapshot() AS snapshot) AS now
$$;

-- name: near_events
-- The first events of a large tick above last_id, in id order, found by a walk along the primary key over ten times as many
-- ids. Passes over a backlog would otherwise look through all of it, each of them; fewer than max_events say nothing.
CREATE OR REPLACE FUNCTION near_events(base pg_snapshot, target pg_snapshot, last_id bigint, max_events integer)
RETURNS TABLE (id bigint, partition_id bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off ROWS 1000 AS $$
    SELECT e.id, e.partition_id
    FROM events AS e
    WHERE e.id > near_events.last_id AND e.id <= near_events.last_id + 10 * near_events.max_events::bigint
      AND near_events.last_id > 0
      AND pg_visible_in_snapshot(e.tx, near_events.target) AND NOT pg_visible_in_snapshot(e.tx, near_events.base)
    ORDER BY e.id
    LIMIT near_events.max_events
$$;

-- name: append_chunks
-- Numbers the next events of a tick, at most max_events in id order, per partition, and appends them to the index of the
-- log in chunks of at most 1,000. Answers how many, the last id, and the partitions that grew.
CREATE OR REPLACE FUNCTION append_chunks(
    base pg_snapshot, target pg_snapshot, last_id bigint, max_events integer,
    OUT sequenced bigint, OUT highest bigint, OUT grown bigint[]
)
LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
    WITH near AS MATERIALIZED (
        SELECT n.id, n.partition_id
        FROM near_events(append_chunks.base, append_chunks.target, append_chunks.last_id, append_chunks.max_events) AS n
    ), far AS MATERIALIZED (
        SELECT f.id, f.partition_id
        FROM fresh_events(append_chunks.base, append_chunks.target, append_chunks.last_id) AS f
        WHERE (SELECT count(*) FROM near) < append_chunks.max_events
        ORDER BY f.id
        LIMIT append_chunks.max_events
    ), batch AS MATERIALIZED (
        SELECT n.id, n.partition_id FROM near AS n WHERE (SELECT count(*) FROM near) = append_chunks.max_events
        UNION ALL
        SELECT f.id, f.partition_id FROM far AS f
    ), numbered AS (
        SELECT b.id, b.partition_id, row_number() OVER (PARTITION BY b.partition_id ORDER BY b.id) - 1 AS place
        FROM batch AS b
    ), heads AS MATERIALIZED (
        SELECT touched.partition_id, COALESCE((
            SELECT c.first_sequence + c.event_count
            FROM chunks AS c
            WHERE c.partition_id = touched.partition_id
            ORDER BY c.first_sequence DESC
            LIMIT 1), 1) AS next_sequence
        FROM (SELECT DISTINCT b.partition_id FROM batch AS b) AS touched
    ), appended AS (
        INSERT INTO chunks (partition_id, first_sequence, event_count, first_id, last_id, event_ids, sequenced_at)
        SELECT n.partition_id, h.next_sequence + n.place / 1000 * 1000, count(*), min(n.id), max(n.id),
               array_agg(n.id ORDER BY n.id), clock_timestamp()
        FROM numbered AS n JOIN heads AS h ON h.partition_id = n.partition_id
        GROUP BY n.partition_id, h.next_sequence, n.place / 1000
        RETURNING partition_id, event_count, last_id
    )
    SELECT COALESCE(sum(a.event_count), 0), COALESCE(max(a.last_id), append_chunks.last_id),
           COALESCE(array_agg(DISTINCT a.partition_id), '{}')
    FROM appended AS a
$$;

-- name: sequence
-- One pass of the sequencer: gives committed events their sequences. Nothing waits for an open transaction; a late commit
-- comes with the tick after it. busy: somebody else is at it. more: call again at once. Raises PS018.
CREATE OR REPLACE FUNCTION sequence(
    max_events integer DEFAULT 10000,
    OUT sequenced bigint, OUT more boolean, OUT busy boolean, OUT grown bigint[]
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    tick ticks%ROWTYPE;
    pass record;
    issued bigint;
    begun boolean;
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
        SELECT s.last_value INTO issued FROM events_id AS s;
    END IF;
    PERFORM FROM sequencer FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        busy := true;
        RETURN;
    END IF;
    SELECT * INTO STRICT tick FROM ticks AS t ORDER BY t.id DESC LIMIT 1;
    begun := tick.complete;
    IF begun THEN
        IF issued IS NOT NULL THEN
            tick.highest_id := issued;
            tick.horizon := pg_current_xact_id();
        END IF;
        tick.base := tick.target;
        tick.target := committed_snapshot();
        tick.last_id := COALESCE(tick_start(tick.base, tick.target, max_events), 0);
    END IF;
    SELECT * INTO pass FROM append_chunks(tick.base, tick.target, tick.last_id, max_events);
    IF pass.sequenced = 0 AND begun THEN
        RETURN;
    END IF;
    -- Behind the last pass of a longer tick there may be a next tick: who works off what is there has to look.
    more := pass.sequenced = max_events OR NOT begun;
    INSERT INTO ticks (id, base, target, last_id, complete, highest_id, horizon)
    VALUES (tick.id + 1, tick.base, tick.target, pass.highest, pass.sequenced < max_events, tick.highest_id, tick.horizon);
    sequenced := pass.sequenced;
    grown := pass.grown;
END
$$;

-- name: announce
-- Tells listening consumers which partitions grew: one NOTIFY in a transaction of its own, at most 4,000 bytes, else "all".
CREATE OR REPLACE FUNCTION announce(grown bigint[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    names text := array_to_string(grown, ',');
BEGIN
    PERFORM pg_notify(current_schema() || '_log', CASE WHEN octet_length(names) <= 4000 THEN names ELSE 'all' END);
END
$$;

-- name: unsequenced
-- How many committed events wait for their sequence (counted up to 10,000) and for how long the oldest of them does.
CREATE OR REPLACE FUNCTION unsequenced(OUT events bigint, OUT oldest_age_seconds double precision)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off AS $$
    SELECT count(*), COALESCE(max(extract(epoch FROM clock_timestamp() - e.created_at)), 0)
    FROM (
        SELECT f.id
        FROM (SELECT * FROM ticks AS t ORDER BY t.id DESC LIMIT 1) AS tick
        CROSS JOIN LATERAL fresh_events(
            CASE WHEN tick.complete THEN tick.target ELSE tick.base END,
            pg_current_snapshot(),
            CASE WHEN tick.complete THEN 0 ELSE tick.last_id END) AS f
        LIMIT 10000
    ) AS waiting
    JOIN events AS e ON e.id = waiting.id
$$;

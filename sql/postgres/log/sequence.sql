-- By design: the sequencers find their events differently, so an idle one asks differently too.

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
    newest_chunk bigint;
    boundary_id bigint;
    last_horizon xid8;
    late xid8[];
    begun boolean;
    few integer := LEAST(max_events, 1000);
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
        SELECT last_given('events_id', s.last_value, s.is_called) INTO issued FROM events_id AS s;
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
    END IF;
    -- Read after the target: no event in the target has a higher id, unless the counter was set back; the same holds of
    -- the chunks and what the last pass knew.
    SELECT e.last_value, GREATEST(c.last_value, tick.chunk_id), ARRAY(
               SELECT x.tx FROM pg_snapshot_xip(tick.base) AS x (tx)
               WHERE pg_visible_in_snapshot(x.tx, tick.target) AND x.tx <> last_horizon), (
               SELECT a.boundary_id FROM eras AS a ORDER BY a.era DESC LIMIT 1)
    INTO newest, newest_chunk, late, boundary_id
    FROM events_id AS e, chunks_id AS c;
    -- What is new is told by transactions. Ids only tell whether it is much: below 0, the counter was set back.
    IF begun AND newest - settled_id BETWEEN 0 AND few - 1 THEN
        SELECT f.*, GREATEST(tick.due, now_due) AS due, false AS due_left,
               CASE WHEN now_due < tick.due THEN tick.due_id ELSE 9223372036854775807 END AS due_id
        INTO pass
        FROM append_few(tick.base, tick.target, last_horizon, late, settled_id, boundary_id, few, newest_chunk,
                        tick.due, tick.due_id, now_due) AS f;
        is_done := pass.done;
    END IF;
    IF NOT is_done THEN
        IF begun THEN
            tick.last_id := tick_start(tick.base, tick.target, last_horizon);
            -- The walk along the primary key pays off only over a backlog.
            IF newest - tick.last_id <= max_events
                OR tick.last_id > 0 AND has_lower_ids(tick.base, tick.target, last_horizon, tick.last_id) THEN
                tick.last_id := 0;
            END IF;
        END IF;
        SELECT * INTO pass
        FROM append_chunks(tick, tick.base::text::pg_snapshot, tick.target::text::pg_snapshot, max_events,
                           newest_chunk, now_due);
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

-- name: unsequenced
-- How many committed events wait for their sequence (counted up to 10,000) and for how long the oldest of them has
-- waited. For a login that does not pass the walls, only events of topics that it may see are counted.
CREATE OR REPLACE FUNCTION unsequenced(OUT events bigint, OUT oldest_age_seconds double precision)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
BEGIN
    IF sees_all() THEN
        SELECT count(*), COALESCE(max(extract(epoch FROM clock_timestamp() - e.created_at)), 0)
        INTO unsequenced.events, oldest_age_seconds
        FROM waiting_events(10000) AS w JOIN events AS e ON e.id = w.id;
        RETURN;
    END IF;
    WITH seen AS MATERIALIZED (
        SELECT t.id FROM topics AS t WHERE NOT t.restricted AND (SELECT as_login()) OR has_right(t.namespace_id, 'any')
    ), waiting AS MATERIALIZED (
        SELECT w.id
        FROM waiting_events(9223372036854775807) AS w
        WHERE w.partition_id >> 16 IN (SELECT s.id FROM seen AS s)
        LIMIT 10000
    )
    SELECT count(*), COALESCE(max(extract(epoch FROM clock_timestamp() - e.created_at)), 0)
    INTO unsequenced.events, oldest_age_seconds
    FROM waiting AS w JOIN events AS e ON e.id = w.id;
END
$$;

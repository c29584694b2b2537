-- name: log_identity
-- Which cluster this is, and on which of its timelines: a restore changes one of the two.
CREATE OR REPLACE FUNCTION log_identity(OUT system_identifier bigint, OUT timeline text)
LANGUAGE sql STABLE AS $$
    SELECT c.system_identifier, left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) FROM pg_control_system() AS c
$$;

-- name: current_era
-- The era that transaction numbers belong to now.
CREATE OR REPLACE FUNCTION current_era() RETURNS eras
LANGUAGE sql STABLE AS $$
    SELECT e.* FROM eras AS e ORDER BY e.era DESC LIMIT 1
$$;

-- name: is_indexed
-- Whether the index of the log holds an event.
CREATE OR REPLACE FUNCTION is_indexed(partition_id bigint, id bigint) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT FROM chunks AS c
        WHERE c.partition_id = is_indexed.partition_id AND is_indexed.id BETWEEN c.first_id AND c.last_id
          AND is_indexed.id = ANY (c.event_ids))
$$;

-- name: straddles
-- Whether an event with an id from before the era is one of the few that a transaction wrote which was open when the era
-- began. An older event whose number, of another cluster, only looks like it is in the index already.
CREATE OR REPLACE FUNCTION straddles(tx xid8, partition_id bigint, id bigint) RETURNS boolean
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    present eras%ROWTYPE := current_era();
BEGIN
    RETURN tx < present.settled AND NOT pg_visible_in_snapshot(tx, present.base) AND NOT is_indexed(partition_id, id);
END
$$;

-- name: newest_transaction
-- A transaction number above every one that was given before this call: a block with an exception handler takes one of its
-- own as soon as it writes, and the row that it writes carries the lower half. xmax of a snapshot would be too low: it is
-- one above the last transaction that has ended.
CREATE OR REPLACE FUNCTION newest_transaction() RETURNS xid8
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    own bigint := pg_current_xact_id()::text::bigint;
    taken bigint;
BEGIN
    BEGIN
        UPDATE sequencer SET singleton = true RETURNING xmin::text::bigint INTO STRICT taken;
    EXCEPTION WHEN no_data_found THEN
        RAISE;
    END;
    RETURN (own + mod(taken - mod(own, 4294967296) + 4294967296, 4294967296))::text::xid8;
END
$$;

-- name: open_era
-- Begins a new era after a restore, with a tick that repairs: it works off, by the old numbers, what the last tick of the old era
-- had not come to. The order of the three looks matters: what has an id above the boundary was not committed in base,
-- and what has one up to the boundary has a number below settled.
CREATE OR REPLACE FUNCTION open_era(tick ticks) RETURNS ticks
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    opened eras%ROWTYPE;
BEGIN
    SELECT i.system_identifier, i.timeline INTO opened.system_identifier, opened.timeline FROM log_identity() AS i;
    opened.era := tick.era + 1;
    opened.base := committed_snapshot();
    SELECT GREATEST(s.last_value - (NOT s.is_called)::integer, COALESCE((SELECT max(e.id) FROM events AS e), 0),
                    COALESCE((SELECT max(c.last_id) FROM chunks AS c), 0))
    INTO opened.boundary_id
    FROM events_id AS s;
    PERFORM setval('events_id', opened.boundary_id) FROM events_id AS s WHERE opened.boundary_id > s.last_value;
    opened.settled := newest_transaction();
    INSERT INTO eras (era, system_identifier, timeline, boundary_id, base, settled)
    VALUES (opened.era, opened.system_identifier, opened.timeline, opened.boundary_id, opened.base, opened.settled);
    PERFORM open_history(format('era %s: another cluster or timeline, or an earlier state of this one', opened.era));
    tick.done_id := CASE WHEN tick.complete THEN 0 ELSE tick.last_id END;
    tick.base := CASE WHEN tick.complete THEN tick.target ELSE tick.base END;
    tick.era := opened.era;
    tick.repair := true;
    tick.complete := false;
    tick.last_id := 0;
    tick.highest_id := opened.boundary_id;
    tick.horizon := opened.settled;
    RETURN tick;
END
$$;

-- name: repair_events
-- What the old era left, above last_id: events of before the boundary that its last tick did not count as committed, or had not
-- come to. The numbers of rows and of that tick's snapshots are of one cluster; those of today's may be another's.
CREATE OR REPLACE FUNCTION repair_events(
    base pg_snapshot, target pg_snapshot, done_id bigint, boundary_id bigint, last_id bigint
) RETURNS TABLE (id bigint, partition_id bigint, due_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off ROWS 1000 AS $$
    SELECT e.id, e.partition_id, e.due_at
    FROM events AS e
    WHERE (e.tx >= pg_snapshot_xmax(repair_events.base)
           OR e.tx = ANY (ARRAY(SELECT pg_snapshot_xip(repair_events.base))))
      AND NOT (pg_visible_in_snapshot(e.tx, repair_events.target) AND e.id <= repair_events.done_id)
      AND e.id + 0 <= repair_events.boundary_id AND e.id + 0 > repair_events.last_id
$$;

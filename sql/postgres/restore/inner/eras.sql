-- By design: transaction numbers begin again with an era on PostgreSQL; MySQL has none in its rows.

-- name: current_era
-- The era that transaction numbers belong to now.
CREATE OR REPLACE FUNCTION current_era() RETURNS eras
LANGUAGE plpgsql STABLE AS $$
DECLARE
    present eras%ROWTYPE;
BEGIN
    SELECT e.* INTO present FROM eras AS e ORDER BY e.era DESC LIMIT 1;
    RETURN present;
END
$$;

-- name: open_era
-- Begins a new era after a restore, with a tick that repairs: it numbers, by the old transaction numbers, the events
-- that the last tick of the old era had not reached. If that tick was itself a repair, the new one continues it, and
-- adds the events of that era. The order of the three reads matters, and each is a statement of its own, which sees
-- what was committed before. An event with an id above the boundary was not committed in base. One with an id up to
-- the boundary has a transaction number below settled, unless the counter is set back once more: then straddles()
-- knows it by its row.
CREATE OR REPLACE FUNCTION open_era(tick ticks) RETURNS ticks
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    before eras%ROWTYPE := current_era();
    opened eras%ROWTYPE;
BEGIN
    SELECT i.system_identifier, i.timeline INTO opened.system_identifier, opened.timeline FROM log_identity() AS i;
    opened.era := tick.era + 1;
    -- Events published since the restore have ids above the last tick's, or, from a counter that was set back, any
    -- ids that were free. Their transaction numbers are above that of the transaction that loaded the last tick.
    opened.doubtful_id := tick.highest_id;
    opened.reused_id := 0;
    opened.early_tx := loaded_by(tick);
    -- This raises the counters. It may wait for others, and they for publishers.
    PERFORM open_history(format('era %s: another cluster or timeline, or an earlier state of this one', opened.era));
    opened.base := committed_snapshot();
    opened.boundary_id := take_boundary();
    opened.settled := newest_transaction();
    INSERT INTO eras (era, system_identifier, timeline, boundary_id, base, settled, doubtful_id, reused_id, early_tx)
    VALUES (opened.era, opened.system_identifier, opened.timeline, opened.boundary_id, opened.base, opened.settled,
            opened.doubtful_id, opened.reused_id, opened.early_tx);
    IF tick.repair THEN
        tick.repaired_id := GREATEST(tick.repaired_id,
                                     CASE WHEN tick.complete THEN before.boundary_id ELSE tick.last_id END);
    ELSE
        tick.done_id := CASE WHEN tick.complete THEN 0 ELSE tick.last_id END;
        tick.base := CASE WHEN tick.complete THEN tick.target ELSE tick.base END;
        tick.repair_era := opened.era;
        tick.repaired_id := 0;
    END IF;
    tick.era := opened.era;
    tick.repair := true;
    tick.complete := false;
    tick.last_id := 0;
    tick.highest_id := opened.boundary_id;
    tick.horizon := opened.settled;
    RETURN tick;
END
$$;

-- name: take_boundary
-- The highest id of all events so far, given out or visible; a counter that is below it is raised to it. The counter
-- alone is not enough: somebody may have set it back, and a publisher that took higher ids before that may have
-- committed since the counters were raised.
CREATE OR REPLACE FUNCTION take_boundary() RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    boundary_id bigint;
BEGIN
    SELECT GREATEST(last_given('events_id', s.last_value, s.is_called), highest_number('events', 'id')) INTO boundary_id
    FROM events_id AS s;
    PERFORM setval('events_id', boundary_id)
    FROM events_id AS s
    WHERE boundary_id > last_given('events_id', s.last_value, s.is_called);
    RETURN boundary_id;
END
$$;

-- name: newest_transaction
-- A transaction number above every number that was given out before this call. It uses a block with an exception
-- handler: such a block takes a number as soon as it writes, and the row that it writes carries the lower half. xmax
-- of a snapshot would be too low: it is one above the last transaction that has ended.
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

-- name: is_other_era
-- Whether the transaction numbers of a tick belong to another cluster or timeline, or to a time that a restore has
-- undone. For a tick that repairs this is so, and already known. A counter that is below what the tick knows was set
-- back.
CREATE OR REPLACE FUNCTION is_other_era(tick ticks) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF (tick.server_started = pg_postmaster_start_time()) IS NOT TRUE AND (
        SELECT COALESCE(i.system_identifier <> a.system_identifier OR i.timeline <> a.timeline, false)
        FROM log_identity() AS i, current_era() AS a)
    THEN
        RETURN true;
    END IF;
    RETURN NOT tick.repair
        AND pg_snapshot_xmax(tick.target) > pg_snapshot_xmax(pg_current_snapshot())
        OR c.last_value < tick.chunk_id OR e.last_value < tick.highest_id
    FROM chunks_id AS c, events_id AS e;
END
$$;

-- name: loaded_by
-- The number, in this cluster, of the transaction that loaded the row of the last tick: whoever has published since
-- has a higher one. NULL where the numbers of the tick itself tell what came later: in the tick's own cluster (whether
-- nothing but a counter was set back, or its writer is its horizon), and above all its numbers.
CREATE OR REPLACE FUNCTION loaded_by(tick ticks) RETURNS xid8
LANGUAGE sql STABLE AS $$
    SELECT w.tx
    FROM (SELECT full_number(t.xmin) AS tx FROM ticks AS t WHERE t.id = (loaded_by.tick).id) AS w,
        current_era() AS a, log_identity() AS i
    WHERE w.tx <> (loaded_by.tick).horizon AND w.tx < pg_snapshot_xmax((loaded_by.tick).target)
      AND (COALESCE(i.system_identifier <> a.system_identifier OR i.timeline <> a.timeline, false)
           OR pg_snapshot_xmax((loaded_by.tick).target) > pg_snapshot_xmax(pg_current_snapshot()))
$$;

-- name: straddles
-- Whether an event with an id from before the era waits for its sequence. Either a transaction that was open when the
-- era began has written it; or it was published since and took an id that a rolled-back publish had left free, from a
-- counter that was set back. In both cases that transaction has written the row itself. An older event may have a
-- number of another cluster that only looks like one of these, but a restore has written its row.
CREATE OR REPLACE FUNCTION straddles(
    tx xid8, written xid, partition_id bigint, id bigint, due_at timestamptz
) RETURNS boolean
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    present eras%ROWTYPE := current_era();
BEGIN
    RETURN NOT pg_visible_in_snapshot(tx, present.base)
        AND is_own_number(tx, written)
        AND NOT is_placed(partition_id, id, due_at);
END
$$;

-- By design: a slice is a table of its own on PostgreSQL, and a partition that only a program can drop on MySQL.

-- name: keep_events
-- Copies what is still needed of a slice of events into a slice of events_kept, under the same ids, when it is less
-- than the share kept_share of it. Then the slice can be dropped, and one slow subscription does not keep the events
-- of all others. Returns the slice, NULL when there is none to do.
CREATE OR REPLACE FUNCTION keep_events() RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET lock_timeout = '100ms' AS $$
DECLARE
    share double precision := setting('kept_share');
    settled_id bigint := settled_events();
    old slices%ROWTYPE;
    room bigint;
    needed bigint[];
    copy_name text;
BEGIN
    PERFORM commit_durably();
    FOR old IN
        SELECT * FROM slices AS s
        WHERE s.parent = 'events' AND NOT s.kept AND s.last_id < settled_id
        ORDER BY s.first_id
    LOOP
        room := floor(share * (old.last_id - old.first_id + 1));
        needed := ARRAY(SELECT n.id FROM needed_events(old.first_id, old.last_id) AS n LIMIT room + 1);
        CONTINUE WHEN cardinality(needed) NOT BETWEEN 1 AND room;
        copy_name := format('events_kept_%s', old.first_id);
        -- An erasure writes to both: it comes before this, or finds the copies.
        LOCK TABLE events_kept IN SHARE MODE;
        EXECUTE format('CREATE TABLE %I (LIKE events_kept INCLUDING INDEXES)', copy_name);
        EXECUTE format('INSERT INTO %I SELECT e.* FROM events AS e WHERE e.id = ANY ($1)', copy_name) USING needed;
        EXECUTE format('ALTER TABLE events_kept ATTACH PARTITION %I FOR VALUES FROM (%s) TO (%s)',
                       copy_name, old.first_id, old.last_id + 1);
        INSERT INTO slices (parent, slice, first_id, last_id)
        VALUES ('events_kept', copy_name, old.first_id, old.last_id);
        UPDATE slices AS s SET kept = true WHERE s.slice = old.slice;
        RETURN old.slice;
    END LOOP;
    RETURN NULL;
END
$$;

-- name: carry_positions
-- Copies positions whose newest row lies in a full slice to the newest slice, so that the old one can be dropped.
-- Returns how many. A lease that somebody holds locked is left to the next call, because its position may be about to
-- move. That a person has put a position there stays known. Nothing is copied while that would be more than is thrown
-- away. Raises PS018.
CREATE OR REPLACE FUNCTION carry_positions(max_rows integer DEFAULT 1000) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    full_range record;
    stale bigint;
    locked leases[];
    carried integer;
BEGIN
    PERFORM commit_durably();
    PERFORM require_read_committed('carry_positions()');
    SELECT min(s.first_id) AS first_id, max(s.last_id) AS last_id INTO full_range
    FROM slices AS s, positions_id AS i
    WHERE s.parent = 'positions' AND s.last_id < last_given('positions_id', i.last_value, i.is_called);
    IF full_range.last_id IS NULL THEN
        RETURN 0;
    END IF;
    SELECT count(*) INTO stale FROM leases AS l
    WHERE newest_position(l.subscription_id, l.partition_id) <= full_range.last_id;
    IF stale > (full_range.last_id - full_range.first_id + 1) / 2 THEN
        RETURN 0;
    END IF;
    locked := ARRAY(
        SELECT l FROM leases AS l
        WHERE newest_position(l.subscription_id, l.partition_id) <= full_range.last_id
        ORDER BY l.subscription_id, l.partition_id
        LIMIT max_rows
        FOR NO KEY UPDATE SKIP LOCKED);
    -- A statement of its own, which sees what was committed before the locks were granted.
    INSERT INTO positions (subscription_id, partition_id, position, reached, lease_epoch, reason, at)
    SELECT p.subscription_id, p.partition_id, p.position, p.reached, p.lease_epoch,
           CASE WHEN p.reason IN ('start', 'seek') THEN p.reason ELSE 'carried' END, p.at
    FROM unnest(locked) AS l
    JOIN positions AS p ON p.id = newest_position(l.subscription_id, l.partition_id)
    WHERE p.id <= full_range.last_id;
    GET DIAGNOSTICS carried = ROW_COUNT;
    IF carried > 0 THEN
        UPDATE slices AS s SET condemned_tx = NULL WHERE s.parent = 'positions' AND s.condemned_tx IS NOT NULL;
    END IF;
    RETURN carried;
END
$$;

-- name: condemn_slices
-- Notes for each slice that nobody needs since which transaction that is so. Returns how many slices are condemned. A
-- number of another cluster, after a restore, has no meaning and is replaced.
CREATE OR REPLACE FUNCTION condemn_slices() RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    UPDATE slices AS s
    SET condemned_tx = pg_current_xact_id()
    FROM unneeded_slices() AS u
    WHERE s.slice = u.slice
      AND (s.condemned_tx IS NULL OR s.condemned_tx >= pg_snapshot_xmax(pg_current_snapshot()));
    RETURN (SELECT count(*) FROM slices AS s WHERE s.condemned_tx IS NOT NULL);
END
$$;

-- name: droppable_slices
-- The slices that can be dropped: nobody needs them, and nobody has a snapshot from before they were
-- condemned. So every transaction that was writing into one has ended, and all see the low sequences, the kept
-- events and the carried positions that stand for it.
CREATE OR REPLACE FUNCTION droppable_slices()
RETURNS TABLE (parent text, slice text, first_id bigint, last_id bigint)
LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT u.parent, u.slice, u.first_id, u.last_id
    FROM unneeded_slices() AS u JOIN slices AS s ON s.slice = u.slice
    WHERE s.condemned_tx < (SELECT oldest_snapshot())
$$;

-- name: condemned_can_go
-- Nobody has a snapshot from before any of the slices was condemned. A number of another
-- cluster, after a restore, is passed over.
CREATE OR REPLACE FUNCTION condemned_can_go() RETURNS boolean
LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT COALESCE(bool_and(s.condemned_tx < o.tx), true)
    FROM (SELECT oldest_snapshot()) AS o (tx)
    JOIN slices AS s ON s.condemned_tx < pg_snapshot_xmax(pg_current_snapshot())
$$;

-- name: close_slice
-- Lets nobody write into a slice of events any more that is about to be dropped. Returns whether it can go. The trigger
-- waits (at most 100 ms) for whoever is writing into the slice, so the checks after it see all that there will ever be
-- in it. An event that has come with an id from a counter that was set back keeps the slice, which is then not closed.
-- Slices of other tables are not closed, and can go.
CREATE OR REPLACE FUNCTION close_slice(slice text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET lock_timeout = '100ms' AS $$
DECLARE
    closed slices%ROWTYPE;
BEGIN
    SELECT * INTO closed FROM slices AS s WHERE s.slice = close_slice.slice AND s.parent = 'events';
    IF NOT FOUND THEN
        RETURN true;
    END IF;
    EXECUTE format('CREATE OR REPLACE TRIGGER closed BEFORE INSERT ON %I FOR EACH ROW EXECUTE FUNCTION refuse_closed()',
                   closed.slice);
    IF closed.last_id >= settled_events() OR EXISTS (
        SELECT FROM needed_events(closed.first_id, closed.last_id) AS n
        WHERE NOT EXISTS (SELECT FROM events_kept AS k WHERE k.id = n.id))
    THEN
        PERFORM refuse_set_back('events_id');
    END IF;
    RETURN true;
EXCEPTION WHEN SQLSTATE 'PS021' THEN
    RETURN false;
END
$$;

-- name: slice_detaching
-- Notes that the detaching of a slice begins now. So the doctor can tell for how long it has been half detached.
CREATE OR REPLACE FUNCTION slice_detaching(slice text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT AS $$
    UPDATE slices AS s SET detaching_since = clock_timestamp() WHERE s.slice = slice_detaching.slice
$$;

-- name: slice_dropped
-- Forgets a slice whose table is gone.
CREATE OR REPLACE FUNCTION slice_dropped(slice text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT AS $$
    DELETE FROM slices AS s WHERE s.slice = slice_dropped.slice
$$;

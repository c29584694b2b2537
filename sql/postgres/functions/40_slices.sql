-- name: add_slice
-- Appends the next slice to an insert-only table: a plain table is made and then attached, because CREATE ... PARTITION
-- OF would wait behind every open publisher and block the ones that come after it.
CREATE OR REPLACE FUNCTION add_slice(parent text, size bigint) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET lock_timeout = '100ms' AS $$
DECLARE
    start_id bigint;
    slice_name text;
BEGIN
    SELECT COALESCE(max(s.last_id) + 1, 1) INTO start_id FROM slices AS s WHERE s.parent = add_slice.parent;
    slice_name := format('%s_%s', parent, start_id);
    EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING INDEXES)', slice_name, parent);
    EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%s) TO (%s)',
                   parent, slice_name, start_id, start_id + size);
    INSERT INTO slices (parent, slice, first_id, last_id)
    VALUES (add_slice.parent, slice_name, start_id, start_id + size - 1);
    RETURN slice_name;
END
$$;

-- name: slice_size
-- How many ids the next slice holds: small ones first, so that a young log can be cleaned early, then ten times what
-- stands before it, up to a bound.
CREATE OR REPLACE FUNCTION slice_size(existing bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT LEAST(GREATEST(10000, existing - mod(existing, 10000)), 10000000)
$$;

-- name: ensure_slices
-- Keeps every insert-only table ready for far more rows than it holds; answers how many slices were added. Called at
-- installation, by the sequencer worker and by clean; one caller at a time.
CREATE OR REPLACE FUNCTION ensure_slices() RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    source record;
    ready bigint;
    added integer := 0;
BEGIN
    LOCK TABLE slices IN SHARE ROW EXCLUSIVE MODE;
    FOR source IN
        SELECT 'events' AS parent, s.last_value AS used FROM events_id AS s
        UNION ALL SELECT 'positions', s.last_value FROM positions_id AS s
        UNION ALL SELECT 'ticks', COALESCE(max(t.id), 0) FROM ticks AS t
    LOOP
        LOOP
            SELECT COALESCE(max(s.last_id), 0) INTO ready FROM slices AS s WHERE s.parent = source.parent;
            EXIT WHEN ready - source.used >= GREATEST(10000000, source.used);
            PERFORM add_slice(source.parent, slice_size(ready));
            added := added + 1;
        END LOOP;
    END LOOP;
    RETURN added;
END
$$;

-- name: droppable_slices
-- The slices of events in which every event is logically gone: behind the low sequence of its partition, and none that
-- could still come. A transaction took its number (tx) before an id of the slice, so once all that are older than the
-- horizon of a tick have ended, nothing new appears below that tick's highest id; what has ended must have been sequenced.
-- Locks nothing: a tick that passes meanwhile only makes the answer smaller than it could be.
CREATE OR REPLACE FUNCTION droppable_slices()
RETURNS TABLE (slice text, first_id bigint, last_id bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    done ticks%ROWTYPE;
    settled_id bigint;
    waiting_id bigint;
BEGIN
    SELECT * INTO done FROM ticks AS t ORDER BY t.id DESC LIMIT 1;
    IF NOT done.complete THEN
        RETURN;
    END IF;
    SELECT t.highest_id INTO settled_id
    FROM ticks AS t
    WHERE t.horizon <= pg_snapshot_xmin(pg_current_snapshot())
    ORDER BY t.id DESC
    LIMIT 1;
    SELECT min(f.id) INTO waiting_id FROM fresh_events(done.target, pg_current_snapshot(), 0) AS f;
    RETURN QUERY
    SELECT s.slice, s.first_id, s.last_id
    FROM slices AS s
    WHERE s.parent = 'events' AND s.dropped_at IS NULL
      AND s.last_id < settled_id
      AND s.last_id < COALESCE(waiting_id, 9223372036854775807)
      AND NOT EXISTS (
          SELECT FROM chunks AS c JOIN partitions AS p ON p.id = c.partition_id
          WHERE c.first_id <= s.last_id AND c.last_id >= s.first_id
            AND c.first_sequence + c.event_count > p.low_sequence)
    ORDER BY s.first_id;
END
$$;

-- name: slice_dropped
-- Records that the table of a slice is gone.
CREATE OR REPLACE FUNCTION slice_dropped(slice text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT AS $$
    UPDATE slices AS s SET dropped_at = clock_timestamp() WHERE s.slice = slice_dropped.slice AND s.dropped_at IS NULL
$$;

-- name: slices_ready
-- How many ids each insert-only table can still take.
CREATE OR REPLACE FUNCTION slices_ready()
RETURNS TABLE (parent text, used bigint, ready bigint, slices bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT u.parent, u.used, max(s.last_id) - u.used, count(*) FILTER (WHERE s.dropped_at IS NULL)
    FROM (
        SELECT 'events' AS parent, e.last_value AS used FROM events_id AS e
        UNION ALL SELECT 'positions', p.last_value FROM positions_id AS p
        UNION ALL SELECT 'ticks', COALESCE(max(t.id), 0) FROM ticks AS t
    ) AS u
    JOIN slices AS s ON s.parent = u.parent
    GROUP BY u.parent, u.used
$$;

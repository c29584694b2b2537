-- By design: a slice is a table of its own on PostgreSQL, and a partition that only a program can make on MySQL.

-- name: add_slice
-- Appends the next slice to an insert-only table. It makes a plain table and then attaches it, because CREATE ...
-- PARTITION OF would wait for every open publisher and block the publishers that come later.
CREATE OR REPLACE FUNCTION add_slice(parent text, size bigint) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET lock_timeout = '100ms' AS $$
DECLARE
    start_id bigint;
    slice_name text;
BEGIN
    SELECT COALESCE(max(s.last_id) + 1, 1) INTO start_id FROM slices AS s WHERE s.parent = add_slice.parent;
    slice_name := format('%s_%s', parent, start_id);
    EXECUTE format(
        'CREATE TABLE %I (LIKE %I INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING STORAGE INCLUDING INDEXES)',
        slice_name, parent);
    IF parent = 'chunks' THEN
        -- The parent cannot have it: an index that is unique over all slices would have to contain the column by
        -- which they are cut.
        EXECUTE format('CREATE UNIQUE INDEX %I ON %I (partition_id, first_sequence)',
                       slice_name || '_sequence', slice_name);
    END IF;
    IF parent = 'queue_ranges' THEN
        -- Room for the version that is claimed, next to the one that was dealt.
        EXECUTE format('ALTER TABLE %I SET (fillfactor = 50)', slice_name);
    END IF;
    EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%s) TO (%s)',
                   parent, slice_name, start_id, start_id + size);
    INSERT INTO slices (parent, slice, first_id, last_id)
    VALUES (add_slice.parent, slice_name, start_id, start_id + size - 1);
    RETURN slice_name;
END
$$;

-- name: slice_sources
-- The insert-only tables that are cut into slices by a counter, and the highest number that the counter has
-- given out.
CREATE OR REPLACE FUNCTION slice_sources() RETURNS TABLE (parent text, used bigint)
LANGUAGE sql VOLATILE AS $$
    SELECT 'events', last_given('events_id', s.last_value, s.is_called) FROM events_id AS s
    UNION ALL SELECT 'chunks', last_given('chunks_id', s.last_value, s.is_called) FROM chunks_id AS s
    UNION ALL SELECT 'positions', last_given('positions_id', s.last_value, s.is_called) FROM positions_id AS s
    UNION ALL SELECT 'lease_history', last_given('lease_history_id', s.last_value, s.is_called)
    FROM lease_history_id AS s
    UNION ALL SELECT 'blocks', last_given('blocks_id', s.last_value, s.is_called) FROM blocks_id AS s
    UNION ALL SELECT 'relay_failures', last_given('blocks_id', s.last_value, s.is_called) FROM blocks_id AS s
    UNION ALL SELECT 'queue_ranges', last_given('queue_ranges_id', s.last_value, s.is_called) FROM queue_ranges_id AS s
    UNION ALL SELECT 'queue_turns', last_given('queue_turns_id', s.last_value, s.is_called) FROM queue_turns_id AS s
    UNION ALL SELECT 'ticks', COALESCE((SELECT t.id FROM ticks AS t ORDER BY t.id DESC LIMIT 1), 0)
$$;

-- name: measure_slices
-- Records how fast each table uses ids: the most in one hour, halved for every week since then. A call within
-- the same hour does nothing.
CREATE OR REPLACE FUNCTION measure_slices() RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT AS $$
    INSERT INTO slice_rates AS r (parent, used)
    SELECT s.parent, s.used FROM slice_sources() AS s
    ON CONFLICT ON CONSTRAINT slice_rates_pkey DO UPDATE
    SET used = EXCLUDED.used, measured_at = EXCLUDED.measured_at,
        peak_per_second = GREATEST(
            (EXCLUDED.used - r.used) / extract(epoch FROM EXCLUDED.measured_at - r.measured_at),
            r.peak_per_second * 0.5 ^ (extract(epoch FROM EXCLUDED.measured_at - r.measured_at) / 604800))
    WHERE EXCLUDED.measured_at >= r.measured_at + interval '1 hour'
$$;

-- name: ids_wanted
-- How many ids have to be ready: enough for seven days at the peak rate, and for a young table a fixed number. For a
-- table of events it is never fewer than it has given out, because no rate foresees a burst.
CREATE OR REPLACE FUNCTION ids_wanted(parent text, used bigint, peak_per_second double precision) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT GREATEST(
        CASE WHEN parent = 'events' THEN GREATEST(10000000, LEAST(used, 1000000000)) ELSE 1000000 END,
        LEAST(COALESCE(peak_per_second, 0) * 604800, 1e15)::bigint)
$$;

-- name: slice_size
-- How many ids the next slice holds. The first slices are small, so that a young log can be cleaned early.
-- Later a slice is a fixed share of what the table spans or has to have ready, so that there are few slices
-- at any rate: every look-up reads each of them.
CREATE OR REPLACE FUNCTION slice_size(parent text, spanned bigint, wanted bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN parent = 'events'
        THEN LEAST(GREATEST(10000, spanned - mod(spanned, 10000)), GREATEST(10000000, wanted / 4, spanned / 16))
        ELSE LEAST(GREATEST(100000, spanned * 4), GREATEST(10000000, wanted / 2, spanned / 4))
    END
$$;

-- name: ensure_delayed
-- Keeps slices of delayed events ready, four days each, for longer than an event can be delayed. Returns how many
-- were added. While the table is locked, this is left to the next call.
CREATE OR REPLACE FUNCTION ensure_delayed() RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    day CONSTANT bigint := 86400000000;
    longest bigint := (setting('longest_delay_seconds') * 1000000)::bigint;
    today bigint := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    ready bigint;
    added integer := 0;
BEGIN
    LOCK TABLE slices IN SHARE ROW EXCLUSIVE MODE;
    LOOP
        SELECT COALESCE(max(s.last_id), 0) INTO ready FROM slices AS s WHERE s.parent = 'delayed';
        EXIT WHEN ready >= today + longest + 2 * day;
        BEGIN
            PERFORM add_slice('delayed', CASE WHEN ready = 0 THEN today - mod(today, day) ELSE 0 END + 4 * day);
        EXCEPTION WHEN lock_not_available THEN
            EXIT;
        END;
        added := added + 1;
    END LOOP;
    RETURN added;
END
$$;

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
    EXECUTE format(
        'CREATE TABLE %I (LIKE %I INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING STORAGE INCLUDING INDEXES)',
        slice_name, parent);
    IF parent = 'chunks' THEN
        -- The parent cannot have it: an index that is unique in all slices would have to hold what they are cut by.
        EXECUTE format('CREATE UNIQUE INDEX %I ON %I (partition_id, first_sequence)',
                       slice_name || '_sequence', slice_name);
    END IF;
    EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%s) TO (%s)',
                   parent, slice_name, start_id, start_id + size);
    INSERT INTO slices (parent, slice, first_id, last_id)
    VALUES (add_slice.parent, slice_name, start_id, start_id + size - 1);
    RETURN slice_name;
END
$$;

-- name: slice_sources
-- The insert-only tables that are cut by a number that is given out, and the highest that was.
CREATE OR REPLACE FUNCTION slice_sources() RETURNS TABLE (parent text, used bigint)
LANGUAGE sql STABLE AS $$
    SELECT 'events', s.last_value FROM events_id AS s
    UNION ALL SELECT 'chunks', s.last_value FROM chunks_id AS s
    UNION ALL SELECT 'positions', s.last_value FROM positions_id AS s
    UNION ALL SELECT 'lease_history', s.last_value FROM lease_history_id AS s
    UNION ALL SELECT 'blocks', s.last_value FROM blocks_id AS s
    UNION ALL SELECT 'relay_failures', s.last_value FROM blocks_id AS s
    UNION ALL SELECT 'ticks', COALESCE((SELECT t.id FROM ticks AS t ORDER BY t.id DESC LIMIT 1), 0)
$$;

-- name: measure_slices
-- Notes how fast each table takes ids: the most in an hour, halved for every week
-- since. Asked more often, it does nothing.
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
-- How many ids have to be ready: for seven days at the peak rate, for a young table a fixed number, and never fewer
-- than a table of events has given out, for bursts that no rate foresees.
CREATE OR REPLACE FUNCTION ids_wanted(parent text, used bigint, peak_per_second double precision) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT GREATEST(
        CASE WHEN parent = 'events' THEN GREATEST(10000000, LEAST(used, 1000000000)) ELSE 1000000 END,
        LEAST(COALESCE(peak_per_second, 0) * 604800, 1e15)::bigint)
$$;

-- name: slice_size
-- How many ids the next slice holds. Small ones first, so that a young log can be cleaned early; then a
-- part of what the table spans or has to have ready, so that their number stays small whatever the
-- rate: every look-up asks each of them.
CREATE OR REPLACE FUNCTION slice_size(parent text, spanned bigint, wanted bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN parent = 'events'
        THEN LEAST(GREATEST(10000, spanned - mod(spanned, 10000)), GREATEST(10000000, wanted / 4, spanned / 16))
        ELSE LEAST(GREATEST(100000, spanned * 4), GREATEST(10000000, wanted / 2, spanned / 4))
    END
$$;

-- name: ensure_slices
-- Keeps every insert-only table ready for far more rows than it holds; answers how many slices were
-- added. Called at installation, by the sequencer worker and by clean; one caller at a time. A table
-- that is locked is left to the next call.
CREATE OR REPLACE FUNCTION ensure_slices() RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    source record;
    present record;
    wanted bigint;
    added integer := 0;
BEGIN
    LOCK TABLE slices IN SHARE ROW EXCLUSIVE MODE;
    PERFORM raise_counters(false);
    PERFORM measure_slices();
    FOR source IN
        SELECT s.parent, s.used, r.peak_per_second
        FROM slice_sources() AS s LEFT JOIN slice_rates AS r ON r.parent = s.parent
    LOOP
        wanted := ids_wanted(source.parent, source.used, source.peak_per_second);
        LOOP
            SELECT COALESCE(max(s.last_id), 0) AS last_id, COALESCE(max(s.last_id) - min(s.first_id) + 1, 0) AS spanned
            INTO present
            FROM slices AS s
            WHERE s.parent = source.parent;
            EXIT WHEN present.last_id - source.used >= wanted;
            BEGIN
                PERFORM add_slice(source.parent, slice_size(source.parent, present.spanned, wanted));
            EXCEPTION WHEN lock_not_available THEN
                EXIT;
            END;
            added := added + 1;
        END LOOP;
    END LOOP;
    RETURN added + ensure_delayed();
END
$$;

-- name: slices_ready
-- How many ids each insert-only table can still take, for how many days that is enough at the peak rate
-- seen (NULL: none seen yet), and in how many slices it stands. No rows for who does not pass the walls:
-- they tell how much all tenants publish.
CREATE OR REPLACE FUNCTION slices_ready()
RETURNS TABLE (parent text, used bigint, ready bigint, days double precision, slices bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT u.parent, u.used, max(s.last_id) - u.used,
           (max(s.last_id) - u.used) / NULLIF(r.peak_per_second, 0) / 86400, count(*)
    FROM slice_sources() AS u
    JOIN slices AS s ON s.parent = u.parent
    LEFT JOIN slice_rates AS r ON r.parent = u.parent
    WHERE sees_all() OR passes_walls('grant')
    GROUP BY u.parent, u.used, r.peak_per_second
    ORDER BY u.parent
$$;

-- By design: a slice is a table of its own on PostgreSQL, and a partition that only a program can make on MySQL.

-- name: ensure_slices
-- Keeps every insert-only table ready for far more rows than it holds. Returns how many slices were added.
-- The installation, the sequencer's worker and clean call it, one at a time. A table that is locked is left
-- to the next call.
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
    PERFORM learn_identity();
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
-- How many ids each insert-only table can still take, for how many days that is enough at the peak rate so
-- far (NULL: no rate is known yet), and how many slices it has. A login that does not pass the walls gets no
-- rows, because they tell how much all tenants publish.
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

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

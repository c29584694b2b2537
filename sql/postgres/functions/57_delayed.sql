-- name: ensure_delayed
-- Keeps slices of delayed events ready, four days each, for longer than an event can be delayed; answers how many were added.
CREATE OR REPLACE FUNCTION ensure_delayed(longest_delay_seconds bigint DEFAULT 2592000) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    day CONSTANT bigint := 86400000000;
    today bigint := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    ready bigint;
    added integer := 0;
BEGIN
    LOCK TABLE slices IN SHARE ROW EXCLUSIVE MODE;
    LOOP
        SELECT COALESCE(max(s.last_id), 0) INTO ready FROM slices AS s WHERE s.parent = 'delayed';
        EXIT WHEN ready >= today + longest_delay_seconds * 1000000 + 2 * day;
        PERFORM add_slice('delayed', CASE WHEN ready = 0 THEN today - mod(today, day) ELSE 0 END + 4 * day);
        added := added + 1;
    END LOOP;
    RETURN added;
END
$$;

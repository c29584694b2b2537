-- name: turn_dedup
-- Empties the older generation of dedup keys, once a window has passed since the last time. So a key is kept for one
-- to two windows. Returns whether it emptied one. It waits for open publishers for 100 ms at most; after that, the
-- next call tries again.
CREATE OR REPLACE FUNCTION turn_dedup() RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET lock_timeout = '100ms' AS $$
DECLARE
    last_turn dedup_turns%ROWTYPE;
    next_one text;
BEGIN
    SELECT * INTO last_turn
    FROM dedup_turns AS d
    WHERE d.turned_at <= clock_timestamp() - make_interval(secs => setting('dedup_window_seconds'))
    FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    next_one := CASE last_turn.emptied WHEN 'dedup_even' THEN 'dedup_odd' ELSE 'dedup_even' END;
    BEGIN
        EXECUTE format('TRUNCATE %I', next_one);
    EXCEPTION WHEN lock_not_available THEN
        RETURN false;
    END;
    UPDATE dedup_turns SET emptied = next_one, turned_at = clock_timestamp();
    RETURN true;
END
$$;

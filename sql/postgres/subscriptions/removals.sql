-- name: remove_leftovers
-- Deletes at most max_rows (1 to 100,000) rows that removed subscriptions have left. Returns how many. Call it until
-- that is less. Raises PS006, PS018.
CREATE OR REPLACE FUNCTION remove_leftovers(max_rows integer DEFAULT 1000) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner_id bigint;
    gone bigint;
    total bigint := 0;
BEGIN
    PERFORM commit_durably();
    PERFORM require_read_committed('remove_leftovers()');
    IF max_rows IS NULL OR max_rows NOT BETWEEN 1 AND 100000 THEN
        PERFORM refuse('PS006', format('%s rows at once', max_rows), 'Use 1 to 100,000.');
    END IF;
    FOR owner_id IN
        SELECT m.subscription_id FROM removals AS m ORDER BY m.subscription_id LIMIT max_rows FOR UPDATE SKIP LOCKED
    LOOP
        EXIT WHEN total >= max_rows;
        gone := remove_rows(owner_id, max_rows - total);
        UPDATE removals AS m SET moved_at = clock_timestamp() WHERE m.subscription_id = owner_id AND gone > 0;
        PERFORM end_removal(owner_id);
        total := total + gone;
    END LOOP;
    RETURN total;
END
$$;

-- name: list_removals
-- The first 100 removed subscriptions of which something is still to be deleted: since when, how many rows are left (of
-- each at most 1,000 are counted; that many means that many or more), and for how long nothing of it was deleted.
-- Nothing for a login that does not see all topics: whose they were is not known any more.
CREATE OR REPLACE FUNCTION list_removals()
RETURNS TABLE (subscription text, removed_at timestamptz, rows_left bigint, idle_seconds double precision)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT m.name, m.removed_at, rows_left(m.subscription_id, 1000),
           GREATEST(extract(epoch FROM clock_timestamp() - m.moved_at), 0)::double precision
    FROM (
        SELECT o.* FROM removals AS o WHERE sees_all() ORDER BY o.subscription_id LIMIT 100
    ) AS m
    ORDER BY m.subscription_id
$$;

-- name: remove_rows
-- Deletes at most so many rows that a subscription has left: dead letters, and what a queue has dealt or copied. Those
-- that a worker's transaction has locked stay for a later batch. Returns how many it deleted.
CREATE OR REPLACE FUNCTION remove_rows(owner_id bigint, max_rows bigint) RETURNS bigint
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    source text;
    gone bigint;
    total bigint;
BEGIN
    DELETE FROM queue_ranges AS r
    WHERE r.id = ANY (ARRAY(
        SELECT n.id FROM queue_ranges AS n
        WHERE n.subscription_id = owner_id
        ORDER BY n.id
        LIMIT max_rows
        FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS total = ROW_COUNT;
    FOREACH source IN ARRAY '{queue_waiting,queue_keys,queue_purges,dead_letters}'::text[] LOOP
        EXECUTE format(
            'DELETE FROM %1$I AS r WHERE r.ctid = ANY (ARRAY('
            'SELECT n.ctid FROM %1$I AS n WHERE n.subscription_id = $1 LIMIT $2 FOR UPDATE SKIP LOCKED))', source)
        USING owner_id, max_rows - total;
        GET DIAGNOSTICS gone = ROW_COUNT;
        total := total + gone;
    END LOOP;
    RETURN total;
END
$$;

-- name: end_removal
-- Forgets a removed subscription once it has left nothing. One statement looks: a worker's transaction that is open has
-- locked a row that shows, or has written what shows from its COMMIT on.
CREATE OR REPLACE FUNCTION end_removal(owner_id bigint) RETURNS void
LANGUAGE sql AS $$
    DELETE FROM removals AS m
    WHERE m.subscription_id = owner_id
      AND NOT EXISTS (SELECT FROM queue_ranges AS r WHERE r.subscription_id = owner_id)
      AND NOT EXISTS (SELECT FROM queue_waiting AS w WHERE w.subscription_id = owner_id)
      AND NOT EXISTS (SELECT FROM queue_keys AS k WHERE k.subscription_id = owner_id)
      AND NOT EXISTS (SELECT FROM queue_purges AS p WHERE p.subscription_id = owner_id)
      AND NOT EXISTS (SELECT FROM dead_letters AS d WHERE d.subscription_id = owner_id)
$$;

-- name: rows_left
-- How many rows a removed subscription has left, counted up to a limit.
CREATE OR REPLACE FUNCTION rows_left(owner_id bigint, most integer) RETURNS bigint
LANGUAGE sql STABLE SET enable_seqscan = off AS $$
    SELECT count(*)
    FROM (
        (SELECT 1 FROM queue_ranges AS r WHERE r.subscription_id = owner_id LIMIT most)
        UNION ALL (SELECT 1 FROM queue_waiting AS w WHERE w.subscription_id = owner_id LIMIT most)
        UNION ALL (SELECT 1 FROM queue_keys AS k WHERE k.subscription_id = owner_id LIMIT most)
        UNION ALL (SELECT 1 FROM queue_purges AS p WHERE p.subscription_id = owner_id LIMIT most)
        UNION ALL (SELECT 1 FROM dead_letters AS d WHERE d.subscription_id = owner_id LIMIT most)
        LIMIT most
    ) AS l
$$;

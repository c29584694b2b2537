-- name: remove_leftovers
-- Deletes at most max_rows (1 to 100,000) rows that removed subscriptions have left. Returns how many. Call it until
-- that is less. Raises PS006, PS018.
CREATE PROCEDURE remove_leftovers(max_rows INT)
BEGIN
    DECLARE owner_id, last_id BIGINT DEFAULT 0;
    DECLARE gone INT;
    DECLARE total, looked INT DEFAULT 0;
    {{on error: CALL undo_call()}}
    CALL begin_call('remove_leftovers()');
    CALL require_read_committed('remove_leftovers()');
    IF NOT COALESCE(max_rows BETWEEN 1 AND 100000, FALSE) THEN
        CALL refuse('PS006', CONCAT(COALESCE(max_rows, 'NULL'), ' rows at once: use 1 to 100,000'));
    END IF;
    each_one: LOOP
        SET owner_id = (
            SELECT m.subscription_id FROM removals AS m
            WHERE m.subscription_id > last_id ORDER BY m.subscription_id LIMIT 1 FOR UPDATE SKIP LOCKED);
        IF owner_id IS NULL OR total >= max_rows OR looked >= max_rows THEN
            LEAVE each_one;
        END IF;
        CALL remove_rows(owner_id, max_rows - total, gone);
        IF gone > 0 THEN
            UPDATE removals AS m SET m.moved_at = UTC_TIMESTAMP(6) WHERE m.subscription_id = owner_id;
        END IF;
        CALL end_removal(owner_id);
        SET total = total + gone, looked = looked + 1, last_id = owner_id;
    END LOOP;
    SELECT total AS removed;
    CALL end_call();
END;

-- name: list_removals
-- The first 100 removed subscriptions of which something is still to be deleted: since when, how many rows are left (of
-- each at most 1,000 are counted; that many means that many or more), and for how long nothing of it was deleted.
-- Nothing for a login that does not see all topics: whose they were is not known any more.
CREATE PROCEDURE list_removals()
READS SQL DATA
BEGIN
    CALL refuse_serializable('list_removals()');
    SELECT m.name AS subscription, m.removed_at, rows_left(m.subscription_id, 1000) AS rows_left,
           GREATEST(TIMESTAMPDIFF(MICROSECOND, m.moved_at, UTC_TIMESTAMP(6)), 0) / 1e6 AS idle_seconds
    FROM removals AS m
    WHERE sees_all()
    ORDER BY m.subscription_id
    LIMIT 100;
END;

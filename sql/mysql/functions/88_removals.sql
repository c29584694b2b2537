-- name: find_leftovers
-- Puts the ids of at most so many rows that a subscription has left in one table into the session's table leftovers,
-- locked. Those that a worker's transaction has locked stay for a later batch.
CREATE PROCEDURE find_leftovers(source VARCHAR(20), owner_id BIGINT, most INT)
BEGIN
    DELETE FROM leftovers;
    IF source = 'ranges' THEN
        INSERT INTO leftovers (id)
        SELECT r.id FROM queue_ranges AS r FORCE INDEX (PRIMARY)
        WHERE r.subscription_id = owner_id ORDER BY r.id LIMIT most FOR UPDATE SKIP LOCKED;
    ELSEIF source = 'waiting' THEN
        INSERT INTO leftovers (id)
        SELECT w.id FROM queue_waiting AS w FORCE INDEX (queue_waiting_place)
        WHERE w.subscription_id = owner_id LIMIT most FOR UPDATE SKIP LOCKED;
    ELSEIF source = 'purges' THEN
        INSERT INTO leftovers (id)
        SELECT p.id FROM queue_purges AS p WHERE p.subscription_id = owner_id LIMIT most FOR UPDATE SKIP LOCKED;
    ELSE
        INSERT INTO leftovers (id)
        SELECT d.id FROM dead_letters AS d FORCE INDEX (PRIMARY)
        WHERE d.subscription_id = owner_id LIMIT most FOR UPDATE SKIP LOCKED;
    END IF;
END;

-- name: remove_rows
-- Deletes at most so many rows that a subscription has left: dead letters, and what a queue has dealt or copied. Those
-- that a worker's transaction has locked stay for a later batch. gone is how many it deleted.
CREATE PROCEDURE remove_rows(owner_id BIGINT, max_rows INT, OUT gone INT)
BEGIN
    DECLARE room INT DEFAULT max_rows;
    DECLARE is_left BOOLEAN;
    CREATE TEMPORARY TABLE IF NOT EXISTS leftovers (id BIGINT NOT NULL PRIMARY KEY) ENGINE = InnoDB;
    CALL find_leftovers('ranges', owner_id, room);
    DELETE r
    FROM leftovers AS o
    STRAIGHT_JOIN queue_ranges AS r FORCE INDEX (PRIMARY) ON r.subscription_id = owner_id AND r.id = o.id;
    SET room = room - ROW_COUNT();
    CALL find_leftovers('waiting', owner_id, room);
    DELETE w FROM leftovers AS o STRAIGHT_JOIN queue_waiting AS w FORCE INDEX (PRIMARY) ON w.id = o.id;
    SET room = room - ROW_COUNT();
    CALL find_leftovers('purges', owner_id, room);
    DELETE p FROM leftovers AS o STRAIGHT_JOIN queue_purges AS p FORCE INDEX (PRIMARY) ON p.id = o.id;
    SET room = room - ROW_COUNT();
    CALL find_leftovers('letters', owner_id, room);
    DELETE d FROM leftovers AS o STRAIGHT_JOIN dead_letters AS d FORCE INDEX (dead_letters_id) ON d.id = o.id;
    SET room = room - ROW_COUNT();
    -- Nobody locks a key who has no claim, and claims that are locked show as ranges. Asked in the IF, this would wait
    -- for their locks.
    SELECT EXISTS (SELECT r.id FROM queue_ranges AS r WHERE r.subscription_id = owner_id) INTO is_left;
    IF NOT is_left THEN
        DELETE FROM queue_keys
        WHERE subscription_id = owner_id ORDER BY partition_id, sequence, waiting_id LIMIT room;
        SET room = room - ROW_COUNT();
    END IF;
    DELETE FROM leftovers;
    SET gone = max_rows - room;
END;

-- name: end_removal
-- Forgets a removed subscription once it has left nothing. One query looks, without locks: a worker's transaction that
-- is open has locked a row that shows, or has written what shows from its COMMIT on.
CREATE PROCEDURE end_removal(owner_id BIGINT)
BEGIN
    DECLARE is_left BOOLEAN;
    SELECT EXISTS (SELECT r.id FROM queue_ranges AS r WHERE r.subscription_id = owner_id)
           OR EXISTS (SELECT w.id FROM queue_waiting AS w WHERE w.subscription_id = owner_id)
           OR EXISTS (SELECT k.sequence FROM queue_keys AS k WHERE k.subscription_id = owner_id)
           OR EXISTS (SELECT p.id FROM queue_purges AS p WHERE p.subscription_id = owner_id)
           OR EXISTS (SELECT d.id FROM dead_letters AS d WHERE d.subscription_id = owner_id)
    INTO is_left;
    IF NOT is_left THEN
        DELETE m FROM removals AS m WHERE m.subscription_id = owner_id;
    END IF;
END;

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

-- name: rows_left
-- How many rows a removed subscription has left, counted up to a limit.
CREATE FUNCTION rows_left(owner_id BIGINT, most INT) RETURNS BIGINT
READS SQL DATA
BEGIN
    DECLARE found BIGINT;
    SELECT COUNT(*) INTO found
    FROM (
        (SELECT r.id FROM queue_ranges AS r FORCE INDEX (PRIMARY) WHERE r.subscription_id = owner_id LIMIT most)
        UNION ALL (
            SELECT w.id FROM queue_waiting AS w FORCE INDEX (queue_waiting_place)
            WHERE w.subscription_id = owner_id LIMIT most)
        UNION ALL (SELECT k.sequence FROM queue_keys AS k WHERE k.subscription_id = owner_id LIMIT most)
        UNION ALL (SELECT p.id FROM queue_purges AS p WHERE p.subscription_id = owner_id LIMIT most)
        UNION ALL (
            SELECT d.id FROM dead_letters AS d FORCE INDEX (PRIMARY) WHERE d.subscription_id = owner_id LIMIT most)
    ) AS l;
    RETURN LEAST(found, most);
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

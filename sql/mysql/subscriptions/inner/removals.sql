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

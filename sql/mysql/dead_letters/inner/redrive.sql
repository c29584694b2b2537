-- name: redriven_letters
-- How many dead letters of a partition wait for their next delivery.
CREATE FUNCTION redriven_letters(of_subscription BIGINT, of_partition BIGINT) RETURNS BIGINT
READS SQL DATA
BEGIN
    DECLARE found BIGINT;
    SELECT COUNT(*) INTO found
    FROM dead_letters AS d FORCE INDEX (dead_letters_redriven)
    WHERE d.subscription_id = of_subscription AND d.partition_id = of_partition AND d.redriven_at IS NOT NULL;
    RETURN found;
END;

-- name: return_letters
-- Makes redriven dead letters (a JSON array of ids) dead again; of a parked one the whole key waits again. An
-- empty reason keeps the old one, and so does what was erased.
CREATE PROCEDURE return_letters(owner_id BIGINT, letter_ids JSON, why TEXT)
BEGIN
    DECLARE dead_again LONGTEXT;
    DECLARE limit_before BIGINT UNSIGNED DEFAULT @@SESSION.group_concat_max_len;
    {{on error: SET SESSION group_concat_max_len = limit_before}}
    SET SESSION group_concat_max_len = 4294967295;
    -- A second call finds them dead already.
    SELECT CONCAT('[', GROUP_CONCAT(d.id), ']') INTO dead_again
    FROM JSON_TABLE(letter_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS g
    STRAIGHT_JOIN dead_letters AS d FORCE INDEX (dead_letters_id) ON d.id = g.id
    WHERE d.subscription_id = owner_id AND d.redriven_at IS NOT NULL;
    SET SESSION group_concat_max_len = limit_before;
    UPDATE (
        SELECT DISTINCT d.partition_id, d.`key`
        FROM JSON_TABLE(letter_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS g
        JOIN dead_letters AS d
            ON d.id = g.id AND d.subscription_id = owner_id AND d.parked AND d.redriven_at IS NOT NULL
    ) AS failed
    STRAIGHT_JOIN dead_letters AS w FORCE INDEX (dead_letters_parked)
        ON w.subscription_id = owner_id AND w.parked = TRUE AND w.partition_id = failed.partition_id
        AND w.`key` = failed.`key`
    LEFT JOIN JSON_TABLE(letter_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS own ON own.id = w.id
    SET w.redriven_at = NULL
    WHERE w.redriven_at IS NOT NULL AND own.id IS NULL;
    UPDATE JSON_TABLE(letter_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS g
    STRAIGHT_JOIN dead_letters AS d FORCE INDEX (dead_letters_id) ON d.id = g.id
    SET d.redriven_at = NULL, d.died_at = UTC_TIMESTAMP(6),
        d.reason = IF(is_tombstone(LENGTH(d.payload), d.headers), d.reason,
                      COALESCE(NULLIF(LEFT(why, 2000), ''), d.reason))
    WHERE d.subscription_id = owner_id AND d.redriven_at IS NOT NULL;
    CALL forward_letters(owner_id, dead_again);
END;

-- name: lock_letters
-- Locks dead letters of a subscription that are not redriven, and returns them (locked, a JSON array): the given ones
-- (a JSON array of ids), each of a parked key with all of that key, or all (NULL). Whoever takes several letters takes
-- them in this order: first the row of a queue's subscription, which those lock too who set its order, delete it or
-- delete its topic; then the letters, in the order of their primary key. It finds them without a lock: consumers have
-- some.
CREATE PROCEDURE lock_letters(owner_id BIGINT, letter_ids JSON, OUT locked LONGTEXT)
lock_them: BEGIN
    DECLARE is_queue BOOLEAN;
    DECLARE is_there, how_many INT;
    DECLARE wanted JSON;
    DECLARE limit_before BIGINT UNSIGNED DEFAULT @@SESSION.group_concat_max_len;
    {{on error: SET SESSION group_concat_max_len = limit_before}}
    SET locked = '[]';
    SELECT COUNT(*) INTO is_queue FROM queues AS q WHERE q.subscription_id = owner_id;
    IF is_queue THEN
        SELECT COUNT(s.id) INTO is_there FROM subscriptions AS s WHERE s.id = owner_id LOCK IN SHARE MODE;
        IF is_there = 0 THEN  -- It was deleted while this waited for it.
            LEAVE lock_them;
        END IF;
    END IF;
    SET SESSION group_concat_max_len = 4294967295;
    IF letter_ids IS NULL THEN
        SELECT CONCAT('[', GROUP_CONCAT(d.id ORDER BY d.partition_id, d.sequence, d.history), ']') INTO wanted
        FROM dead_letters AS d FORCE INDEX (PRIMARY)
        WHERE d.subscription_id = owner_id AND d.redriven_at IS NULL;
    ELSE
        SELECT CONCAT('[', GROUP_CONCAT(f.id ORDER BY f.partition_id, f.sequence, f.history), ']') INTO wanted
        FROM (
            SELECT d.id, d.partition_id, d.sequence, d.history
            FROM JSON_TABLE(letter_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS g
            STRAIGHT_JOIN dead_letters AS d FORCE INDEX (dead_letters_id) ON d.id = g.id
            WHERE d.subscription_id = owner_id
            UNION
            SELECT w.id, w.partition_id, w.sequence, w.history
            FROM JSON_TABLE(letter_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS g
            STRAIGHT_JOIN dead_letters AS d FORCE INDEX (dead_letters_id) ON d.id = g.id
            STRAIGHT_JOIN dead_letters AS w FORCE INDEX (dead_letters_parked)
                ON w.subscription_id = owner_id AND w.parked = TRUE AND w.partition_id = d.partition_id
                AND w.`key` = d.`key`
            WHERE d.subscription_id = owner_id AND d.parked
        ) AS f;
    END IF;
    SELECT COALESCE(CONCAT('[', GROUP_CONCAT(d.id), ']'), '[]'), COUNT(d.id) INTO locked, how_many
    FROM (
        SELECT j.id
        FROM JSON_TABLE(COALESCE(wanted, '[]'), '$[*]' COLUMNS (place FOR ORDINALITY, id BIGINT PATH '$')) AS j
        ORDER BY j.place
        LIMIT 100000000  -- keeps the order, and MariaDB from merging the two queries
    ) AS n
    STRAIGHT_JOIN dead_letters AS d FORCE INDEX (dead_letters_id) ON d.id = n.id
    WHERE d.subscription_id = owner_id AND d.redriven_at IS NULL
    FOR UPDATE;
    SET SESSION group_concat_max_len = limit_before;
    IF JSON_LENGTH(locked) <> how_many THEN
        CALL refuse('PS019', 'not all dead letters were found');
    END IF;
END;

-- name: redrive_letters
-- What redrive does for a subscription, whose mode decides how: the given letters (a JSON array of ids), or all (NULL).
-- They do not point to their copies in another topic any more. changed is how many.
CREATE PROCEDURE redrive_letters(
    owner_id BIGINT, letter_ids JSON, keep_deliveries BOOLEAN, OUT changed BIGINT
)
BEGIN
    DECLARE is_queue BOOLEAN;
    DECLARE chosen JSON;
    CALL lock_letters(owner_id, letter_ids, chosen);
    SELECT COUNT(*) INTO is_queue FROM queues AS q WHERE q.subscription_id = owner_id;
    IF is_queue THEN
        CALL redrive_queue(owner_id, chosen, keep_deliveries, changed);
    ELSE
        UPDATE JSON_TABLE(chosen, '$[*]' COLUMNS (id BIGINT PATH '$')) AS g
        STRAIGHT_JOIN dead_letters AS d FORCE INDEX (dead_letters_id) ON d.id = g.id
        SET d.redriven_at = UTC_TIMESTAMP(6), d.attempts_before = d.attempts, d.forwarded_to = NULL,
            d.forwarded_as = NULL, d.not_forwarded = NULL;
        SET changed = ROW_COUNT();
    END IF;
END;

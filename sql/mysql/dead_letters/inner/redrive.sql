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

-- name: redrive_letters
-- What redrive does for a subscription, whose mode decides how: the given letters (a JSON array of ids), or all (NULL).
-- Their copies in another topic are letters no longer. changed is how many.
CREATE PROCEDURE redrive_letters(
    owner_id BIGINT, letter_ids JSON, keep_deliveries BOOLEAN, OUT changed BIGINT
)
BEGIN
    DECLARE is_queue BOOLEAN;
    SET changed = 0;
    SELECT COUNT(*) INTO is_queue FROM queues AS q WHERE q.subscription_id = owner_id;
    IF is_queue THEN
        CALL redrive_queue(owner_id, letter_ids, keep_deliveries, changed);
    ELSEIF letter_ids IS NULL THEN
        UPDATE dead_letters AS d
        SET d.redriven_at = UTC_TIMESTAMP(6), d.attempts_before = d.attempts
        WHERE d.subscription_id = owner_id AND d.redriven_at IS NULL;
        SET changed = ROW_COUNT();
    ELSE
        UPDATE (
            SELECT DISTINCT d.partition_id, d.`key`
            FROM JSON_TABLE(letter_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS g
            JOIN dead_letters AS d ON d.id = g.id AND d.subscription_id = owner_id AND d.parked
        ) AS chosen
        STRAIGHT_JOIN dead_letters AS w FORCE INDEX (dead_letters_parked)
            ON w.subscription_id = owner_id AND w.parked = TRUE AND w.partition_id = chosen.partition_id
            AND w.`key` = chosen.`key`
        SET w.redriven_at = UTC_TIMESTAMP(6), w.attempts_before = w.attempts
        WHERE w.redriven_at IS NULL;
        SET changed = ROW_COUNT();
        UPDATE JSON_TABLE(letter_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS g
        STRAIGHT_JOIN dead_letters AS d FORCE INDEX (dead_letters_id) ON d.id = g.id
        SET d.redriven_at = UTC_TIMESTAMP(6), d.attempts_before = d.attempts
        WHERE d.subscription_id = owner_id AND d.redriven_at IS NULL;
        SET changed = changed + ROW_COUNT();
    END IF;
    IF NOT is_queue THEN
        CALL end_redriven_copies(owner_id);
    END IF;
END;

-- name: end_redriven_copies
-- Takes the marks of their copies off letters that were redriven. It finds them without a lock: consumers have some.
CREATE PROCEDURE end_redriven_copies(owner_id BIGINT)
BEGIN
    DECLARE letter BIGINT;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE letters CURSOR FOR
        SELECT d.id
        FROM dead_letters AS d FORCE INDEX (PRIMARY)
        WHERE d.subscription_id = owner_id AND d.redriven_at IS NOT NULL
          AND (d.forwarded_as IS NOT NULL OR d.not_forwarded IS NOT NULL)
        ORDER BY d.id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    OPEN letters;
    each_letter: LOOP
        FETCH letters INTO letter;
        IF done THEN
            LEAVE each_letter;
        END IF;
        CALL end_copies_of(letter);
        UPDATE dead_letters AS d FORCE INDEX (dead_letters_id)
        SET d.forwarded_to = NULL, d.forwarded_as = NULL, d.not_forwarded = NULL
        WHERE d.id = letter;
    END LOOP;
    CLOSE letters;
END;

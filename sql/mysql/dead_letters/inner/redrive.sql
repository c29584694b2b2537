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
END;

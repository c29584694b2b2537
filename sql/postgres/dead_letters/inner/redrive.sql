-- name: redriven_letters
-- How many dead letters of a partition wait for their next delivery.
CREATE OR REPLACE FUNCTION redriven_letters(subscription_id bigint, partition_id bigint) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN count(*)
    FROM dead_letters AS d
    WHERE d.subscription_id = redriven_letters.subscription_id AND d.partition_id = redriven_letters.partition_id
      AND d.redriven_at IS NOT NULL;
END
$$;

-- name: return_letters
-- Makes redriven dead letters dead again; of a parked one the whole key waits again. An empty reason keeps the old
-- one, and so does what was erased.
CREATE OR REPLACE FUNCTION return_letters(subscription_id bigint, letter_ids bigint[], reason text) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
DECLARE
    dead_again bigint[];
BEGIN
    WITH failed AS (
        UPDATE dead_letters AS d
        SET redriven_at = NULL, died_at = clock_timestamp(),
            reason = CASE WHEN is_tombstone(d.payload, d.headers) THEN d.reason
                          ELSE COALESCE(NULLIF(left(return_letters.reason, 2000), ''), d.reason) END
        WHERE d.subscription_id = return_letters.subscription_id AND d.id = ANY (letter_ids)
          AND d.redriven_at IS NOT NULL
        RETURNING d.id, d.partition_id, d.parked, d.key
    ), waiting AS (
        UPDATE dead_letters AS w
        SET redriven_at = NULL
        FROM (SELECT DISTINCT f.partition_id, f.key FROM failed AS f WHERE f.parked) AS k
        WHERE w.subscription_id = return_letters.subscription_id AND w.partition_id = k.partition_id AND w.key = k.key
          AND w.parked AND w.redriven_at IS NOT NULL AND w.id NOT IN (SELECT f.id FROM failed AS f)
    )
    SELECT array_agg(f.id) INTO dead_again FROM failed AS f;
    PERFORM forward_letters(return_letters.subscription_id, dead_again);
END
$$;

-- name: redrive_letters
-- What redrive does for a subscription, whose mode decides how: the given letters, or all (NULL). Their copies in
-- another topic are letters no longer. Returns how many.
CREATE OR REPLACE FUNCTION redrive_letters(owner_id bigint, letter_ids bigint[], keep_deliveries boolean)
RETURNS bigint
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
DECLARE
    changed bigint;
BEGIN
    IF EXISTS (SELECT FROM queues AS q WHERE q.subscription_id = owner_id) THEN
        RETURN redrive_queue(owner_id, letter_ids, keep_deliveries);
    END IF;
    WITH chosen AS (
        SELECT d.id
        FROM dead_letters AS d
        WHERE d.subscription_id = owner_id AND d.redriven_at IS NULL
          AND (letter_ids IS NULL OR d.id = ANY (letter_ids) OR (d.parked AND EXISTS (
              SELECT FROM dead_letters AS e
              WHERE e.subscription_id = owner_id AND e.id = ANY (letter_ids) AND e.parked
                AND e.partition_id = d.partition_id AND e.key = d.key)))
        ORDER BY d.id
        FOR NO KEY UPDATE OF d
    ), ended AS (
        UPDATE letter_copies AS c SET ended_at = clock_timestamp() FROM chosen AS o
        WHERE c.subscription_id = owner_id AND c.letter_id = o.id AND c.ended_at IS NULL
    )
    UPDATE dead_letters AS d
    SET redriven_at = clock_timestamp(), attempts_before = d.attempts, forwarded_to = NULL, forwarded_as = NULL,
        not_forwarded = NULL
    FROM chosen AS c
    WHERE d.subscription_id = owner_id AND d.id = c.id;
    GET DIAGNOSTICS changed = ROW_COUNT;
    RETURN changed;
END
$$;

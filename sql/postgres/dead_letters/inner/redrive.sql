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
BEGIN
    WITH failed AS (
        UPDATE dead_letters AS d
        SET redriven_at = NULL, died_at = clock_timestamp(),
            reason = CASE WHEN is_tombstone(d.payload, d.headers) THEN d.reason
                          ELSE COALESCE(NULLIF(left(return_letters.reason, 2000), ''), d.reason) END
        WHERE d.subscription_id = return_letters.subscription_id AND d.id = ANY (letter_ids)
          AND d.redriven_at IS NOT NULL
        RETURNING d.id, d.partition_id, d.parked, d.key
    )
    UPDATE dead_letters AS w
    SET redriven_at = NULL
    FROM (SELECT DISTINCT f.partition_id, f.key FROM failed AS f WHERE f.parked) AS k
    WHERE w.subscription_id = return_letters.subscription_id AND w.partition_id = k.partition_id AND w.key = k.key
      AND w.parked AND w.redriven_at IS NOT NULL AND w.id NOT IN (SELECT f.id FROM failed AS f);
END
$$;

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

-- name: lock_letters
-- Locks dead letters of a subscription that are not redriven, and returns them: the given ones, each of a parked key
-- with all of that key, or all (NULL). Whoever takes several letters takes them in this order: first the row of a
-- queue's subscription, which those lock too who set its order, delete it or delete its topic; then the letters, in the
-- order of their primary key.
CREATE OR REPLACE FUNCTION lock_letters(owner_id bigint, letter_ids bigint[]) RETURNS bigint[]
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
DECLARE
    wanted bigint[];
BEGIN
    IF EXISTS (SELECT FROM queues AS q WHERE q.subscription_id = owner_id) THEN
        PERFORM FROM subscriptions AS s WHERE s.id = owner_id FOR SHARE;
        IF NOT FOUND THEN  -- It was deleted while this waited for it.
            RETURN '{}';
        END IF;
    END IF;
    IF letter_ids IS NULL THEN
        wanted := ARRAY(SELECT d.id FROM dead_letters AS d WHERE d.subscription_id = owner_id);
    ELSE
        wanted := letter_ids || ARRAY(
            SELECT w.id
            FROM dead_letters AS e
            JOIN dead_letters AS w ON w.subscription_id = owner_id AND w.parked AND w.partition_id = e.partition_id
                                   AND w.key = e.key
            WHERE e.subscription_id = owner_id AND e.id = ANY (letter_ids) AND e.parked);
    END IF;
    RETURN ARRAY(
        SELECT d.id
        FROM dead_letters AS d
        WHERE d.subscription_id = owner_id AND d.id = ANY (wanted) AND d.redriven_at IS NULL
        ORDER BY d.partition_id, d.sequence, d.history
        FOR UPDATE);
END
$$;

-- name: redrive_letters
-- What redrive does for a subscription, whose mode decides how: the given letters, or all (NULL). They do not point to
-- their copies in another topic any more. Returns how many.
CREATE OR REPLACE FUNCTION redrive_letters(owner_id bigint, letter_ids bigint[], keep_deliveries boolean)
RETURNS bigint
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
DECLARE
    chosen bigint[] := lock_letters(owner_id, letter_ids);
    changed bigint;
BEGIN
    IF EXISTS (SELECT FROM queues AS q WHERE q.subscription_id = owner_id) THEN
        RETURN redrive_queue(owner_id, chosen, keep_deliveries);
    END IF;
    UPDATE dead_letters AS d
    SET redriven_at = clock_timestamp(), attempts_before = d.attempts, forwarded_to = NULL, forwarded_as = NULL,
        not_forwarded = NULL
    WHERE d.subscription_id = owner_id AND d.id = ANY (chosen);
    GET DIAGNOSTICS changed = ROW_COUNT;
    RETURN changed;
END
$$;

-- name: store_letters
-- Copies events of a partition to the dead letters of a subscription; a copy that exists already is kept. An event
-- that is parked waits for the operator together with its key: if the key was redriven, so is the event. What was
-- erased since the caller has read it takes no reason, which may quote it. The caller holds the lease. Raises PS016,
-- PS040.
CREATE OR REPLACE FUNCTION store_letters(
    subscription_id bigint, partition_id bigint, sequences bigint[], reason text, attempts integer, parked boolean,
    behind boolean
) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
DECLARE
    lowest bigint := (SELECT min(s) FROM unnest(sequences) AS s);
    highest bigint := (SELECT max(s) FROM unnest(sequences) AS s);
    low bigint := (SELECT p.low_sequence FROM partitions AS p WHERE p.id = store_letters.partition_id);
    stored integer;
    most CONSTANT integer := 10000;
BEGIN
    INSERT INTO dead_letters AS d (
        subscription_id, partition_id, sequence, history, event_id, key, type, content_type, headers, payload,
        created_at, reason, attempts, parked, redriven_at)
    SELECT store_letters.subscription_id, store_letters.partition_id, r.sequence, current_history(), r.event_id, r.key,
           r.type, r.content_type, r.headers, r.payload, r.created_at,
           CASE WHEN is_tombstone(r.payload, r.headers) THEN '' ELSE left(store_letters.reason, 2000) END,
           store_letters.attempts, store_letters.parked AND r.key IS NOT NULL,
           CASE WHEN behind AND NOT EXISTS (
               SELECT FROM dead_letters AS w
               WHERE w.subscription_id = store_letters.subscription_id AND w.partition_id = store_letters.partition_id
                 AND w.parked AND w.key = r.key AND w.redriven_at IS NULL)
           THEN clock_timestamp() END
    FROM (
        SELECT l.*
        FROM read_log(store_letters.partition_id, GREATEST(lowest, low),
                      GREATEST(highest - GREATEST(lowest, low) + 1, 0)::integer) AS l
        UNION ALL
        SELECT b.*
        FROM read_rehydrated(store_letters.partition_id, lowest,
                             GREATEST(LEAST(highest, low - 1) - lowest + 1, 0)::integer) AS b
    ) AS r
    WHERE r.sequence = ANY (sequences)
    ON CONFLICT ON CONSTRAINT dead_letters_pkey DO UPDATE
    SET reason = CASE WHEN is_tombstone(d.payload, d.headers) THEN d.reason ELSE EXCLUDED.reason END,
        attempts = GREATEST(d.attempts, EXCLUDED.attempts), died_at = EXCLUDED.died_at,
        parked = d.parked OR EXCLUDED.parked, redriven_at = EXCLUDED.redriven_at, attempts_before = d.attempts,
        forwarded_to = NULL, forwarded_as = NULL, not_forwarded = NULL;
    GET DIAGNOSTICS stored = ROW_COUNT;
    IF stored < cardinality(sequences) THEN
        stored := stored + settle_brought(store_letters.subscription_id, store_letters.partition_id, sequences,
                                          store_letters.reason, store_letters.attempts, store_letters.parked, behind);
    END IF;
    IF stored <> cardinality(sequences) THEN
        PERFORM refuse('PS016', format('the log does not hold all of the sequences %s to %s', lowest, highest),
                       'Nothing was given up or skipped: seek to what is left.');
    END IF;
    IF store_letters.parked THEN
        SELECT count(*) INTO stored
        FROM (
            SELECT FROM dead_letters AS w
            WHERE w.subscription_id = store_letters.subscription_id AND w.parked
            LIMIT most + 1
        ) AS waiting;
        IF stored > most THEN
            PERFORM refuse('PS040', format('more than %s events would be parked', most),
                           'The partition stands still until some were redriven or dropped: penstock dead-letter.');
        END IF;
    END IF;
    -- What only waits behind its key has not died.
    IF NOT behind THEN
        PERFORM forward_letters(store_letters.subscription_id, ARRAY(
            SELECT d.id
            FROM dead_letters AS d
            WHERE d.subscription_id = store_letters.subscription_id AND d.partition_id = store_letters.partition_id
              AND d.sequence = ANY (sequences) AND d.history = current_history()));
    END IF;
END
$$;

-- name: settle_brought
-- What store_letters does, for events below the low sequence: the caller's transaction has brought them (bring_letter).
-- Returns how many there are.
CREATE OR REPLACE FUNCTION settle_brought(
    subscription_id bigint, partition_id bigint, sequences bigint[], reason text, attempts integer, parked boolean,
    behind boolean
) RETURNS integer
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
DECLARE
    settled integer;
BEGIN
    UPDATE dead_letters AS d
    SET reason = CASE WHEN is_tombstone(d.payload, d.headers) THEN d.reason ELSE left(settle_brought.reason, 2000) END,
        attempts = GREATEST(d.attempts, settle_brought.attempts),
        died_at = clock_timestamp(), attempts_before = d.attempts, forwarded_to = NULL, forwarded_as = NULL,
        not_forwarded = NULL, parked = d.parked OR (settle_brought.parked AND d.key IS NOT NULL),
        redriven_at = CASE WHEN behind AND NOT EXISTS (
            SELECT FROM dead_letters AS w
            WHERE w.subscription_id = d.subscription_id AND w.partition_id = d.partition_id
              AND w.parked AND w.key = d.key AND w.redriven_at IS NULL)
        THEN clock_timestamp() END
    WHERE d.subscription_id = settle_brought.subscription_id AND d.partition_id = settle_brought.partition_id
      AND d.sequence = ANY (sequences) AND d.history = current_history()
      AND d.sequence < (SELECT p.low_sequence FROM partitions AS p WHERE p.id = settle_brought.partition_id)
      AND NOT is_rehydrated(d.partition_id, d.sequence);
    GET DIAGNOSTICS settled = ROW_COUNT;
    RETURN settled;
END
$$;

-- name: redrive
-- Makes dead letters deliverable again, to the consumer that holds their partition: the given ones, or all of the
-- subscription (NULL). Of a parked key it redrives all events, in order. With keep_deliveries a queue goes on counting
-- how often it has handed them out. Returns how many were not redriven already. Raises PS013, PS018.
CREATE OR REPLACE FUNCTION redrive(
    subscription text, letter_ids bigint[] DEFAULT NULL, keep_deliveries boolean DEFAULT false
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner_id bigint := (require_subscription(subscription)).id;
BEGIN
    PERFORM commit_durably();
    PERFORM require_read_committed('redrive()');
    RETURN redrive_letters(owner_id, letter_ids, COALESCE(keep_deliveries, false));
END
$$;

-- name: poll_redriven
-- Redriven dead letters of leased partitions, in order. Each is counted as handed out; commit that before a handler
-- gets them. Of a parked key it returns only the first event. A letter that was handed out as often as the
-- subscription allows, and never finished, is dead again. Raises PS010, PS013, PS018.
CREATE OR REPLACE FUNCTION poll_redriven(
    subscription text, consumer text, partition_ids bigint[], lease_epochs bigint[], max_events integer DEFAULT 100
) RETURNS TABLE (
    letter_id bigint, attempts integer, parked boolean, history integer, partition_id bigint, sequence bigint,
    event_id uuid, key text, type text, content_type text, headers jsonb, payload bytea, created_at timestamptz
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    owner subscriptions%ROWTYPE := require_subscription(subscription);
    held_ids bigint[];
    held_epochs bigint[];
BEGIN
    IF NOT EXISTS (SELECT FROM dead_letters AS d WHERE d.subscription_id = owner.id AND d.redriven_at IS NOT NULL) THEN
        RETURN;
    END IF;
    SELECT array_agg(l.partition_id), array_agg(l.lease_epoch) INTO held_ids, held_epochs
    FROM unnest(poll_redriven.partition_ids, poll_redriven.lease_epochs) AS given (partition_id, lease_epoch)
    JOIN leases AS l
        ON l.subscription_id = owner.id AND l.partition_id = given.partition_id
        AND l.lease_epoch = given.lease_epoch AND l.holder IS NOT DISTINCT FROM poll_redriven.consumer
    WHERE EXISTS (
        SELECT FROM dead_letters AS d
        WHERE d.subscription_id = owner.id AND d.partition_id = l.partition_id AND d.redriven_at IS NOT NULL);
    IF held_ids IS NULL THEN
        RETURN;
    END IF;
    PERFORM hold_leases(owner, consumer, held_ids, held_epochs);
    PERFORM return_letters(owner.id, ARRAY(
        SELECT d.id
        FROM dead_letters AS d
        WHERE d.subscription_id = owner.id AND d.partition_id = ANY (held_ids) AND d.redriven_at IS NOT NULL
          AND d.attempts - d.attempts_before >= owner.max_attempts
    ), 'was handed out as often as it may be, and never finished');
    RETURN QUERY
    WITH heads AS (
        SELECT d.id
        FROM dead_letters AS d
        WHERE d.subscription_id = owner.id AND d.partition_id = ANY (held_ids) AND d.redriven_at IS NOT NULL
          AND NOT (d.parked AND EXISTS (
              SELECT FROM dead_letters AS e
              WHERE e.subscription_id = owner.id AND e.partition_id = d.partition_id AND e.parked AND e.key = d.key
                AND (e.history, e.sequence) < (d.history, d.sequence)))
        ORDER BY d.partition_id, d.history, d.sequence
        LIMIT LEAST(GREATEST(max_events, 1), 10000)
        FOR NO KEY UPDATE OF d
    ), handed_out AS (
        UPDATE dead_letters AS d
        SET attempts = d.attempts + 1
        FROM heads AS h
        WHERE d.subscription_id = owner.id AND d.id = h.id
        RETURNING d.*
    )
    SELECT o.id, o.attempts, o.parked, o.history, o.partition_id, o.sequence, o.event_id, o.key, o.type, o.content_type,
           o.headers, o.payload, o.created_at
    FROM handed_out AS o
    ORDER BY o.partition_id, o.history, o.sequence;
END
$$;

-- name: finish_redriven
-- Removes redriven dead letters of one partition that were handled, in the caller's transaction: what else that
-- transaction writes takes effect exactly once. This also redrives the next event of a parked key. Refused when one
-- of them no longer waits: it was finished already, dropped or given back. Raises PS010, PS013, PS018, PS041.
CREATE OR REPLACE FUNCTION finish_redriven(
    subscription text, consumer text, partition_id bigint, lease_epoch bigint, letter_ids bigint[]
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    owner subscriptions%ROWTYPE := require_subscription(subscription);
    finished integer;
    freed text[];
BEGIN
    PERFORM hold_leases(owner, consumer, ARRAY[finish_redriven.partition_id], ARRAY[finish_redriven.lease_epoch]);
    WITH done AS (
        DELETE FROM dead_letters AS d
        WHERE d.subscription_id = owner.id AND d.partition_id = finish_redriven.partition_id
          AND d.id = ANY (letter_ids) AND d.redriven_at IS NOT NULL
        RETURNING d.key, d.parked
    )
    SELECT count(*), array_agg(d.key) FILTER (WHERE d.parked) INTO finished, freed FROM done AS d;
    IF finished <> COALESCE(cardinality(letter_ids), 0) THEN
        PERFORM refuse('PS041', format('of %s redriven dead letters, %s no longer wait',
                                       cardinality(letter_ids), cardinality(letter_ids) - finished),
                       'Roll back: they were finished before, dropped, or given back.');
    END IF;
    WITH next AS (
        -- Locked in the order in which a redrive locks them.
        SELECT w.id
        FROM dead_letters AS w
        WHERE w.subscription_id = owner.id AND w.partition_id = finish_redriven.partition_id AND w.parked
          AND w.redriven_at IS NULL AND w.key = ANY (freed)
        ORDER BY w.id
        FOR NO KEY UPDATE
    )
    UPDATE dead_letters AS w
    SET redriven_at = clock_timestamp(), attempts_before = w.attempts
    FROM next AS n
    WHERE w.subscription_id = owner.id AND w.id = n.id;
END
$$;

-- name: fail_redriven
-- Records that a redriven dead letter that was handed out has failed: it is dead again, with the new reason. If it
-- was parked, its whole key waits again. A second call changes nothing. Raises PS010, PS013, PS018.
CREATE OR REPLACE FUNCTION fail_redriven(
    subscription text, consumer text, partition_id bigint, lease_epoch bigint, letter_id bigint, reason text
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner subscriptions%ROWTYPE := require_subscription(subscription);
BEGIN
    PERFORM commit_durably();
    PERFORM hold_leases(owner, consumer, ARRAY[fail_redriven.partition_id], ARRAY[fail_redriven.lease_epoch]);
    PERFORM return_letters(owner.id, ARRAY[letter_id], fail_redriven.reason);
END
$$;

-- name: suspects
-- Held leases whose next events may have broken a consumer. died: a holder has died since the position moved.
-- sequence, attempts and reason are those of the next event after the position, if begin_attempt handed it out and it
-- is not done; attempts is 0 if a group began there. There is no row for a partition to which none of this applies.
CREATE OR REPLACE FUNCTION suspects(subscription text, consumer text, partition_ids bigint[], lease_epochs bigint[])
RETURNS TABLE (partition_id bigint, died boolean, sequence bigint, attempts integer, reason text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    owner subscriptions%ROWTYPE := require_subscription(subscription);
BEGIN
    RETURN QUERY
    SELECT s.id, s.holder_died, s.sequence, s.attempts, s.reason
    FROM (
        SELECT l.partition_id AS id, a.sequence, a.attempts, a.reason, EXISTS (
            -- A seek or a new history writes a position under a new lease_epoch.
            SELECT FROM lease_history AS h
            WHERE h.subscription_id = owner.id AND h.partition_id = l.partition_id AND h.change = 'expired'
              AND h.lease_epoch >= stands.lease_epoch AND h.lease_epoch < l.lease_epoch) AS holder_died
        FROM unnest(suspects.partition_ids, suspects.lease_epochs) AS given (partition_id, lease_epoch)
        JOIN leases AS l
            ON l.subscription_id = owner.id AND l.partition_id = given.partition_id
            AND l.lease_epoch = given.lease_epoch AND l.holder IS NOT DISTINCT FROM suspects.consumer
        CROSS JOIN LATERAL (
            SELECT p.position, p.lease_epoch
            FROM positions AS p
            WHERE p.subscription_id = owner.id AND p.partition_id = l.partition_id
            ORDER BY p.id DESC
            LIMIT 1
        ) AS stands
        LEFT JOIN attempts AS a
            ON a.subscription_id = owner.id AND a.partition_id = l.partition_id AND a.sequence = stands.position + 1
            AND a.history = current_history()
    ) AS s
    WHERE s.holder_died OR s.sequence IS NOT NULL
    ORDER BY s.id;
END
$$;

-- name: begin_attempt
-- Counts that the next event after the position is handed out. Returns the number of the attempt. Commit this before
-- the handler gets the event, so that an event that kills its consumer is counted too. uncounted is how many earlier
-- attempts were not counted here; reason says why the event is suspect. With uncounted = -1 it only records that a
-- group of suspects begins at this event, and counts for none of them. Raises PS010, PS011, PS013, PS018.
CREATE OR REPLACE FUNCTION begin_attempt(
    subscription text, consumer text, partition_id bigint, lease_epoch bigint, sequence bigint,
    uncounted integer DEFAULT 0, reason text DEFAULT ''
) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner subscriptions%ROWTYPE := require_subscription(subscription);
    stands_at bigint;
    counted integer;
BEGIN
    PERFORM commit_durably();
    PERFORM hold_leases(owner, consumer, ARRAY[begin_attempt.partition_id], ARRAY[begin_attempt.lease_epoch]);
    stands_at := current_position(owner.id, begin_attempt.partition_id);
    IF begin_attempt.sequence IS DISTINCT FROM stands_at + 1 THEN
        PERFORM refuse('PS011', format('sequence %s of partition %s is not the next one after the position %s',
                                       begin_attempt.sequence, partition_id & 65535, stands_at),
                       'Commit the events before it first. If it is committed already, read again.');
    END IF;
    INSERT INTO attempts AS a (subscription_id, partition_id, sequence, history, attempts, reason)
    VALUES (owner.id, begin_attempt.partition_id, begin_attempt.sequence, current_history(),
            GREATEST(COALESCE(uncounted, 0), -1) + 1, left(COALESCE(begin_attempt.reason, ''), 2000))
    ON CONFLICT ON CONSTRAINT attempts_pkey DO UPDATE
    SET sequence = EXCLUDED.sequence, history = EXCLUDED.history, at = EXCLUDED.at,
        attempts = CASE WHEN (a.sequence, a.history) = (EXCLUDED.sequence, EXCLUDED.history)
                        THEN GREATEST(a.attempts + CASE WHEN uncounted < 0 THEN 0 ELSE 1 END, EXCLUDED.attempts)
                        ELSE EXCLUDED.attempts END,
        reason = CASE WHEN (a.sequence, a.history) = (EXCLUDED.sequence, EXCLUDED.history) AND EXCLUDED.reason = ''
                      THEN a.reason ELSE EXCLUDED.reason END
    RETURNING a.attempts INTO counted;
    RETURN counted;
END
$$;

-- name: bring_letter
-- Stores an event that only the archive has, as a consumer has read it there. The give_up or commit_parking that
-- follows in the same transaction makes it a dead letter: of events that the log has, these copy it themselves.
-- Refused (PS006) for an event that the log has, or that the position has passed; a relay with an open block may send
-- what was passed once more. Raises PS006, PS010, PS013, PS018.
CREATE OR REPLACE FUNCTION bring_letter(
    subscription text, consumer text, partition_id bigint, lease_epoch bigint, sequence bigint, event_id uuid, key text,
    type text, content_type text, headers jsonb, payload bytea, created_at timestamptz
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner subscriptions%ROWTYPE := require_subscription(subscription);
    low bigint := (SELECT p.low_sequence FROM partitions AS p WHERE p.id = bring_letter.partition_id);
    erased erasures%ROWTYPE;
BEGIN
    PERFORM commit_durably();
    PERFORM hold_leases(owner, consumer, ARRAY[bring_letter.partition_id], ARRAY[bring_letter.lease_epoch]);
    IF NOT COALESCE(bring_letter.sequence < low
                    AND (bring_letter.sequence > current_position(owner.id, bring_letter.partition_id)
                         OR (find_open_block(owner.id, bring_letter.partition_id)).id IS NOT NULL), false) THEN
        PERFORM refuse('PS006', format('sequence %s of partition %s is none that only the archive has',
                                       bring_letter.sequence, partition_id & 65535),
                       'Bring only events below the low sequence, before they are passed.');
    END IF;
    SELECT e.* INTO erased
    FROM erased_events AS z JOIN erasures AS e ON e.erasure = z.erasure
    WHERE z.partition_id = bring_letter.partition_id AND z.sequence = bring_letter.sequence;
    IF FOUND THEN  -- since the consumer has read it
        payload := '';
        headers := erasure_mark(erased.erasure);
        key := CASE WHEN NOT erased.replace_key THEN key END;
    END IF;
    INSERT INTO dead_letters AS d (
        subscription_id, partition_id, sequence, history, event_id, key, type, content_type, headers, payload,
        created_at, reason, attempts, parked)
    VALUES (owner.id, bring_letter.partition_id, bring_letter.sequence, current_history(), bring_letter.event_id,
            bring_letter.key, bring_letter.type, bring_letter.content_type, bring_letter.headers,
            bring_letter.payload, bring_letter.created_at, 'read from the archive', 0, false)
    ON CONFLICT ON CONSTRAINT dead_letters_pkey DO NOTHING;
END
$$;

-- name: give_up
-- Makes the next event after the position a dead letter and moves the position past it, in one transaction: the event
-- is always either pending or dead. With park, if the event has a key, later events of that key have to wait behind
-- it (see commit_parking). Returns parked or dead. Raises PS006, PS010, PS011, PS012, PS013, PS016, PS018, PS040.
CREATE OR REPLACE FUNCTION give_up(
    subscription text, consumer text, partition_id bigint, lease_epoch bigint, sequence bigint, reason text,
    attempts integer, park boolean DEFAULT false
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner_id bigint := (require_subscription(subscription)).id;
BEGIN
    PERFORM commit_durably();
    PERFORM "commit"(subscription, consumer, ARRAY[give_up.partition_id], ARRAY[give_up.lease_epoch],
                     ARRAY[give_up.sequence], ARRAY[give_up.sequence - 1]);
    PERFORM store_letters(owner_id, give_up.partition_id, ARRAY[give_up.sequence], COALESCE(give_up.reason, ''),
                          GREATEST(COALESCE(give_up.attempts, 1), 1), COALESCE(park, false), false);
    DELETE FROM attempts AS a WHERE a.subscription_id = owner_id AND a.partition_id = give_up.partition_id;
    RETURN (
        SELECT CASE WHEN d.parked THEN 'parked' ELSE 'dead' END
        FROM dead_letters AS d
        WHERE d.subscription_id = owner_id AND d.partition_id = give_up.partition_id AND d.sequence = give_up.sequence
          AND d.history = current_history());
END
$$;

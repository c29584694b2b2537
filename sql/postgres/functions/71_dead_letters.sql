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
        parked = d.parked OR EXCLUDED.parked, redriven_at = EXCLUDED.redriven_at, attempts_before = d.attempts;
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
        died_at = clock_timestamp(), attempts_before = d.attempts,
        parked = d.parked OR (settle_brought.parked AND d.key IS NOT NULL),
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

-- name: bring_letter
-- Stores an event that only the archive has, as a consumer has read it there. The give_up or commit_parking that
-- follows in the same transaction makes it a dead letter: of events that the log has, these copy it themselves.
-- Refused (PS006) for an event that the log has, or that the position has passed. Raises PS006, PS010, PS013, PS018.
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
                    AND bring_letter.sequence > current_position(owner.id, bring_letter.partition_id), false) THEN
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

-- name: parked_keys
-- The keys whose events wait, in partitions that the subscription reads: later events of such a key must not
-- go to the handler.
CREATE OR REPLACE FUNCTION parked_keys(subscription text, partition_ids bigint[])
RETURNS TABLE (partition_id bigint, key text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner_id bigint := (require_subscription(subscription)).id;
BEGIN
    RETURN QUERY
    SELECT DISTINCT d.partition_id, d.key
    FROM dead_letters AS d
    WHERE d.subscription_id = owner_id AND d.partition_id = ANY (partition_ids) AND d.parked
    ORDER BY d.partition_id, d.key;
END
$$;

-- name: commit_parking
-- A commit of one partition that parks some of the events it passes, because their keys wait. after is the position
-- after which the events were read. Raises PS006, PS010, PS011, PS012, PS013, PS016, PS018, PS040.
CREATE OR REPLACE FUNCTION commit_parking(
    subscription text, consumer text, partition_id bigint, lease_epoch bigint, "position" bigint, after bigint,
    sequences bigint[]
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner_id bigint := (require_subscription(subscription)).id;
BEGIN
    PERFORM commit_durably();
    IF after IS NULL OR COALESCE(cardinality(sequences), 0) = 0 OR EXISTS (
        SELECT FROM unnest(sequences) AS s (sequence)
        GROUP BY s.sequence
        HAVING count(*) > 1 OR NOT COALESCE(s.sequence > after AND s.sequence <= commit_parking.position, false))
    THEN
        PERFORM refuse('PS006', 'a commit parks only events that it passes, each once',
                       'Pass the position that they were read after, and sequences between it and the new position.');
    END IF;
    PERFORM "commit"(subscription, consumer, ARRAY[commit_parking.partition_id], ARRAY[commit_parking.lease_epoch],
                     ARRAY[commit_parking.position], ARRAY[after]);
    PERFORM store_letters(owner_id, commit_parking.partition_id, sequences, 'waits behind an earlier event of its key',
                          0, true, true);
END
$$;

-- name: drop_dead_letters
-- Deletes dead letters, whatever they wait for, and keeps a record of each without its payload. Returns how many it
-- deleted. Events that are parked behind one of them stay. Raises PS006, PS013, PS018.
CREATE OR REPLACE FUNCTION drop_dead_letters(subscription text, letter_ids bigint[]) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner_id bigint := (require_subscription(subscription)).id;
    gone bigint;
BEGIN
    PERFORM commit_durably();
    PERFORM require_read_committed('drop_dead_letters()');
    IF letter_ids IS NULL THEN
        PERFORM refuse('PS006', 'no dead letter is named', 'Name those that are to be dropped.');
    END IF;
    WITH dropped AS (
        DELETE FROM dead_letters AS d
        WHERE d.subscription_id = owner_id AND d.id = ANY (letter_ids)
        RETURNING d.*
    )
    INSERT INTO dropped_letters (
        subscription_id, id, partition_id, sequence, history, event_id, key, type, reason, attempts, died_at,
        dropped_by)
    SELECT d.subscription_id, d.id, d.partition_id, d.sequence, d.history, d.event_id, d.key, d.type, d.reason,
           d.attempts, d.died_at, session_user
    FROM dropped AS d;
    GET DIAGNOSTICS gone = ROW_COUNT;
    RETURN gone;
END
$$;

-- name: dead_letters_of
-- The dead letters of a subscription without their payloads, newest first. They can be limited to those before a
-- given one, and to a topic, a key, a type and a state (dead, parked or redriven).
CREATE OR REPLACE FUNCTION dead_letters_of(
    subscription text, max_rows integer DEFAULT 100, of_topic text DEFAULT NULL, of_key text DEFAULT NULL,
    of_type text DEFAULT NULL, of_state text DEFAULT NULL, before_id bigint DEFAULT NULL
) RETURNS TABLE (
    id bigint, topic text, partition integer, sequence bigint, history integer, event_id uuid, key text, type text,
    content_type text, payload_bytes integer, state text, attempts integer, reason text, created_at timestamptz,
    died_at timestamptz
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT d.id, t.address, p.number, d.sequence, d.history, d.event_id, d.key, d.type, d.content_type,
           octet_length(d.payload), w.state, d.attempts, d.reason, d.created_at, d.died_at
    FROM dead_letters AS d
    CROSS JOIN LATERAL (
        SELECT CASE WHEN d.redriven_at IS NOT NULL THEN 'redriven' WHEN d.parked THEN 'parked' ELSE 'dead' END AS state
    ) AS w
    JOIN subscriptions AS s ON s.id = d.subscription_id
    JOIN partitions AS p ON p.id = d.partition_id
    JOIN topics AS t ON t.id = p.topic_id
    WHERE s.name = dead_letters_of.subscription AND (NOT t.restricted OR has_right(t.namespace_id, 'consume'))
      AND (of_topic IS NULL OR t.address = of_topic)
      AND (of_key IS NULL OR d.key = of_key)
      AND (of_type IS NULL OR d.type = of_type)
      AND (of_state IS NULL OR w.state = of_state)
      AND (before_id IS NULL OR d.id < before_id)
    ORDER BY d.id DESC
    LIMIT max_rows
$$;

-- name: dead_letter_of
-- One dead letter of a subscription with all its columns; no row when there is none with that id.
CREATE OR REPLACE FUNCTION dead_letter_of(subscription text, letter_id bigint)
RETURNS TABLE (
    id bigint, topic text, partition integer, sequence bigint, history integer, event_id uuid, key text, type text,
    content_type text, payload_bytes integer, state text, attempts integer, reason text, created_at timestamptz,
    died_at timestamptz, headers jsonb, payload bytea
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT l.*, d.headers, d.payload
    FROM dead_letters_of(dead_letter_of.subscription, 1, before_id => letter_id + 1) AS l
    JOIN subscriptions AS s ON s.name = dead_letter_of.subscription
    JOIN dead_letters AS d ON d.subscription_id = s.id AND d.id = l.id
    WHERE l.id = letter_id
$$;

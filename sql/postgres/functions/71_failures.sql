-- name: suspects
-- Of leases that are held, those whose next events may be what broke the consumer before: died says that a holder has died since the
-- position moved; sequence, attempts and reason are of the event behind the position, if it was handed out with begin_attempt and
-- is not done; attempts is 0 if a group began there. No row for a partition that is in order.
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
            -- Whoever seeks or opens a history writes a position under a lease_epoch of its own.
            SELECT FROM lease_history AS h
            WHERE h.subscription_id = owner.id AND h.partition_id = l.partition_id AND h.change = 'expired'
              AND h.lease_epoch >= stands.lease_epoch AND h.lease_epoch < l.lease_epoch) AS holder_died
        FROM unnest(suspects.partition_ids, suspects.lease_epochs) AS given (partition_id, lease_epoch)
        JOIN leases AS l
            ON l.subscription_id = owner.id AND l.partition_id = given.partition_id
            AND l.lease_epoch = given.lease_epoch AND l.holder = suspects.consumer
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
-- Counts that the event behind the position is handed out, and answers for which time. To be committed before the handler gets the
-- event, so that an event that kills its consumer is counted too. uncounted are the times that were not counted here; reason is
-- why it is suspect. With uncounted = -1 a group of suspects begins at the event, which is on record, and counts for none of them.
-- Raises PS010, PS011, PS013, PS018.
CREATE OR REPLACE FUNCTION begin_attempt(
    subscription text, consumer text, partition_id bigint, lease_epoch bigint, sequence bigint, uncounted integer DEFAULT 0,
    reason text DEFAULT ''
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
        PERFORM refuse('PS011', format('sequence %s of partition %s is not the one behind the position %s',
                                       begin_attempt.sequence, partition_id & 65535, stands_at),
                       'Commit what is done before it; if it is done itself, read again.');
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
-- Copies events of a partition to the dead letters of a subscription; a copy that is there already is as good as new. What is parked
-- behind its key waits for the operator as the key does: if that was redriven, so is it. The caller holds the lease. Raises PS016,
-- PS040.
CREATE OR REPLACE FUNCTION store_letters(
    subscription_id bigint, partition_id bigint, sequences bigint[], reason text, attempts integer, parked boolean,
    behind boolean
) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
DECLARE
    lowest bigint := (SELECT min(s) FROM unnest(sequences) AS s);
    highest bigint := (SELECT max(s) FROM unnest(sequences) AS s);
    stored integer;
    most CONSTANT integer := 10000;
BEGIN
    INSERT INTO dead_letters AS d (
        subscription_id, partition_id, sequence, history, event_id, key, type, content_type, headers, payload, created_at,
        reason, attempts, parked, redriven_at)
    SELECT store_letters.subscription_id, store_letters.partition_id, r.sequence, current_history(), r.event_id, r.key, r.type,
           r.content_type, r.headers, r.payload, r.created_at, left(store_letters.reason, 2000), store_letters.attempts,
           store_letters.parked AND r.key IS NOT NULL,
           CASE WHEN behind AND NOT EXISTS (
               SELECT FROM dead_letters AS w
               WHERE w.subscription_id = store_letters.subscription_id AND w.partition_id = store_letters.partition_id
                 AND w.parked AND w.key = r.key AND w.redriven_at IS NULL)
           THEN clock_timestamp() END
    FROM read_log(store_letters.partition_id, lowest, (highest - lowest + 1)::integer) AS r
    WHERE r.sequence = ANY (sequences)
    ON CONFLICT ON CONSTRAINT dead_letters_pkey DO UPDATE
    SET reason = EXCLUDED.reason, attempts = GREATEST(d.attempts, EXCLUDED.attempts), died_at = EXCLUDED.died_at,
        parked = d.parked OR EXCLUDED.parked, redriven_at = EXCLUDED.redriven_at, attempts_before = d.attempts;
    GET DIAGNOSTICS stored = ROW_COUNT;
    IF stored <> cardinality(sequences) THEN
        PERFORM refuse('PS016', format('of the sequences %s to %s the log does not hold all', lowest, highest),
                       'Nothing was given up, and nothing is skipped: seek to what is left.');
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

-- name: give_up
-- Makes the event behind the position a dead letter and moves the position over it, in one: it is pending or dead, never both and
-- never neither. With park, and where the event has a key, later events of that key have to wait behind it (see commit_parking).
-- Answers parked or dead. Raises PS006, PS010, PS011, PS012, PS013, PS016, PS018, PS040.
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
-- The keys whose events wait, in partitions that the subscription reads: later events of such a key are not for the handler.
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
-- A commit of one partition that parks some of the events it passes, because their keys wait. after is the position behind which the
-- events were read. Raises PS006, PS010, PS011, PS012, PS013, PS016, PS018, PS040.
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
        PERFORM refuse('PS006', 'events are parked by the commit that passes them, each once',
                       'Pass the position they were read behind, and sequences between it and the new one.');
    END IF;
    PERFORM "commit"(subscription, consumer, ARRAY[commit_parking.partition_id], ARRAY[commit_parking.lease_epoch],
                     ARRAY[commit_parking.position], ARRAY[after]);
    PERFORM store_letters(owner_id, commit_parking.partition_id, sequences, 'waits behind an earlier event of its key',
                          0, true, true);
END
$$;

-- name: return_letters
-- Redriven letters are dead again; of a parked one the whole key waits again. An empty reason leaves the old one.
CREATE OR REPLACE FUNCTION return_letters(subscription_id bigint, letter_ids bigint[], reason text) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
BEGIN
    WITH failed AS (
        UPDATE dead_letters AS d
        SET redriven_at = NULL, died_at = clock_timestamp(),
            reason = COALESCE(NULLIF(left(return_letters.reason, 2000), ''), d.reason)
        WHERE d.subscription_id = return_letters.subscription_id AND d.id = ANY (letter_ids) AND d.redriven_at IS NOT NULL
        RETURNING d.id, d.partition_id, d.parked, d.key
    )
    UPDATE dead_letters AS w
    SET redriven_at = NULL
    FROM (SELECT DISTINCT f.partition_id, f.key FROM failed AS f WHERE f.parked) AS k
    WHERE w.subscription_id = return_letters.subscription_id AND w.partition_id = k.partition_id AND w.key = k.key
      AND w.parked AND w.redriven_at IS NOT NULL AND w.id NOT IN (SELECT f.id FROM failed AS f);
END
$$;

-- name: poll_redriven
-- Redriven letters of leased partitions, in order, each counted as handed out, which is to be committed before a handler gets them.
-- Of a key that is parked only the first event. What was handed out as often as the subscription allows, and never
-- finished, is dead again. Raises PS010, PS013, PS018.
CREATE OR REPLACE FUNCTION poll_redriven(
    subscription text, consumer text, partition_ids bigint[], lease_epochs bigint[], max_events integer DEFAULT 100
) RETURNS TABLE (
    letter_id bigint, attempts integer, parked boolean, history integer, partition_id bigint, sequence bigint, event_id uuid,
    key text, type text, content_type text, headers jsonb, payload bytea, created_at timestamptz
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
        AND l.lease_epoch = given.lease_epoch AND l.holder = poll_redriven.consumer
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
-- Removes redriven letters of one partition that were handled, in the caller's transaction: what else that writes takes effect
-- exactly once. The next event of a parked key is redriven with that. Refused when one of them is not waiting any more: it
-- was finished already, dropped or given back. Raises PS010, PS013, PS018, PS041.
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
        PERFORM refuse('PS041', format('of %s redriven dead letters %s are not waiting any more', cardinality(letter_ids),
                                       cardinality(letter_ids) - finished),
                       'Roll back: they were finished before, dropped, or given back.');
    END IF;
    WITH next AS (
        -- In the order in which a redrive locks them.
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
-- A redriven letter that was handed out has failed: it is dead again, with the new reason; of a parked one the whole key waits
-- again. Doing it twice changes nothing. Raises PS010, PS013, PS018.
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

-- name: redrive
-- Makes dead letters deliverable again, to whoever holds their partition: these, or all of the subscription (NULL). Of a parked key
-- all events, in order. Answers how many were not so already. Raises PS013, PS018.
CREATE OR REPLACE FUNCTION redrive(subscription text, letter_ids bigint[] DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    owner_id bigint := (require_subscription(subscription)).id;
    changed bigint;
BEGIN
    PERFORM commit_durably();
    PERFORM require_read_committed('redrive()');
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
    )
    UPDATE dead_letters AS d
    SET redriven_at = clock_timestamp(), attempts_before = d.attempts
    FROM chosen AS c
    WHERE d.subscription_id = owner_id AND d.id = c.id;
    GET DIAGNOSTICS changed = ROW_COUNT;
    RETURN changed;
END
$$;

-- name: drop_dead_letters
-- Throws dead letters away, whatever they wait for, and keeps a record of each without its payload; answers how many. Events that are
-- parked behind one stay. Raises PS006, PS013, PS018.
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
        subscription_id, id, partition_id, sequence, history, event_id, key, type, reason, attempts, died_at, dropped_by)
    SELECT d.subscription_id, d.id, d.partition_id, d.sequence, d.history, d.event_id, d.key, d.type, d.reason, d.attempts,
           d.died_at, session_user
    FROM dropped AS d;
    GET DIAGNOSTICS gone = ROW_COUNT;
    RETURN gone;
END
$$;

-- name: dead_letters_of
-- The dead letters of a subscription without their payloads, newest first, before one if one is named: of a topic, a key, a type, a
-- state (dead, parked or redriven), or all.
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
-- One dead letter of a subscription with everything it holds; no row when there is none of that id.
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

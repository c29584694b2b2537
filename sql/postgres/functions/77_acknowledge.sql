-- name: require_receipts
-- Refuses receipts that cannot be read (PS043): arrays that differ in length, have two dimensions or do not begin at 1,
-- NULLs, and events that are named twice.
CREATE OR REPLACE FUNCTION require_receipts(
    claims bigint[], first_sequences bigint[], last_sequences bigint[], tokens uuid[]
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    entries integer := cardinality(claims);
BEGIN
    IF entries BETWEEN 1 AND 10000
        AND (array_ndims(claims), array_ndims(first_sequences), array_ndims(last_sequences), array_ndims(tokens))
            = (1, 1, 1, 1)
        AND (array_lower(claims, 1), array_lower(first_sequences, 1), array_lower(last_sequences, 1),
             array_lower(tokens, 1)) = (1, 1, 1, 1)
        AND (cardinality(first_sequences), cardinality(last_sequences), cardinality(tokens))
            = (entries, entries, entries)
        AND array_position(tokens, NULL) IS NULL AND NOT EXISTS (
            SELECT
            FROM (
                SELECT g.*, lag(g.last) OVER (PARTITION BY g.claim ORDER BY g.first) AS before
                FROM unnest(claims, first_sequences, last_sequences) AS g (claim, first, last)
            ) AS g
            WHERE g.claim IS NULL OR g.first IS NULL OR g.last IS NULL OR g.before >= g.first
               OR CASE WHEN g.first < 1 OR g.last < g.first THEN true ELSE g.last - g.first >= 1000 END)
    THEN
        RETURN;
    END IF;
    PERFORM refuse('PS043', 'a receipt is malformed, or an event is named twice',
                   'Pass 1 to 10,000 receipts as receive has returned them, each once.');
END
$$;

-- name: lock_receipts
-- The ranges that receipts are good for, locked in their order to the end of the transaction: that is the fence. The
-- claim itself, and what replaced it when its time was over or it was moved. A receipt is good as long as its event was
-- not handed out again.
CREATE OR REPLACE FUNCTION lock_receipts(owner_id bigint, claims bigint[], tokens uuid[]) RETURNS queue_ranges[]
LANGUAGE plpgsql AS $$
DECLARE
    locked queue_ranges[];
    later queue_ranges[];
BEGIN
    locked := ARRAY(
        SELECT r
        FROM queue_ranges AS r
        WHERE r.subscription_id = owner_id AND r.id = ANY (claims) AND r.token = ANY (tokens)
        ORDER BY r.id
        FOR UPDATE);
    IF cardinality(locked) < cardinality(claims) THEN
        -- What this waited for may have been replaced meanwhile, once more: then there is more to see than is locked.
        FOR look IN 1..3 LOOP
            later := ARRAY(
                SELECT r
                FROM queue_ranges AS r
                WHERE r.subscription_id = owner_id AND r.former = ANY (claims)
                  AND COALESCE(r.token, r.former_token) = ANY (tokens)
                ORDER BY r.id
                FOR UPDATE);
            EXIT WHEN cardinality(later) >= (
                SELECT count(*)
                FROM queue_ranges AS r
                WHERE r.subscription_id = owner_id AND r.former = ANY (claims)
                  AND COALESCE(r.token, r.former_token) = ANY (tokens));
        END LOOP;
        locked := locked || later;
    END IF;
    RETURN locked;
END
$$;

-- name: take_out
-- Takes events out of their claims, in the caller's transaction: the one call behind all that receipts are for. pieces
-- are what was taken out. Of an entry whose receipt is not good for all of its events nothing is taken, and settled is
-- false; without partly that refuses the whole call. Raises PS018, PS043, PS044.
CREATE OR REPLACE FUNCTION take_out(
    queue queues, claims bigint[], first_sequences bigint[], last_sequences bigint[], tokens uuid[], partly boolean,
    OUT pieces queue_piece[], OUT settled boolean[]
)
LANGUAGE plpgsql AS $$
DECLARE
    locked queue_ranges[];
    ended integer;
BEGIN
    PERFORM require_read_committed('a call with receipts');
    PERFORM require_receipts(claims, first_sequences, last_sequences, tokens);
    locked := lock_receipts(queue.subscription_id, claims, tokens);
    pieces := matched_pieces(locked, claims, first_sequences, last_sequences, tokens);
    settled := ARRAY(
        SELECT g.last - g.first + 1 = COALESCE(m.events, 0)
        FROM unnest(first_sequences, last_sequences) WITH ORDINALITY AS g (first, last, n)
        LEFT JOIN (
            SELECT p.entry, sum(CASE WHEN p.finished IS NULL THEN p.last_sequence - p.first_sequence + 1
                                     ELSE piece_events(p) END) AS events
            FROM unnest(pieces) AS p
            GROUP BY p.entry
        ) AS m ON m.entry = g.n
        ORDER BY g.n);
    IF partly IS NOT TRUE AND NOT true = ALL (settled) THEN
        PERFORM refuse('PS044', 'a receipt is not good, or no longer',
                       'Roll back: the event was finished, or its time was over and it was handed out again.');
    END IF;
    pieces := ARRAY(SELECT p FROM unnest(pieces) AS p WHERE settled[p.entry]);
    PERFORM limit_claim(min(p.deadline)) FROM unnest(pieces) AS p;
    -- Most ranges end whole: one statement deletes them all.
    DELETE FROM queue_ranges AS q
    USING unnest(locked) AS r
    JOIN unnest(pieces) AS p
        ON p.claim = COALESCE(r.former, r.id) AND p.partition_id = r.partition_id
        AND p.first_sequence = r.first_sequence AND p.last_sequence = r.last_sequence
    WHERE q.id = r.id;
    GET DIAGNOSTICS ended = ROW_COUNT;
    IF ended < cardinality(locked) THEN
        PERFORM cut_out(c.range, c.pieces)
        FROM (
            SELECT (array_agg(r))[1] AS range, array_agg(p) AS pieces
            FROM unnest(locked) AS r
            JOIN unnest(pieces) AS p
                ON p.claim = COALESCE(r.former, r.id) AND p.partition_id = r.partition_id
                AND p.first_sequence >= r.first_sequence AND p.last_sequence <= r.last_sequence
            WHERE (p.first_sequence, p.last_sequence) <> (r.first_sequence, r.last_sequence)
            GROUP BY r.id
        ) AS c;
    END IF;
END
$$;

-- name: matched_pieces
-- The parts of locked ranges that receipts name, without what is finished.
CREATE OR REPLACE FUNCTION matched_pieces(
    locked queue_ranges[], claims bigint[], first_sequences bigint[], last_sequences bigint[], tokens uuid[]
) RETURNS queue_piece[]
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN COALESCE(array_agg(ROW(
               g.n, g.claim, r.partition_id, m.first, m.last, r.deliveries, r.deadline,
               substring(r.finished FROM (m.first - r.first_sequence + 1)::integer FOR (m.last - m.first + 1)::integer),
               r.waiting_id)::queue_piece ORDER BY g.n, m.first), '{}')
    FROM unnest(claims, first_sequences, last_sequences, tokens) WITH ORDINALITY AS g (claim, first, last, token, n)
    JOIN unnest(locked) AS r
        ON COALESCE(r.former, r.id) = g.claim AND COALESCE(r.token, r.former_token) = g.token
        AND r.first_sequence <= g.last AND r.last_sequence >= g.first
    CROSS JOIN LATERAL (
        SELECT GREATEST(g.first, r.first_sequence) AS first, LEAST(g.last, r.last_sequence) AS last
    ) AS m;
END
$$;

-- name: piece_events
-- How many events a piece has.
CREATE OR REPLACE FUNCTION piece_events(piece queue_piece) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF piece.finished IS NULL THEN
        RETURN piece.last_sequence - piece.first_sequence + 1;
    END IF;
    RETURN count(*) FROM unfinished(piece.first_sequence, piece.last_sequence, piece.finished);
END
$$;

-- name: cut_out
-- Marks pieces of a locked range as finished; a range with nothing left is deleted.
CREATE OR REPLACE FUNCTION cut_out(range queue_ranges, pieces queue_piece[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    bits bit varying := COALESCE(range.finished, repeat(
        '0', (range.last_sequence - range.first_sequence + 1)::integer)::bit varying);
    piece queue_piece;
BEGIN
    IF cardinality(pieces) = 0 THEN
        RETURN;
    END IF;
    FOREACH piece IN ARRAY pieces LOOP
        bits := overlay(bits PLACING repeat(
                            '1', (piece.last_sequence - piece.first_sequence + 1)::integer)::bit varying
                        FROM (piece.first_sequence - range.first_sequence + 1)::integer);
    END LOOP;
    IF bit_count(bits) = length(bits) THEN
        DELETE FROM queue_ranges AS r WHERE r.id = range.id;
    ELSE
        UPDATE queue_ranges AS r SET finished = bits WHERE r.id = range.id;
    END IF;
END
$$;

-- name: limit_claim
-- Bounds a transaction that has locked a claim: a paused worker would keep its events from everybody.
CREATE OR REPLACE FUNCTION limit_claim(deadline timestamptz) RETURNS void
LANGUAGE sql AS $$
    SELECT limit_transaction(GREATEST(COALESCE(extract(epoch FROM limit_claim.deadline - clock_timestamp()), 0), 10))
$$;

-- name: acknowledge
-- Finishes events, in the caller's transaction: what else that transaction writes takes effect exactly once. Each entry
-- is a range of sequences of one claim. Returns for each entry whether it was finished; without partly the first one
-- that cannot be refuses the whole call. A receipt is good until its event is handed out again, also after its time.
-- Raises PS013, PS018, PS042, PS043, PS044.
CREATE OR REPLACE FUNCTION acknowledge(
    subscription text, claims bigint[], first_sequences bigint[], last_sequences bigint[], tokens uuid[],
    partly boolean DEFAULT false
) RETURNS boolean[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    ended record;
    queue queues%ROWTYPE;
    taken record;
BEGIN
    -- The plain case: what was received together is finished together, by one row, in one query.
    IF cardinality(claims) = 1
        AND (cardinality(first_sequences), cardinality(last_sequences), cardinality(tokens)) = (1, 1, 1)
    THEN
        DELETE FROM queue_ranges AS r
        USING subscriptions AS s, queues AS q
        WHERE s.name = acknowledge.subscription AND q.subscription_id = s.id
          AND current_setting('transaction_isolation') = 'read committed'
          AND (NOT EXISTS (SELECT FROM namespace_grants) OR may_use(s.id, 'acknowledge'))
          AND r.id = claims[1] AND r.subscription_id = s.id AND r.token = tokens[1]
          AND r.first_sequence = first_sequences[1] AND r.last_sequence = last_sequences[1]
          AND r.finished IS NULL AND r.waiting_id IS NULL
        RETURNING r.partition_id, r.deliveries, q."order", limit_claim(r.deadline) INTO ended;
        IF FOUND THEN
            IF ended."order" = 'key' THEN
                PERFORM finish_keys(require_queue(subscription, 'acknowledge'), ARRAY[ROW(
                    1, claims[1], ended.partition_id, first_sequences[1], last_sequences[1], ended.deliveries, NULL,
                    NULL, NULL)::queue_piece]);
            END IF;
            RETURN '{true}';
        END IF;
    END IF;
    queue := require_queue(subscription, 'acknowledge');
    PERFORM require_read_committed('acknowledge()');
    taken := take_out(queue, claims, first_sequences, last_sequences, tokens, partly);
    PERFORM drop_copies(taken.pieces);
    PERFORM finish_keys(queue, taken.pieces);
    RETURN taken.settled;
END
$$;

-- name: drop_copies
-- Deletes the copies of events that are finished.
CREATE OR REPLACE FUNCTION drop_copies(pieces queue_piece[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    ids bigint[] := ARRAY(SELECT p.waiting_id FROM unnest(pieces) AS p WHERE p.waiting_id IS NOT NULL);
BEGIN
    IF ids <> '{}' THEN
        PERFORM await_erasures((SELECT w.subscription_id FROM queue_waiting AS w WHERE w.id = ids[1]), pieces);
        DELETE FROM queue_waiting AS w WHERE w.id = ANY (ids);
    END IF;
END
$$;

-- name: copy_out
-- Copies the events of pieces out of the log, so that they can leave the window; returns them piece by piece, each with
-- its copy. An event that is in the log no longer is left out: retention has recorded that it was skipped.
CREATE OR REPLACE FUNCTION copy_out(queue queues, pieces queue_piece[]) RETURNS queue_piece[]
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
DECLARE
    copied queue_piece[];
BEGIN
    PERFORM await_erasures(queue.subscription_id, pieces);
    WITH stored AS (
        INSERT INTO queue_waiting (
            subscription_id, partition_id, sequence, history, deliveries, failures, reason, event_id, key, type,
            content_type, headers, payload, created_at, sequenced_at)
        SELECT queue.subscription_id, p.partition_id, l.sequence, current_history(), p.deliveries, 0, '',
               l.event_id, l.key, l.type, l.content_type, l.headers, l.payload, l.created_at, l.sequenced_at
        FROM unnest(pieces) AS p
        CROSS JOIN LATERAL read_log(p.partition_id, p.first_sequence,
                                    (p.last_sequence - p.first_sequence + 1)::integer) AS l
        WHERE p.waiting_id IS NULL
          AND l.sequence IN (SELECT u FROM unfinished(p.first_sequence, p.last_sequence, p.finished) AS u)
        RETURNING *
    )
    SELECT array_agg(ROW(p.entry, p.claim, p.partition_id, s.sequence, s.sequence, p.deliveries, p.deadline, NULL,
                         s.id)::queue_piece)
    INTO copied
    FROM stored AS s
    JOIN unnest(pieces) AS p
        ON p.waiting_id IS NULL AND p.partition_id = s.partition_id
        AND s.sequence BETWEEN p.first_sequence AND p.last_sequence;
    PERFORM carry_keys(queue, pieces, copied);
    RETURN COALESCE(copied, '{}') || ARRAY(SELECT p FROM unnest(pieces) AS p WHERE p.waiting_id IS NOT NULL);
END
$$;

-- name: free_pieces
-- Puts pieces back into the window, at its end: nothing that is dealt later is handed out before them.
CREATE OR REPLACE FUNCTION free_pieces(owner_id bigint, pieces queue_piece[], uncounted integer) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO queue_ranges (
        subscription_id, partition_id, first_sequence, last_sequence, deliveries, waiting_id)
    SELECT owner_id, p.partition_id, s.first, s.last, GREATEST(p.deliveries - uncounted, 0), p.waiting_id
    FROM unnest(pieces) WITH ORDINALITY AS p
    CROSS JOIN LATERAL (
        SELECT p.first_sequence, p.last_sequence WHERE p.finished IS NULL
        UNION ALL
        SELECT u, u FROM unfinished(p.first_sequence, p.last_sequence, p.finished) AS u WHERE p.finished IS NOT NULL
    ) AS s (first, last)
    ORDER BY p.ordinality, s.first;
END
$$;

-- name: bury_pieces
-- Makes events dead letters. An event that is in the log no longer has nothing to bury.
CREATE OR REPLACE FUNCTION bury_pieces(queue queues, pieces queue_piece[], reason text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    ids bigint[];
BEGIN
    IF COALESCE(cardinality(pieces), 0) = 0 THEN
        RETURN;
    END IF;
    PERFORM finish_keys(queue, pieces);
    ids := ARRAY(SELECT c.waiting_id FROM unnest(copy_out(queue, pieces)) AS c);
    INSERT INTO dead_letters AS d (
        subscription_id, partition_id, sequence, history, event_id, key, type, content_type, headers, payload,
        created_at, reason, attempts)
    SELECT w.subscription_id, w.partition_id, w.sequence, w.history, w.event_id, w.key, w.type, w.content_type,
           w.headers, COALESCE(w.body, w.payload), w.created_at,
           CASE WHEN is_tombstone(w.payload, w.headers) THEN w.reason ELSE left(bury_pieces.reason, 2000) END,
           GREATEST((
               SELECT max(p.deliveries) FROM unnest(pieces) AS p
               WHERE p.partition_id = w.partition_id AND w.sequence BETWEEN p.first_sequence AND p.last_sequence), 1)
    FROM queue_waiting AS w
    WHERE w.id = ANY (ids)
    ON CONFLICT ON CONSTRAINT dead_letters_pkey DO UPDATE
    SET reason = EXCLUDED.reason, attempts = GREATEST(d.attempts, EXCLUDED.attempts), died_at = EXCLUDED.died_at,
        redriven_at = NULL;
    DELETE FROM queue_waiting AS w WHERE w.id = ANY (ids);
END
$$;

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
    -- What was taken out of a claim may still be good for its receipts: it was extended and has kept them.
    IF cardinality(locked) < cardinality(claims)
        OR EXISTS (SELECT FROM unnest(locked) AS r WHERE r.finished IS NOT NULL)
    THEN
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
    pieces := match_receipts(locked, claims, first_sequences, last_sequences, tokens);
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

-- name: match_receipts
-- The parts of locked ranges that receipts name, without what is finished.
CREATE OR REPLACE FUNCTION match_receipts(
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

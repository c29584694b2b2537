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
          AND ((SELECT p FROM plain_login() AS p) OR no_walls() OR may_use(s.id, 'acknowledge'))
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

-- name: extend
-- Gives events more time from now on, and new receipts; the old ones are spent. 0 seconds put them back, behind what
-- is dealt already (at most 20,000 events), and the delivery counts. A body, for one event, goes with all later
-- hand-outs in place of the payload; the log keeps what was published, and an erased event takes none. Returns a row
-- for each range of a new claim. With keeps_receipts the old receipts stay good instead, unless the events are put
-- back. Raises PS004, PS006, PS013, PS018, PS042, PS043, PS044.
CREATE OR REPLACE FUNCTION extend(
    subscription text, claims bigint[], first_sequences bigint[], last_sequences bigint[], tokens uuid[],
    visibility_seconds double precision, body bytea DEFAULT NULL, keeps_receipts boolean DEFAULT false
) RETURNS TABLE (
    entry integer, first_sequence bigint, last_sequence bigint, claim bigint, token uuid, deadline timestamptz
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    queue queues%ROWTYPE := require_queue(subscription, 'acknowledge');
    pieces queue_piece[];
BEGIN
    IF visibility_seconds IS NULL OR NOT visibility_seconds BETWEEN 0 AND 43200 THEN
        PERFORM refuse('PS006', format('a claim cannot be extended by %s seconds', visibility_seconds),
                       'Use 0 to 43,200; 0 puts back.');
    ELSIF body IS NOT NULL AND (cardinality(claims) <> 1 OR first_sequences[1] <> last_sequences[1]) THEN
        PERFORM refuse('PS006', 'a body was given for several events', 'Give one event its body at a time.');
    END IF;
    pieces := (take_out(queue, claims, first_sequences, last_sequences, tokens, false)).pieces;
    IF body IS NOT NULL THEN
        PERFORM require_body(pieces[1].partition_id, body);
        pieces := copy_out(queue, pieces);
        UPDATE queue_waiting AS w SET body = "extend".body
        WHERE w.id = ANY (ARRAY(SELECT p.waiting_id FROM unnest(pieces) AS p))
          AND NOT is_tombstone(w.payload, w.headers);
    END IF;
    IF visibility_seconds = 0 THEN
        PERFORM bury_pieces(queue, ARRAY(
            SELECT p FROM unnest(pieces) AS p WHERE p.deliveries >= queue.max_deliveries
        ), 'was handed out as often as it may be, and put back each time');
        PERFORM free_pieces(queue.subscription_id, ARRAY(
            SELECT p FROM unnest(pieces) AS p WHERE p.deliveries < queue.max_deliveries), 0);
        RETURN;
    END IF;
    RETURN QUERY
    WITH put AS (
        INSERT INTO queue_ranges AS r (
            subscription_id, partition_id, first_sequence, last_sequence, deliveries, token, deadline, finished,
            waiting_id, former)
        SELECT queue.subscription_id, p.partition_id, p.first_sequence, p.last_sequence, p.deliveries,
               CASE WHEN keeps_receipts THEN tokens[p.entry] ELSE gen_random_uuid() END,
               clock_timestamp() + make_interval(secs => "extend".visibility_seconds), p.finished, p.waiting_id,
               CASE WHEN keeps_receipts THEN p.claim END
        FROM unnest(pieces) AS p
        RETURNING r.*
    )
    SELECT p.entry, n.first_sequence, n.last_sequence, n.id, n.token, n.deadline
    FROM put AS n
    JOIN unnest(pieces) AS p
        ON p.partition_id = n.partition_id AND p.first_sequence = n.first_sequence
        AND p.waiting_id IS NOT DISTINCT FROM n.waiting_id
    ORDER BY p.entry, n.first_sequence;
END
$$;

-- name: release_claims
-- Puts events back that nobody has begun, behind what is dealt already (at most 20,000 events); the delivery does not
-- count. Returns for each entry whether it was put back, as acknowledge does. Raises PS013, PS018, PS042, PS043, PS044.
CREATE OR REPLACE FUNCTION release_claims(
    subscription text, claims bigint[], first_sequences bigint[], last_sequences bigint[], tokens uuid[],
    partly boolean DEFAULT false
) RETURNS boolean[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    queue queues%ROWTYPE := require_queue(subscription, 'acknowledge');
    taken record;
BEGIN
    taken := take_out(queue, claims, first_sequences, last_sequences, tokens, partly);
    PERFORM free_pieces(queue.subscription_id, taken.pieces, 1);
    RETURN taken.settled;
END
$$;

-- name: reject
-- Records that events have failed: each waits for delay_seconds (NULL: the backoff of the queue, longer with each
-- failure) outside the window, where it hides nothing. One that has failed or was handed out as often as the queue
-- allows becomes a dead letter. Returns for each entry whether it was recorded, as acknowledge does. Raises PS006,
-- PS013, PS018, PS042, PS043, PS044.
CREATE OR REPLACE FUNCTION reject(
    subscription text, claims bigint[], first_sequences bigint[], last_sequences bigint[], tokens uuid[],
    reason text DEFAULT '', delay_seconds double precision DEFAULT NULL, partly boolean DEFAULT false
) RETURNS boolean[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    queue queues%ROWTYPE := require_queue(subscription, 'acknowledge');
    taken record;
    pieces queue_piece[];
    spent bigint[];
BEGIN
    IF NOT delay_seconds BETWEEN 0 AND 31536000 THEN
        PERFORM refuse('PS006', format('an event cannot be delayed by %s seconds', delay_seconds),
                       'Use 0 to 31,536,000.');
    END IF;
    taken := take_out(queue, claims, first_sequences, last_sequences, tokens, partly);
    pieces := copy_out(queue, taken.pieces);
    WITH failed AS (
        UPDATE queue_waiting AS w
        SET failures = w.failures + 1, deliveries = p.deliveries, failed_at = clock_timestamp(),
            reason = CASE WHEN is_tombstone(w.payload, w.headers) THEN w.reason
                          ELSE left(COALESCE(reject.reason, ''), 2000) END,
            due_at = clock_timestamp() + make_interval(secs => COALESCE(
                delay_seconds, backoff_seconds(queue, w.failures + 1)))
        FROM unnest(pieces) AS p
        WHERE w.id = p.waiting_id
        RETURNING w.id, w.failures, w.deliveries
    )
    SELECT array_agg(f.id) INTO spent
    FROM failed AS f
    WHERE f.failures >= queue.max_failures OR f.deliveries >= queue.max_deliveries;
    PERFORM bury_pieces(queue, ARRAY(
        SELECT p FROM unnest(pieces) AS p WHERE p.waiting_id = ANY (spent)
    ), COALESCE(NULLIF(reject.reason, ''), 'was rejected as often as it may be'));
    RETURN taken.settled;
END
$$;

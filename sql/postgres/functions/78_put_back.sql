-- name: extend
-- Gives events more time from now on, and new receipts; the old ones are spent. 0 seconds put them back, behind what
-- is dealt already (at most 20,000 events), and the delivery counts. A body, for one event, goes with all later
-- hand-outs in place of the payload; the log keeps what was published, and an erased event takes none. Returns a row
-- for each range of a new claim. Raises PS004, PS006, PS013, PS018, PS042, PS043, PS044.
CREATE OR REPLACE FUNCTION extend(
    subscription text, claims bigint[], first_sequences bigint[], last_sequences bigint[], tokens uuid[],
    visibility_seconds double precision, body bytea DEFAULT NULL
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
            waiting_id)
        SELECT queue.subscription_id, p.partition_id, p.first_sequence, p.last_sequence, p.deliveries,
               gen_random_uuid(), clock_timestamp() + make_interval(secs => "extend".visibility_seconds),
               p.finished, p.waiting_id
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

-- name: require_body
-- Checks the length of a body that an event gets in place of its payload: the topic's limit holds. Raises PS004.
CREATE OR REPLACE FUNCTION require_body(part_id bigint, body bytea) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    longest integer := (SELECT t.max_payload_bytes FROM topics AS t WHERE t.id = part_id >> 16);
BEGIN
    IF octet_length(body) > longest THEN
        PERFORM refuse('PS004', format('the body has %s bytes, the limit of the topic is %s', octet_length(body),
                                       longest), 'Keep large data elsewhere and say where it is.');
    END IF;
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
        SET failures = w.failures + 1, deliveries = p.deliveries,
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

-- name: backoff_seconds
-- How long an event waits after so many failures: twice as long each time, up to the longest, less a random share.
CREATE OR REPLACE FUNCTION backoff_seconds(queue queues, failures integer) RETURNS double precision
LANGUAGE sql VOLATILE AS $$
    SELECT LEAST(queue.first_backoff_seconds * 2 ^ LEAST(failures - 1, 40), queue.longest_backoff_seconds)
           * (1 - queue.jitter * random())
$$;

-- name: redrive_queue
-- What redrive does for a queue: dead letters become events again that wait outside the window, with new deliveries and
-- failures, in the order of history and sequence. Where keys have an order, they wait for their key instead: the
-- dealer brings each when no other event of its key is out, the lowest sequence first. Returns how many.
CREATE OR REPLACE FUNCTION redrive_queue(owner_id bigint, letter_ids bigint[]) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    ordered boolean;
    changed bigint;
BEGIN
    -- Who sets the order locks this row too, and counts what is in hand.
    PERFORM FROM subscriptions AS s WHERE s.id = owner_id FOR SHARE;
    ordered := (SELECT q."order" = 'key' FROM queues AS q WHERE q.subscription_id = owner_id);
    WITH gone AS (
        DELETE FROM dead_letters AS d
        WHERE d.subscription_id = owner_id AND (letter_ids IS NULL OR d.id = ANY (letter_ids))
        RETURNING d.*
    ), stored AS (
        INSERT INTO queue_waiting (
            subscription_id, partition_id, sequence, history, due_at, deliveries, failures, reason, event_id, key, type,
            content_type, headers, payload, created_at, sequenced_at)
        SELECT g.subscription_id, g.partition_id, g.sequence, g.history,
               CASE WHEN NOT ordered OR g.key IS NULL THEN
                   clock_timestamp() + row_number() OVER (ORDER BY g.partition_id, g.history, g.sequence)
                       * interval '1 microsecond' END,
               0, 0, g.reason, g.event_id, g.key, g.type, g.content_type, g.headers, g.payload, g.created_at,
               g.created_at
        FROM gone AS g
        RETURNING id, partition_id, sequence, key
    ), noted AS (
        INSERT INTO queue_keys (subscription_id, partition_id, sequence, waiting_id, key_digest, state)
        SELECT owner_id, s.partition_id, s.sequence, s.id, key_digest(s.key), 'unsure'
        FROM stored AS s
        WHERE ordered AND s.key IS NOT NULL
    )
    SELECT count(*) INTO changed FROM stored AS s;
    RETURN changed;
END
$$;

-- name: purge
-- Throws away all that a queue has not finished, what waits included; dead letters stay. Receipts that are out are good
-- no longer. Records what was thrown away of each partition. Returns how many events that were. Raises PS013, PS018,
-- PS042.
CREATE OR REPLACE FUNCTION purge(subscription text) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    queue queues%ROWTYPE := require_queue(subscription, 'operate');
    size bigint;
BEGIN
    PERFORM commit_durably();
    PERFORM require_read_committed('purge()');
    PERFORM FROM queues AS q WHERE q.subscription_id = queue.subscription_id FOR NO KEY UPDATE;
    PERFORM FROM leases AS l WHERE l.subscription_id = queue.subscription_id ORDER BY l.partition_id FOR NO KEY UPDATE;
    SELECT c.ready + c.in_flight + c.delayed INTO size FROM queue_counts(queue.subscription_id) AS c;
    -- In the order of workers, who lock the claims of a call by their ids.
    PERFORM FROM queue_ranges AS r WHERE r.subscription_id = queue.subscription_id ORDER BY r.id FOR UPDATE;
    DELETE FROM queue_ranges AS r WHERE r.subscription_id = queue.subscription_id;
    PERFORM record_copies(queue.subscription_id);
    -- In the order of an erasure.
    PERFORM FROM queue_waiting AS w WHERE w.subscription_id = queue.subscription_id ORDER BY w.id FOR UPDATE;
    DELETE FROM queue_waiting AS w WHERE w.subscription_id = queue.subscription_id;
    DELETE FROM queue_keys AS k WHERE k.subscription_id = queue.subscription_id;
    -- What was put back, or came to its turn, while the first DELETE waited. Who has it locked may wait for us.
    DELETE FROM queue_ranges AS r
    WHERE r.id IN (
        SELECT n.id FROM queue_ranges AS n WHERE n.subscription_id = queue.subscription_id FOR UPDATE SKIP LOCKED);
    WITH ended AS (
        SELECT l.partition_id, l.lease_epoch, stands.position, high_watermark(l.partition_id) AS watermark
        FROM leases AS l
        CROSS JOIN LATERAL (SELECT current_position(l.subscription_id, l.partition_id) AS position) AS stands
        WHERE l.subscription_id = queue.subscription_id AND high_watermark(l.partition_id) > stands.position
    ), recorded AS (
        INSERT INTO queue_purges (subscription_id, partition_id, first_sequence, last_sequence)
        SELECT queue.subscription_id, e.partition_id, e.position + 1, e.watermark FROM ended AS e
    )
    INSERT INTO positions (subscription_id, partition_id, position, lease_epoch, reason, reached)
    SELECT queue.subscription_id, e.partition_id, e.watermark, e.lease_epoch, 'queue', e.watermark
    FROM ended AS e;
    RETURN size;
END
$$;

-- name: record_copies
-- Records the events out of the window that a purge is about to throw away and that its record of the log would not
-- have: the position has passed them.
CREATE OR REPLACE FUNCTION record_copies(owner_id bigint) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO queue_purges (subscription_id, partition_id, first_sequence, last_sequence)
    SELECT owner_id, n.partition_id, min(n.sequence), max(n.sequence)
    FROM (
        SELECT w.partition_id, w.sequence,
               w.sequence - dense_rank() OVER (PARTITION BY w.partition_id ORDER BY w.sequence) AS island
        FROM leases AS l
        CROSS JOIN LATERAL (SELECT current_position(l.subscription_id, l.partition_id) AS position) AS stands
        JOIN queue_waiting AS w
            ON w.subscription_id = l.subscription_id AND w.partition_id = l.partition_id
            AND w.sequence <= stands.position
        WHERE l.subscription_id = owner_id
    ) AS n
    GROUP BY n.partition_id, n.island
$$;

-- name: erase_copies
-- What erase_letters does, for the copies that queues have of events that wait or have a body of their own. Returns how
-- many. Raises PS027.
CREATE OR REPLACE FUNCTION erase_copies(held erasures, key text, max_rows integer) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    copy record;
    done bigint := 0;
BEGIN
    FOR copy IN
        SELECT w.id, w.partition_id, w.sequence
        FROM queue_waiting AS w
        WHERE w.partition_id BETWEEN held.topic_id << 16 AND (held.topic_id << 16) + 65535
          AND (w.event_id = held.event_id OR w.key = erase_copies.key)
          AND NOT EXISTS (
              SELECT FROM erasures AS z
              WHERE z.topic_id = held.topic_id AND w.payload = '' AND w.body IS NULL
                AND w.headers = erasure_mark(z.erasure) AND w.reason IN ('', erased_reason(z.erasure)))
        ORDER BY w.id
        LIMIT max_rows
        FOR UPDATE
    LOOP
        PERFORM require_unheld(copy.partition_id, ARRAY[copy.sequence]);
        UPDATE queue_waiting AS w
        SET payload = '', body = NULL, headers = erasure_mark(held.erasure), reason = erased_reason(held.erasure),
            key = CASE WHEN NOT held.replace_key THEN w.key END
        WHERE w.id = copy.id;
        done := done + 1;
    END LOOP;
    RETURN done;
END
$$;

-- name: extend
-- Gives events more time from now on, and new receipts; the old ones are spent. 0 seconds put them back: they are
-- handed out again at once, and the delivery counts. A body, for one event, goes with all later hand-outs in place of
-- the payload; the log keeps what was published, and an erased event takes none. Returns a row for each range of a new
-- claim. Raises PS006, PS013, PS018, PS042, PS043, PS044.
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
    ORDER BY p.entry, n.first_sequence;
END
$$;

-- name: release_claims
-- Puts events back that nobody has begun: they are handed out again at once, and the delivery does not count. Returns
-- for each entry whether it was put back, as acknowledge does. Raises PS013, PS018, PS042, PS043, PS044.
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
    ordered boolean := (SELECT q."order" = 'key' FROM queues AS q WHERE q.subscription_id = owner_id);
    changed bigint;
BEGIN
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
    DELETE FROM queue_ranges AS r WHERE r.subscription_id = queue.subscription_id;
    PERFORM record_copies(queue.subscription_id);
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

-- name: queue_counts
-- How many events of a queue are ready, handed out, and waiting outside the window.
CREATE OR REPLACE FUNCTION queue_counts(owner_id bigint, OUT ready bigint, OUT in_flight bigint, OUT delayed bigint)
LANGUAGE sql STABLE SET enable_seqscan = off AS $$
    SELECT (
               SELECT COALESCE(sum(high_watermark(l.partition_id) - stands.reached), 0)
               FROM leases AS l
               CROSS JOIN LATERAL (
                   SELECT COALESCE(o.reached, o.position) AS reached
                   FROM positions AS o
                   WHERE o.subscription_id = l.subscription_id AND o.partition_id = l.partition_id
                   ORDER BY o.id DESC
                   LIMIT 1
               ) AS stands
               WHERE l.subscription_id = owner_id
           ) + COALESCE(sum(w.events) FILTER (WHERE NOT w.claimed), 0) + (
               SELECT count(*) FROM queue_keys AS k WHERE k.subscription_id = owner_id AND k.state <> 'first'),
           COALESCE(sum(w.events) FILTER (WHERE w.claimed), 0),
           (SELECT count(*) FROM queue_waiting AS a WHERE a.subscription_id = owner_id AND a.due_at IS NOT NULL)
    FROM (
        SELECT r.token IS NOT NULL AND r.deadline > clock_timestamp() AS claimed,
               r.last_sequence - r.first_sequence + 1 - COALESCE(bit_count(r.finished), 0) AS events
        FROM queue_ranges AS r
        WHERE r.subscription_id = owner_id AND r.id >= (newest_turn(owner_id)).floor_id
    ) AS w
$$;

-- name: queue_statistics
-- How many events of a queue are ready, handed out, waiting for a retry, and dead, and what they are together without
-- the dead ones. Raises PS013, PS042.
CREATE OR REPLACE FUNCTION queue_statistics(subscription text)
RETURNS TABLE (size bigint, ready bigint, in_flight bigint, delayed bigint, dead bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT c.ready + c.in_flight + c.delayed, c.ready, c.in_flight, c.delayed, (
               SELECT count(*) FROM dead_letters AS d WHERE d.subscription_id = q.subscription_id)
    FROM require_queue(queue_statistics.subscription, 'peek') AS q
    CROSS JOIN LATERAL queue_counts(q.subscription_id) AS c
$$;

-- name: queue_pointers
-- Where a queue stands in each partition. reader: the sequence that is dealt next. repair: the lowest one that is not
-- finished; retention waits for it. invisibility: the lowest one that is handed out now or waits for a retry, NULL when
-- there is none. behind: how many wait behind an earlier event of their key. Raises PS013, PS042.
CREATE OR REPLACE FUNCTION queue_pointers(subscription text)
RETURNS TABLE (
    topic text, partition integer, reader bigint, repair bigint, invisibility bigint, behind bigint
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off AS $$
    WITH queue AS MATERIALIZED (
        SELECT q.subscription_id, (newest_turn(q.subscription_id)).floor_id
        FROM require_queue(queue_pointers.subscription, 'peek') AS q
    ), unfinished AS (
        SELECT r.partition_id, CASE WHEN r.waiting_id IS NULL THEN first_unfinished(r) END AS repair,
               CASE WHEN r.token IS NOT NULL AND r.deadline > clock_timestamp() THEN first_unfinished(r) END
                   AS invisibility, 0 AS behind
        FROM queue AS q JOIN queue_ranges AS r ON r.subscription_id = q.subscription_id AND r.id >= q.floor_id
        UNION ALL
        SELECT k.partition_id, CASE WHEN k.waiting_id = 0 THEN k.sequence END, NULL, 1
        FROM queue AS q JOIN queue_keys AS k ON k.subscription_id = q.subscription_id AND k.state <> 'first'
        UNION ALL
        SELECT w.partition_id, NULL, w.sequence, 0
        FROM queue AS q JOIN queue_waiting AS w ON w.subscription_id = q.subscription_id AND w.due_at IS NOT NULL
    ), lowest AS MATERIALIZED (
        SELECT u.partition_id, min(u.repair) AS repair, min(u.invisibility) AS invisibility,
               sum(u.behind) AS behind
        FROM unfinished AS u
        GROUP BY u.partition_id
    )
    SELECT t.address, (l.partition_id & 65535)::integer, stands.reached + 1, COALESCE(u.repair, stands.reached + 1),
           u.invisibility, COALESCE(u.behind, 0)
    FROM queue AS q
    JOIN leases AS l ON l.subscription_id = q.subscription_id
    JOIN topics AS t ON t.id = l.partition_id >> 16
    CROSS JOIN LATERAL (
        SELECT COALESCE(o.reached, o.position) AS reached
        FROM positions AS o
        WHERE o.subscription_id = l.subscription_id AND o.partition_id = l.partition_id
        ORDER BY o.id DESC
        LIMIT 1
    ) AS stands
    LEFT JOIN lowest AS u ON u.partition_id = l.partition_id
    ORDER BY 1, 2
$$;

-- name: peek
-- The next unfinished events of each partition, and what waits outside the window, without handing anything out: at
-- most max_events. state is ready, in_flight, delayed or behind (an earlier event of its key). Raises PS006, PS013,
-- PS042.
CREATE OR REPLACE FUNCTION peek(subscription text, max_events integer DEFAULT 10)
RETURNS TABLE (
    state text, visible_at timestamptz, deliveries integer, failures integer, topic text, partition integer,
    sequence bigint, event_id uuid, key text, type text, content_type text, headers jsonb, payload bytea,
    created_at timestamptz, sequenced_at timestamptz, history integer
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    queue queues%ROWTYPE := require_queue(subscription, 'peek');
BEGIN
    IF max_events IS NULL OR max_events NOT BETWEEN 1 AND 1000 THEN
        PERFORM refuse('PS006', format('cannot peek at %s events', max_events), 'Use 1 to 1,000.');
    END IF;
    RETURN QUERY
    WITH windowed AS (
        SELECT r.partition_id, s AS sequence, r.deliveries,
               CASE WHEN r.token IS NOT NULL AND r.deadline > clock_timestamp() THEN 'in_flight' ELSE 'ready' END
                   AS state,
               r.deadline, r.waiting_id
        FROM (
            SELECT * FROM queue_ranges AS w
            WHERE w.subscription_id = queue.subscription_id AND w.id >= (newest_turn(queue.subscription_id)).floor_id
            ORDER BY w.id
            LIMIT max_events
        ) AS r
        CROSS JOIN LATERAL unfinished(r.first_sequence, r.last_sequence, r.finished) AS s
    ), placed AS (
        SELECT w.* FROM windowed AS w WHERE w.waiting_id IS NULL
        UNION ALL
        (SELECT k.partition_id, k.sequence, 0, 'behind', NULL, NULL
         FROM queue_keys AS k
         WHERE k.subscription_id = queue.subscription_id AND k.state <> 'first' AND k.waiting_id = 0
         ORDER BY k.sequence, k.partition_id
         LIMIT max_events)
        UNION ALL
        SELECT l.partition_id, s, 0, 'ready', NULL, NULL
        FROM leases AS l
        CROSS JOIN LATERAL (
            SELECT COALESCE(o.reached, o.position) AS reached FROM positions AS o
            WHERE o.subscription_id = l.subscription_id AND o.partition_id = l.partition_id
            ORDER BY o.id DESC
            LIMIT 1
        ) AS stands
        CROSS JOIN LATERAL generate_series(
            stands.reached + 1, LEAST(stands.reached + max_events, high_watermark(l.partition_id))) AS s
        WHERE l.subscription_id = queue.subscription_id
    )
    SELECT p.state, CASE WHEN p.state = 'in_flight' THEN p.deadline END, p.deliveries, 0,
           t.address, (p.partition_id & 65535)::integer, l.*, current_history()
    FROM (SELECT * FROM placed AS o ORDER BY o.sequence, o.partition_id LIMIT max_events) AS p
    JOIN topics AS t ON t.id = p.partition_id >> 16
    CROSS JOIN LATERAL read_log(p.partition_id, p.sequence, 1) AS l
    UNION ALL
    SELECT CASE WHEN a.due_at > clock_timestamp() THEN 'delayed' WHEN b.waiting_id IS NOT NULL THEN 'behind'
                ELSE COALESCE(w.state, 'ready') END,
           COALESCE(a.due_at, CASE WHEN w.state = 'in_flight' THEN w.deadline END),
           COALESCE(w.deliveries, a.deliveries), a.failures, t.address,
           (a.partition_id & 65535)::integer, a.sequence, a.event_id, a.key, a.type, a.content_type, a.headers,
           COALESCE(a.body, a.payload), a.created_at, a.sequenced_at, a.history
    FROM queue_waiting AS a
    JOIN topics AS t ON t.id = a.partition_id >> 16
    LEFT JOIN windowed AS w ON w.waiting_id = a.id
    LEFT JOIN queue_keys AS b
        ON b.subscription_id = a.subscription_id AND b.partition_id = a.partition_id AND b.sequence = a.sequence
        AND b.waiting_id = a.id AND b.state <> 'first'
    WHERE a.subscription_id = queue.subscription_id
    ORDER BY 7, 5, 6
    LIMIT max_events;
END
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

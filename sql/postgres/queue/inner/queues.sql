-- name: require_queue
-- The settings of a subscription in queue mode for a login that holds a right (receive, acknowledge, peek, consume) in
-- all its topics. Raises PS013, in the same words whether it is missing or hidden, and PS042 for a stream.
CREATE OR REPLACE FUNCTION require_queue(subscription text, verb text) RETURNS queues
LANGUAGE plpgsql STABLE AS $$
DECLARE
    present record;
BEGIN
    -- One query where nobody has been given a right: every receive and acknowledge begins here.
    SELECT s.id, NOT no_walls() AS is_restricted, q AS queue INTO present
    FROM subscriptions AS s LEFT JOIN queues AS q ON q.subscription_id = s.id
    WHERE s.name = require_queue.subscription;
    IF NOT FOUND OR (present.is_restricted AND NOT may_use(present.id, verb)) THEN
        PERFORM refuse('PS013', format('there is no subscription "%s"', left(subscription, 500)),
                       'Create it: SELECT penstock.subscribe(..., mode => ''queue'').');
    END IF;
    IF (present.queue).subscription_id IS NULL THEN
        PERFORM refuse('PS042', format('subscription "%s" is a stream', left(subscription, 500)),
                       'Consumers poll and commit it; make another subscription in queue mode to receive from.');
    END IF;
    RETURN present.queue;
END
$$;

-- name: may_use
-- Whether the login holds a right in all topics of a subscription. Ask only where somebody has been given a right.
CREATE OR REPLACE FUNCTION may_use(subscription_id bigint, verb text) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN NOT EXISTS (
        SELECT FROM subscription_topics AS r JOIN topics AS t ON t.id = r.topic_id
        WHERE r.subscription_id = may_use.subscription_id AND (t.restricted OR NOT (SELECT as_login()))
          AND NOT has_right(t.namespace_id, may_use.verb))
        AND NOT belongs_to_nobody(subscription_id);
END
$$;

-- name: require_stream
-- Refuses a call of stream mode for a subscription in queue mode (PS042).
CREATE OR REPLACE FUNCTION require_stream(owner subscriptions) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF owner.mode <> 'stream' THEN
        PERFORM refuse('PS042', format('subscription "%s" is a queue', owner.name),
                       'Its events are received and acknowledged one by one; nobody leases its partitions.');
    END IF;
END
$$;

-- name: begin_queue
-- Sets the mode of a subscription that subscribe has locked: of a new one the mode that was asked for, and of an old
-- one nothing. Raises PS006, PS042.
CREATE OR REPLACE FUNCTION begin_queue(owner_id bigint, wanted text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    present subscriptions%ROWTYPE;
BEGIN
    SELECT * INTO present FROM subscriptions AS s WHERE s.id = owner_id;
    IF wanted = 'queue' AND NOT EXISTS (SELECT FROM subscription_topics AS t WHERE t.subscription_id = owner_id) THEN
        UPDATE subscriptions AS s SET mode = 'queue' WHERE s.id = owner_id AND s.mode <> 'queue';
        INSERT INTO queues (subscription_id) VALUES (owner_id) ON CONFLICT DO NOTHING;
    ELSIF wanted IS DISTINCT FROM present.mode THEN
        IF wanted IS NULL OR wanted NOT IN ('stream', 'queue') THEN
            PERFORM refuse('PS006', format('there is no mode "%s"', left(wanted, 200)), 'Use stream or queue.');
        END IF;
        PERFORM refuse('PS042', format('subscription "%s" is in mode %s', present.name, present.mode),
                       'A subscription keeps its mode: choose another name.');
    END IF;
END
$$;

-- name: set_order
-- Sets the order of a queue whose row the caller has locked: no dealer is at work. It is kept once it is key, and can
-- be set while nothing is in hand, because of what was dealt before nobody knows the keys. Raises PS006.
CREATE OR REPLACE FUNCTION set_order(owner_id bigint, wanted text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    present text;
BEGIN
    SELECT q."order" INTO present FROM queues AS q WHERE q.subscription_id = owner_id;
    IF wanted = present THEN
        RETURN;
    ELSIF present = 'key' OR EXISTS (SELECT FROM queue_ranges AS r WHERE r.subscription_id = owner_id)
        OR EXISTS (SELECT FROM queue_waiting AS w WHERE w.subscription_id = owner_id)
    THEN
        PERFORM refuse('PS006',
                       format('the order of the queue cannot become %s: %s', wanted,
                              'it is kept while events are in hand, and once it is key'),
                       'Choose it before the first receive, and keep it; or make another queue.');
    END IF;
    UPDATE queues AS q SET "order" = wanted WHERE q.subscription_id = owner_id;
END
$$;

-- name: queue_bounds
-- The settings of a queue and their bounds.
CREATE OR REPLACE FUNCTION queue_bounds()
RETURNS TABLE (setting text, lowest double precision, highest double precision, is_whole boolean)
LANGUAGE sql IMMUTABLE AS $$
    VALUES ('visibility_seconds', 0::double precision, 43200::double precision, false),
           ('max_deliveries', 1, 1000, true), ('max_failures', 1, 1000, true), ('max_in_flight', 1, 1000000, true),
           ('first_backoff_seconds', 0, 86400, false), ('longest_backoff_seconds', 0, 604800, false),
           ('jitter', 0, 1, false), ('retention_seconds', 0, 315360000, false)
$$;

-- name: forget_queue
-- Deletes what a queue has of some partitions.
CREATE OR REPLACE FUNCTION forget_queue(owner_id bigint, partition_ids bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    -- The dealer has to end first, or what it deals would remain.
    PERFORM FROM queues AS q WHERE q.subscription_id = owner_id FOR UPDATE;
    -- A worker that had a claim locked may have put its events back: they show from his COMMIT on.
    LOOP
        DELETE FROM queue_ranges AS r
        WHERE r.subscription_id = owner_id AND r.partition_id = ANY (partition_ids);
        EXIT WHEN NOT EXISTS (
            SELECT FROM queue_ranges AS r
            WHERE r.subscription_id = owner_id AND r.partition_id = ANY (partition_ids));
    END LOOP;
    DELETE FROM queue_waiting AS w
    WHERE w.subscription_id = owner_id AND w.partition_id = ANY (partition_ids);
    DELETE FROM queue_keys AS k
    WHERE k.subscription_id = owner_id AND k.partition_id = ANY (partition_ids);
END
$$;

-- name: cut_back
-- Deletes what a queue has dealt beyond the end of the log, when a history begins: other events get these sequences.
-- Copies stay: they are whole, and of the history before.
CREATE OR REPLACE FUNCTION cut_back(owner_id bigint, part_id bigint, watermark bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM queue_ranges AS r
    WHERE r.subscription_id = owner_id AND r.partition_id = part_id AND r.waiting_id IS NULL
      AND r.first_sequence > watermark;
    UPDATE queue_ranges AS r
    SET last_sequence = watermark,
        finished = substring(r.finished FROM 1 FOR (watermark - r.first_sequence + 1)::integer)
    WHERE r.subscription_id = owner_id AND r.partition_id = part_id AND r.waiting_id IS NULL
      AND r.last_sequence > watermark;
    PERFORM cut_back_keys(owner_id, part_id, watermark);
END
$$;

-- name: has_removed
-- Whether retention has removed events that a queue has dealt and not finished: its position is below them.
CREATE OR REPLACE FUNCTION has_removed(owner_id bigint) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM leases AS l
        JOIN partitions AS p ON p.id = l.partition_id
        CROSS JOIN LATERAL (
            SELECT o.position
            FROM positions AS o
            WHERE o.subscription_id = l.subscription_id AND o.partition_id = l.partition_id
            ORDER BY o.id DESC
            LIMIT 1
        ) AS stands
        WHERE l.subscription_id = owner_id AND stands.position < p.low_sequence - 1);
END
$$;

-- name: drop_removed
-- Ends what a queue has dealt and retention has removed: a receiver would get a claim of nothing, again and again. That
-- it was skipped is recorded already.
CREATE OR REPLACE FUNCTION drop_removed(queue queues, floor_id bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM drop_below(queue, floor_id, array_agg(p.id), array_agg(p.low_sequence))
    FROM leases AS l JOIN partitions AS p ON p.id = l.partition_id
    WHERE l.subscription_id = queue.subscription_id;
END
$$;

-- name: drop_below
-- Ends what a queue has dealt of some partitions below a sequence of each, at most 10,000 ranges of it. A claim that
-- somebody has stays until its time is over: he may have read it. What waits behind the key of such an event and is
-- below too ends with it: nobody else can be about to finish that key. Returns what has ended.
CREATE OR REPLACE FUNCTION drop_below(queue queues, floor_id bigint, part_ids bigint[], lows bigint[])
RETURNS queue_piece[]
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    gone queue_piece[];
    ended queue_piece[];
    behind queue_piece[];
BEGIN
    WITH removed AS MATERIALIZED (
        SELECT r.*, p.low_sequence
        FROM queue_ranges AS r
        JOIN unnest(part_ids, lows) AS p (id, low_sequence) ON p.id = r.partition_id
        WHERE r.subscription_id = queue.subscription_id AND r.id >= drop_below.floor_id AND r.token IS NULL
          AND r.waiting_id IS NULL AND r.first_sequence < p.low_sequence
        ORDER BY r.id
        LIMIT 10000
        FOR UPDATE OF r SKIP LOCKED
    ), cut AS (
        UPDATE queue_ranges AS r SET first_sequence = m.low_sequence
        FROM removed AS m
        WHERE r.id = m.id AND r.last_sequence >= m.low_sequence
    ), dropped AS (
        DELETE FROM queue_ranges AS r
        USING removed AS m
        WHERE r.id = m.id AND r.last_sequence < m.low_sequence
        RETURNING r.id
    )
    SELECT array_agg(n.piece) FILTER (WHERE n.is_whole), array_agg(n.piece)
    INTO gone, ended
    FROM (
        SELECT m.id IN (SELECT d.id FROM dropped AS d) AS is_whole,
               ROW(0, m.id, m.partition_id, m.first_sequence, LEAST(m.last_sequence, m.low_sequence - 1),
                   m.deliveries, NULL, NULL, NULL)::queue_piece AS piece
        FROM removed AS m
    ) AS n;
    IF queue."order" = 'none' OR gone IS NULL THEN
        RETURN COALESCE(ended, '{}');
    END IF;
    WITH followers AS (
        DELETE FROM queue_keys AS k
        USING (
            SELECT DISTINCT f.partition_id, f.key_digest, p.low_sequence
            FROM unnest(gone) AS g
            JOIN queue_keys AS f
                ON f.subscription_id = queue.subscription_id AND f.partition_id = g.partition_id
                AND f.sequence = g.first_sequence AND f.waiting_id = 0
            JOIN unnest(part_ids, lows) AS p (id, low_sequence) ON p.id = g.partition_id
        ) AS d
        WHERE k.subscription_id = queue.subscription_id AND k.partition_id = d.partition_id
          AND k.key_digest = d.key_digest AND k.sequence < d.low_sequence AND k.waiting_id = 0 AND k.state <> 'first'
        RETURNING k.partition_id, k.sequence
    )
    SELECT array_agg(ROW(0, 0, f.partition_id, f.sequence, f.sequence, 0, NULL, NULL, NULL)::queue_piece) INTO behind
    FROM followers AS f;
    PERFORM finish_keys(queue, gone);
    RETURN ended || COALESCE(behind, '{}');
END
$$;

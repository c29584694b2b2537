-- name: sees_topic
-- Whether the login holds a right in a topic that it names by its id; false when the topic is gone.
CREATE OR REPLACE FUNCTION sees_topic(topic_id bigint, verb text) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT FROM topics AS t
        WHERE t.id = sees_topic.topic_id
          AND (NOT t.restricted AND (SELECT as_login()) OR has_right(t.namespace_id, sees_topic.verb)))
$$;

-- name: require_window
-- Checks the window of a backfill request, and that its partition exists; raises PS005, PS006.
CREATE OR REPLACE FUNCTION require_window(asked backfill_requests) RETURNS void
LANGUAGE plpgsql STABLE AS $$
DECLARE
    highest bigint;
BEGIN
    SELECT max(high_watermark(p.id)) INTO highest
    FROM partitions AS p
    WHERE p.topic_id = asked.topic_id AND (asked.partition IS NULL OR p.number = asked.partition);
    IF highest IS NULL THEN
        PERFORM refuse('PS005', format('the topic has no partition %s', asked.partition),
                       'Partitions are numbered from 0; penstock topic describe tells how many there are.');
    ELSIF asked.from_sequence < 1 OR asked.to_sequence < 1 OR asked.from_sequence > asked.to_sequence THEN
        PERFORM refuse('PS006', format('a window from sequence %s to %s',
                                       COALESCE(asked.from_sequence::text, 'the first'),
                                       COALESCE(asked.to_sequence::text, 'the last')),
                       'Sequences start at 1, and both ends belong to the window.');
    ELSIF asked.from_sequence > highest OR asked.to_sequence > highest THEN
        PERFORM refuse('PS006', format('a window that reaches sequence %s, and the log ends at %s',
                                       GREATEST(asked.from_sequence, asked.to_sequence), highest),
                       'Leave out the end to go up to the last event.');
    ELSIF asked.from_time >= asked.to_time THEN
        PERFORM refuse('PS006', format('a window from %s to %s', asked.from_time, asked.to_time),
                       'from_time belongs to the window, to_time does not.');
    END IF;
END
$$;

-- name: require_request
-- Checks what is asked for in a backfill request; raises PS005, PS006.
CREATE OR REPLACE FUNCTION require_request(asked backfill_requests) RETURNS void
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF asked.kind IS NULL OR asked.kind NOT IN ('copy', 'rehydrate', 'relay') THEN
        PERFORM refuse('PS006', format('there is no backfill of the kind "%s"', left(asked.kind, 80)),
                       'The kinds are copy, rehydrate and relay.');
    ELSIF (asked.target = '') IS DISTINCT FROM (asked.kind = 'rehydrate') OR length(asked.target) > 1000 THEN
        PERFORM refuse('PS006', format('a backfill of the kind %s with the target "%s"', asked.kind,
                                       left(asked.target, 80)),
                       'copy needs the name of an archive target and relay the address of a sink, of at most 1,000 '
                       'characters; rehydrate takes none.');
    ELSIF asked.priority IS NULL OR asked.priority NOT BETWEEN -1000 AND 1000
        OR asked.max_attempts IS NULL OR asked.max_attempts NOT BETWEEN 1 AND 100 THEN
        PERFORM refuse('PS006', format('a backfill of priority %s and %s attempts', asked.priority, asked.max_attempts),
                       'The priority is -1000 to 1000, and there are 1 to 100 attempts.');
    END IF;
    PERFORM require_window(asked);
END
$$;

-- name: backfill_plan
-- The ranges that a request has to do: sealed log epochs in its window that lack what the request brings. A relay
-- takes the exact window, and what is not sealed yet in pieces of 100,000 events when the window has no times.
CREATE OR REPLACE FUNCTION backfill_plan(asked backfill_requests)
RETURNS TABLE (partition_id bigint, first_sequence bigint, last_sequence bigint, log_epoch integer)
LANGUAGE sql STABLE AS $$
    WITH parts AS (
        SELECT p.id, COALESCE(asked.from_sequence, 1) AS lowest,
               LEAST(COALESCE(asked.to_sequence, 1000000000000000000), high_watermark(p.id)) AS highest
        FROM partitions AS p
        WHERE p.topic_id = asked.topic_id AND (asked.partition IS NULL OR p.number = asked.partition)
    )
    SELECT e.partition_id,
           CASE WHEN asked.kind = 'relay' THEN GREATEST(e.first_sequence, p.lowest) ELSE e.first_sequence END,
           CASE WHEN asked.kind = 'relay' THEN LEAST(e.last_sequence, p.highest) ELSE e.last_sequence END, e.log_epoch
    FROM parts AS p JOIN log_epochs AS e ON e.partition_id = p.id
    WHERE e.last_sequence >= p.lowest AND e.first_sequence <= p.highest
      AND e.sealed_at >= COALESCE(asked.from_time, '-infinity') AND e.sealed_at < COALESCE(asked.to_time, 'infinity')
      AND CASE asked.kind
          WHEN 'copy' THEN NOT EXISTS (
              SELECT FROM epoch_copies AS c
              WHERE c.partition_id = e.partition_id AND c.log_epoch = e.log_epoch AND c.target = asked.target
                AND c.state = 'verified')
          WHEN 'rehydrate' THEN e.dropped_at IS NOT NULL
          ELSE true END
    UNION ALL
    SELECT p.id, piece.first, LEAST(piece.first + 99999, p.highest), NULL
    FROM parts AS p
    CROSS JOIN LATERAL (
        SELECT GREATEST(COALESCE(max(e.last_sequence), 0) + 1, p.lowest) AS first
        FROM log_epochs AS e WHERE e.partition_id = p.id
    ) AS tail
    CROSS JOIN LATERAL generate_series(tail.first, p.highest, 100000) AS piece (first)
    WHERE asked.kind = 'relay' AND asked.from_time IS NULL AND asked.to_time IS NULL
$$;

-- name: forget_backfills
-- Removes requests that ended more than 30 days ago.
CREATE OR REPLACE FUNCTION forget_backfills() RETURNS void
LANGUAGE sql AS $$
    DELETE FROM backfill_requests AS r
    WHERE r.id IN (
        SELECT o.id FROM backfill_requests AS o
        WHERE o.state IN ('done', 'failed', 'cancelled') AND o.changed_at < clock_timestamp() - interval '30 days'
        ORDER BY o.id
        LIMIT 100
        FOR UPDATE SKIP LOCKED)
$$;

-- name: require_lease_seconds
-- Checks how long a runner of backfills may stay silent; raises PS006.
CREATE OR REPLACE FUNCTION require_lease_seconds(seconds double precision) RETURNS interval
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF seconds IS NULL OR NOT (seconds BETWEEN 1 AND 86400) THEN
        PERFORM refuse('PS006', format('a backfill that is held for %s s', seconds), 'Use 1 to 86,400 s.');
    END IF;
    RETURN make_interval(secs => seconds);
END
$$;

-- name: hold_backfill
-- The fence: locks a request whose attempt the caller names, to the end of the caller's transaction. Raises PS025 when
-- the request was cancelled, has ended, or was claimed again, and when the login may not operate its topic.
CREATE OR REPLACE FUNCTION hold_backfill(request bigint, attempt integer) RETURNS backfill_requests
LANGUAGE plpgsql AS $$
DECLARE
    held backfill_requests%ROWTYPE;
BEGIN
    PERFORM commit_durably();
    PERFORM require_read_committed('a step of a backfill');
    SELECT r.* INTO held FROM backfill_requests AS r WHERE r.id = request FOR NO KEY UPDATE;
    IF held.state IS DISTINCT FROM 'running' OR held.attempts IS DISTINCT FROM attempt
        OR NOT sees_topic(held.topic_id, 'operate') THEN
        PERFORM refuse('PS025', format('attempt %s of the backfill request %s is over', attempt, request),
                       'It was cancelled, has ended or was claimed again: stop working on it.');
    END IF;
    RETURN held;
END
$$;

-- name: dead_letters_of
-- The dead letters of a subscription without their payloads, newest first. They can be limited to those before a
-- given one, and to a topic, a key, a type and a state (dead, parked or redriven). forwarded_to and forwarded_as are
-- topic and id of the copy of one whose subscription names a topic (set_dead_letters_to); not_forwarded says why there
-- is none.
CREATE OR REPLACE FUNCTION dead_letters_of(
    subscription text, max_rows integer DEFAULT 100, of_topic text DEFAULT NULL, of_key text DEFAULT NULL,
    of_type text DEFAULT NULL, of_state text DEFAULT NULL, before_id bigint DEFAULT NULL
) RETURNS TABLE (
    id bigint, topic text, partition integer, sequence bigint, history integer, event_id uuid, key text, type text,
    content_type text, payload_bytes integer, state text, attempts integer, reason text, created_at timestamptz,
    died_at timestamptz, forwarded_to text, forwarded_as uuid, not_forwarded text
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET enable_sort = off
SET jit = off AS $$
    SELECT d.id, t.address, p.number, d.sequence, d.history, d.event_id, d.key, d.type, d.content_type,
           octet_length(d.payload), w.state, d.attempts, d.reason, d.created_at, d.died_at,
           CASE WHEN NOT f.restricted AND (SELECT as_login()) OR has_right(f.namespace_id, 'any') THEN f.address END,
           d.forwarded_as,
           CASE WHEN d.forwarded_as IS NOT NULL AND f.id IS NULL THEN 'the topic was deleted' ELSE d.not_forwarded END
    FROM dead_letters AS d
    CROSS JOIN LATERAL (
        SELECT CASE WHEN d.redriven_at IS NOT NULL THEN 'redriven' WHEN d.parked THEN 'parked' ELSE 'dead' END AS state
    ) AS w
    JOIN partitions AS p ON p.id = d.partition_id
    JOIN topics AS t ON t.id = p.topic_id
    LEFT JOIN topics AS f ON f.id = d.forwarded_to
    -- Not a join: with one id, the index has the letters in this order, and the limit ends the reading.
    WHERE d.subscription_id = (SELECT s.id FROM subscriptions AS s WHERE s.name = dead_letters_of.subscription)
      AND (NOT t.restricted AND (SELECT as_login()) OR has_right(t.namespace_id, 'consume'))
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
    died_at timestamptz, forwarded_to text, forwarded_as uuid, not_forwarded text, headers jsonb, payload bytea
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT l.*, d.headers, d.payload
    FROM dead_letters_of(dead_letter_of.subscription, 1, before_id => letter_id + 1) AS l
    JOIN subscriptions AS s ON s.name = dead_letter_of.subscription
    JOIN dead_letters AS d ON d.subscription_id = s.id AND d.id = l.id
    WHERE l.id = letter_id
$$;

-- name: dead_letter_counts
-- How many dead letters one subscription has, or each subscription (NULL), by state, and for how long the oldest has
-- been there. Of those that are not redriven, forwarded have a copy in the topic that the subscription names, and
-- not_forwarded were not taken by it. Of each subscription the oldest 10,000 are looked at: 10,000 means that many or
-- more.
CREATE OR REPLACE FUNCTION dead_letter_counts(subscription text DEFAULT NULL)
RETURNS TABLE (
    subscription text, dead bigint, parked bigint, redriven bigint, oldest_seconds double precision, forwarded bigint,
    not_forwarded bigint
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
    SELECT s.name, c.dead, c.parked, c.redriven, c.oldest_seconds, c.forwarded, c.not_forwarded
    FROM subscriptions AS s
    CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE d.redriven_at IS NULL AND NOT d.parked) AS dead,
               count(*) FILTER (WHERE d.redriven_at IS NULL AND d.parked) AS parked,
               count(*) FILTER (WHERE d.redriven_at IS NOT NULL) AS redriven,
               COALESCE(extract(epoch FROM clock_timestamp() - min(d.died_at)), 0)::double precision AS oldest_seconds,
               count(*) FILTER (WHERE d.is_there) AS forwarded,
               count(*) FILTER (WHERE d.not_forwarded IS NOT NULL OR d.forwarded_to IS NOT NULL AND NOT d.is_there)
                   AS not_forwarded
        FROM (
            SELECT l.redriven_at, l.parked, l.died_at, l.forwarded_to, l.not_forwarded,
                   l.forwarded_to IS NOT NULL AND EXISTS (SELECT FROM topics AS t WHERE t.id = l.forwarded_to)
                       AS is_there
            FROM dead_letters AS l
            WHERE l.subscription_id = s.id
            ORDER BY l.id
            LIMIT 10000
        ) AS d
    ) AS c
    WHERE (dead_letter_counts.subscription IS NULL OR s.name = dead_letter_counts.subscription)
      AND ((SELECT no_walls()) OR NOT reads_hidden(s.id))
    ORDER BY s.name
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
    WITH locked AS (  -- in the order of lock_letters
        SELECT d.id
        FROM dead_letters AS d
        WHERE d.subscription_id = owner_id AND d.id = ANY (letter_ids)
        ORDER BY d.partition_id, d.sequence, d.history
        FOR UPDATE
    ), dropped AS (
        DELETE FROM dead_letters AS d USING locked AS l
        WHERE d.subscription_id = owner_id AND d.id = l.id
        RETURNING d.*
    )
    INSERT INTO dropped_letters (
        subscription_id, id, partition_id, sequence, history, event_id, key, type, reason, attempts, died_at,
        dropped_by)
    SELECT d.subscription_id, d.id, d.partition_id, d.sequence, d.history, d.event_id, d.key, d.type, d.reason,
           d.attempts, d.died_at, principal()
    FROM dropped AS d;
    GET DIAGNOSTICS gone = ROW_COUNT;
    RETURN gone;
END
$$;

-- name: expire_dead_letters
-- Deletes dead letters that are older than their subscription's policy dead_letter_seconds, at most max_rows of them,
-- and keeps a record of each without its payload, as drop_dead_letters does. Letters that are parked, redriven or under
-- a legal hold stay, and so do those that somebody works on now. Returns how many it deleted. Raises PS006, PS018.
CREATE OR REPLACE FUNCTION expire_dead_letters(max_rows integer DEFAULT 1000) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner record;
    gone bigint;
    total bigint := 0;
BEGIN
    PERFORM commit_durably();
    PERFORM require_read_committed('expire_dead_letters()');
    IF max_rows IS NULL OR max_rows NOT BETWEEN 1 AND 100000 THEN
        PERFORM refuse('PS006', format('a look at %s dead letters', max_rows), 'Use 1 to 100,000.');
    END IF;
    FOR owner IN
        SELECT s.id, clock_timestamp() - make_interval(secs => s.dead_letter_seconds) AS before
        FROM subscriptions AS s
        WHERE s.dead_letter_seconds > 0
        ORDER BY s.id
    LOOP
        EXIT WHEN total = max_rows;
        WITH old AS (
            SELECT d.id
            FROM dead_letters AS d
            WHERE d.subscription_id = owner.id AND d.died_at < owner.before AND NOT d.parked AND d.redriven_at IS NULL
              AND find_hold_over(d.partition_id, d.sequence, d.sequence) IS NULL
            ORDER BY d.died_at
            LIMIT max_rows - total
            FOR UPDATE SKIP LOCKED
        ), dropped AS (
            DELETE FROM dead_letters AS d USING old AS o
            WHERE d.subscription_id = owner.id AND d.id = o.id
            RETURNING d.*
        )
        INSERT INTO dropped_letters (
            subscription_id, id, partition_id, sequence, history, event_id, key, type, reason, attempts, died_at,
            dropped_by)
        SELECT d.subscription_id, d.id, d.partition_id, d.sequence, d.history, d.event_id, d.key, d.type, d.reason,
               d.attempts, d.died_at, 'the policy dead_letter_seconds'
        FROM dropped AS d;
        GET DIAGNOSTICS gone = ROW_COUNT;
        total := total + gone;
    END LOOP;
    RETURN total;
END
$$;

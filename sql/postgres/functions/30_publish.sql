-- name: headers_problem
-- What is wrong with the headers of an event, or NULL. Headers that a reader's JSON parser cannot parse must
-- not get into the log. The limits are an object of 64 KiB of text, 32 levels and numbers of 400 digits. It
-- is STRICT, so that it costs nothing without headers.
CREATE OR REPLACE FUNCTION headers_problem(headers jsonb) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
    written text;
BEGIN
    IF jsonb_typeof(headers) <> 'object' THEN
        RETURN 'its headers are not a JSON object';
    END IF;
    written := headers::text;
    IF octet_length(written) > 65536 THEN
        RETURN 'its headers have ' || octet_length(written) || ' bytes, the limit is 65536';
    END IF;
    -- 33 levels are at least 70 characters. A regular expression counts to 255 at most, so there are two counts. What
    -- looks like a long number may be inside a string, so strings are removed before the second check.
    IF octet_length(written) > 70 AND jsonb_path_exists(headers, '$.**{33}') THEN
        RETURN 'its headers are nested deeper than 32 levels';
    END IF;
    IF octet_length(written) > 400 AND written ~ '[0-9]{201}[0-9]{200}'
       AND regexp_replace(written, $p$"([^"\\]|\\.)*"$p$, '', 'g') ~ '[0-9]{201}[0-9]{200}' THEN
        RETURN 'its headers hold a number of more than 400 digits';
    END IF;
    RETURN NULL;
END
$$;

-- name: has_plain_headers
-- Whether headers are certainly valid, found without a function call: an object of at most 400 characters, whose
-- binary JSON is shorter than 33 levels need. It is inlined into the query that calls it.
CREATE OR REPLACE FUNCTION has_plain_headers(headers jsonb) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT headers IS NULL
        OR jsonb_typeof(headers) = 'object' AND pg_column_size(headers) < 264
           AND pg_column_compression(headers) IS NULL AND octet_length(headers::text) <= 400
$$;

-- name: event_problem
-- What is wrong with an event, as 'SQLSTATE problem', or NULL. One rule for publish, publish_batch and
-- publish_bulk. It is STABLE, as || of numbers is, so that it can be inlined into the query that calls it.
-- latest is the end of the longest delay.
CREATE OR REPLACE FUNCTION event_problem(
    payload_bytes integer, key text, type text, content_type text, headers jsonb, partition integer,
    not_before timestamptz, dedup_key text, partitions integer, strategy text, max_payload_bytes integer,
    latest timestamptz
) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT CASE
        WHEN partitions IS NULL THEN 'PS002 its topic does not exist'
        WHEN payload_bytes IS NULL THEN 'PS006 its payload is NULL'
        WHEN payload_bytes > max_payload_bytes
            THEN 'PS004 its payload has ' || payload_bytes || ' bytes, the limit is ' || max_payload_bytes
        WHEN char_length(key) > 255 THEN 'PS006 its key has ' || char_length(key) || ' characters, the limit is 255'
        WHEN char_length(type) > 255 THEN 'PS006 its type has more than 255 characters'
        WHEN char_length(content_type) > 255 THEN 'PS006 its content type has more than 255 characters'
        WHEN char_length(dedup_key) > 255 THEN 'PS006 its dedup key has more than 255 characters'
        WHEN not_before > latest THEN 'PS006 its delay is longer than longest_delay_seconds allows'
        WHEN NOT has_plain_headers(headers) AND headers_problem(headers) IS NOT NULL
            THEN 'PS006 ' || headers_problem(headers)
        ELSE partition_problem(partitions, strategy, partition)
    END
$$;

-- name: require_events
-- Checks every event of a batch; the error names the place (from 0) of the first one that is wrong, unless the batch
-- has only one event. Raises PS002, PS004, PS005, PS006.
CREATE OR REPLACE FUNCTION require_events(
    topics text[], payloads bytea[], keys text[], types text[], content_types text[], headers text[],
    partitions integer[], not_befores timestamptz[], dedup_keys text[], is_batch boolean
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    latest timestamptz := latest_due();
    bad record;
BEGIN
    SELECT i.n - 1 AS place, i.topic, p.problem INTO bad
    FROM unnest(require_events.topics, payloads, keys, types, content_types, require_events.headers,
                require_events.partitions, not_befores, dedup_keys)
        WITH ORDINALITY AS i (topic, payload, key, type, content_type, headers, partition, not_before, dedup_key, n)
    LEFT JOIN publishable_topics(require_events.topics) AS t ON t.address = i.topic
    CROSS JOIN LATERAL (SELECT event_problem(
        octet_length(i.payload), i.key, i.type, i.content_type, i.headers::jsonb, i.partition, i.not_before,
        i.dedup_key, t.partitions, t.strategy, t.max_payload_bytes, latest)) AS p (problem)
    WHERE p.problem IS NOT NULL
    ORDER BY i.n
    LIMIT 1;
    IF FOUND THEN
        PERFORM refuse(left(bad.problem, 5),
                       format('event%s for topic "%s": %s', CASE WHEN is_batch THEN ' ' || bad.place END,
                              left(bad.topic, 200), substr(bad.problem, 7)),
                       CASE WHEN is_batch THEN 'Nothing of the batch was published.' ELSE 'Nothing was published.' END);
    END IF;
END
$$;

-- name: publishable_topics
-- Of the given topics, those that exist and to which the login may publish.
CREATE OR REPLACE FUNCTION publishable_topics(addresses text[]) RETURNS SETOF topics
LANGUAGE sql STABLE ROWS 1 AS $$
    SELECT t.*
    FROM (SELECT DISTINCT a.address FROM unnest(addresses) AS a (address)) AS given
    JOIN topics AS t ON t.address = given.address
    WHERE NOT t.restricted OR has_right(t.namespace_id, 'publish')
$$;

-- name: lock_strictly
-- Waits until no other open transaction has published strictly to the same keys, and makes later ones wait for this
-- one. Events without a key wait for each other. The buckets are locked in sorted order, so that two batches do not
-- deadlock. Each topic has buckets of its own, so that publishers of different topics do not wait for each other.
-- WHERE false makes ON CONFLICT lock the row without writing it.
CREATE OR REPLACE FUNCTION lock_strictly(topics text[], keys text[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO strict_locks (topic_id, bucket)
    SELECT DISTINCT t.id, mod(crc32(convert_to(COALESCE(g.key, ''), 'UTF8')), 16384)::integer AS bucket
    FROM (SELECT unnest(topics) AS topic, unnest(keys) AS key) AS g JOIN topics AS t ON t.address = g.topic
    ORDER BY t.id, bucket
    ON CONFLICT ON CONSTRAINT strict_locks_pkey DO UPDATE SET topic_id = excluded.topic_id WHERE false;
END
$$;

-- name: publish
-- Publishes one event in the caller's transaction: it exists if and only if that transaction commits. Returns the
-- event's id; for a duplicate (an event with the same dedup_key in the window), the id of the earlier event. With
-- not_before, readers get the event at that time or later. With strict, events of one key are ordered by their
-- commits. It locks neither topic nor partition. Raises PS002, PS004, PS005, PS006, PS022.
CREATE OR REPLACE FUNCTION publish(
    topic text,
    payload bytea,
    key text DEFAULT NULL,
    type text DEFAULT '',
    content_type text DEFAULT 'application/octet-stream',
    headers jsonb DEFAULT NULL,
    INOUT event_id uuid DEFAULT NULL,
    partition integer DEFAULT NULL,
    not_before timestamptz DEFAULT NULL,
    dedup_key text DEFAULT NULL,
    strict boolean DEFAULT false,
    OUT duplicate boolean
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    turn bigint;
BEGIN
    event_id := COALESCE(event_id, new_event_id());
    -- A plain event that is certainly valid takes one statement, without anything that costs another node of its
    -- plan: checks of the arguments alone are outside the statement. All other events go through the path of a batch.
    IF publish.not_before IS NULL AND publish.dedup_key IS NULL AND publish.strict IS NOT TRUE
       AND GREATEST(char_length(publish.key), char_length(publish.type), char_length(publish.content_type)) <= 255
       AND has_plain_headers(publish.headers)
    THEN
        IF publish.key IS NULL AND publish.partition IS NULL THEN
            turn := nextval('round_robin');
        END IF;
        INSERT INTO events (partition_id, event_id, key, type, content_type, headers, payload)
        SELECT (t.id << 16) | COALESCE(publish.partition, mod(turn, t.partitions)::integer,
                                       partition_of(publish.key, t.partitions)),
               publish.event_id, publish.key, COALESCE(publish.type, ''),
               COALESCE(publish.content_type, 'application/octet-stream'), publish.headers, publish.payload
        FROM topics AS t
        WHERE t.address = publish.topic AND t.strategy = 'crc32' AND NOT t.restricted
          AND t.max_unsequenced_events IS NULL AND t.max_unsequenced_bytes IS NULL
          AND octet_length(publish.payload) <= t.max_payload_bytes
          AND (publish.partition IS NULL OR publish.partition >= 0 AND publish.partition < t.partitions)
        RETURNING false INTO duplicate;
    END IF;
    IF duplicate IS NULL THEN
        PERFORM require_events(
            ARRAY[publish.topic], ARRAY[publish.payload], ARRAY[publish.key], ARRAY[publish.type],
            ARRAY[publish.content_type], ARRAY[publish.headers::text], ARRAY[publish.partition],
            ARRAY[publish.not_before], ARRAY[publish.dedup_key], false);
        SELECT COALESCE(b.original_ids[1], publish.event_id), b.published = 0 INTO event_id, duplicate
        FROM publish_batch(
            ARRAY[publish.topic], ARRAY[publish.payload], ARRAY[publish.key], ARRAY[publish.type],
            ARRAY[publish.content_type], ARRAY[publish.headers::text], ARRAY[publish.event_id],
            ARRAY[publish.partition], ARRAY[publish.not_before], ARRAY[publish.dedup_key], publish.strict) AS b;
    END IF;
END
$$;

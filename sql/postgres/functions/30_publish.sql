-- name: headers_problem
-- What is wrong with the headers of an event, or NULL. What a reader's JSON parser cannot take must not
-- get into the log: the limits are an object of 64 KiB of text, 32 levels and numbers of 400 digits.
-- STRICT: without headers it costs nothing.
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
    -- 33 levels are at least 70 characters. A regular expression counts to 255 at most, hence two counts; what looks
    -- like a long number may stand in a string, so those are taken out before the second look.
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
-- Whether headers are surely right, told without a call: an object of at most 400 characters, and with less binary JSON
-- than 33 levels need. It becomes a part of the query that calls it.
CREATE OR REPLACE FUNCTION has_plain_headers(headers jsonb) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT headers IS NULL
        OR jsonb_typeof(headers) = 'object' AND pg_column_size(headers) < 264
           AND pg_column_compression(headers) IS NULL AND octet_length(headers::text) <= 400
$$;

-- name: event_problem
-- What is wrong with an event, as 'SQLSTATE problem', or NULL. One rule for publish, publish_batch and
-- publish_bulk. STABLE as the || of numbers is, so that it becomes a part of the query that calls it.
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
-- Checks every event of a batch; the error names the first that is wrong by its place (from 0), or without one when
-- there is but one. Raises PS002, PS004, PS005, PS006.
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
-- Of some topics, those that there are and that the login may publish to.
CREATE OR REPLACE FUNCTION publishable_topics(addresses text[]) RETURNS SETOF topics
LANGUAGE sql STABLE ROWS 1 AS $$
    SELECT t.*
    FROM (SELECT DISTINCT a.address FROM unnest(addresses) AS a (address)) AS given
    JOIN topics AS t ON t.address = given.address
    WHERE NOT t.restricted OR has_right(t.namespace_id, 'publish')
$$;

-- name: lock_strictly
-- Waits until no other open transaction has published strictly to the same keys, and makes later ones wait
-- for this one. What has no key waits for what has none. Buckets are taken in sorted order, so batches do not
-- wait crosswise; each topic has its own, so that nobody waits for publishers of another. What conflicts is
-- locked, and not written: WHERE false.
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
-- Publishes one event in the caller's transaction: it exists if and only if that transaction commits. Answers its
-- id, or of a duplicate (an event with the same dedup_key in the window) the id of the earlier one. Not before a
-- time, if one is given; strict takes the order of commits for events of one key. Takes no lock on topic or
-- partition. Raises PS002, PS004, PS005, PS006, PS022.
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
    -- The plain event that is surely right takes one statement, without anything that costs another node of its plan:
    -- what can be told of the arguments alone is asked outside. Whatever is more than that goes the way of a batch.
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

-- name: publish_batch
-- Publishes many events in one statement, in array order. Answers how many, and the duplicates: their places (from 0),
-- and in the same order the ids of the earlier events that have their dedup keys. An event that is wrong refuses all of
-- them, and the error names its place. Raises PS002, PS004, PS005, PS006, PS022.
CREATE OR REPLACE FUNCTION publish_batch(
    topics text[], payloads bytea[], keys text[], types text[], content_types text[],
    headers text[], event_ids uuid[], partitions integer[], not_befores timestamptz[] DEFAULT NULL,
    dedup_keys text[] DEFAULT NULL, strict boolean DEFAULT false,
    OUT published bigint, OUT duplicates integer[], OUT original_ids uuid[]
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    originals uuid[];
    latest timestamptz;
    earliest timestamptz;
BEGIN
    duplicates := '{}'; original_ids := '{}';
    IF not_befores IS NOT NULL THEN
        latest := latest_due();
        earliest := clock_timestamp();
    END IF;
    IF dedup_keys IS NOT NULL OR strict
       OR GREATEST(cardinality(payloads), cardinality(keys), cardinality(types), cardinality(content_types),
                   cardinality(publish_batch.headers), cardinality(event_ids), cardinality(publish_batch.partitions),
                   cardinality(not_befores)) > COALESCE(cardinality(publish_batch.topics), 0)
       OR EXISTS (
           SELECT FROM topics AS t
           WHERE t.max_unsequenced_events IS NOT NULL OR t.max_unsequenced_bytes IS NOT NULL)
    THEN
        PERFORM require_events(publish_batch.topics, payloads, keys, types, content_types, publish_batch.headers,
                               publish_batch.partitions, not_befores, dedup_keys, true);
        publish_batch.partitions := relieved_partitions(publish_batch.topics, keys, publish_batch.partitions);
        IF strict THEN
            PERFORM lock_strictly(publish_batch.topics, keys);
        END IF;
        IF dedup_keys IS NOT NULL THEN
            SELECT array_agg(COALESCE(g.event_id, new_event_id()) ORDER BY g.place) INTO event_ids
            FROM (SELECT unnest(event_ids) AS event_id, generate_subscripts(publish_batch.topics, 1) AS place) AS g;
            originals := claim_dedup_keys(publish_batch.topics, dedup_keys, event_ids);
            SELECT COALESCE(array_agg(o.n - 1 ORDER BY o.n), '{}'), COALESCE(array_agg(o.id ORDER BY o.n), '{}')
            INTO duplicates, original_ids
            FROM unnest(originals) WITH ORDINALITY AS o (id, n)
            WHERE o.id IS NOT NULL;
        END IF;
    END IF;
    INSERT INTO events (partition_id, event_id, key, type, content_type, headers, payload, due_at)
    SELECT choose_partition(t.id, t.partitions, t.strategy, i.key, i.partition), COALESCE(i.event_id, new_event_id()),
           i.key, COALESCE(i.type, ''), COALESCE(i.content_type, 'application/octet-stream'), i.headers, i.payload,
           CASE WHEN i.not_before > earliest THEN i.not_before END
    FROM (
        -- Side by side in a SELECT they are taken element by element, in FROM each would be written to a table first.
        SELECT unnest(publish_batch.topics) AS topic, unnest(payloads) AS payload, unnest(keys) AS key,
               unnest(types) AS type, unnest(content_types) AS content_type,
               unnest(publish_batch.headers)::jsonb AS headers, unnest(event_ids) AS event_id,
               unnest(publish_batch.partitions) AS partition, unnest(not_befores) AS not_before,
               unnest(originals) AS original, generate_subscripts(publish_batch.topics, 1) AS n
    ) AS i
    JOIN publishable_topics(publish_batch.topics) AS t ON t.address = i.topic
    WHERE i.original IS NULL
      AND event_problem(
          octet_length(i.payload), i.key, i.type, i.content_type, i.headers, i.partition, i.not_before, NULL,
          t.partitions, t.strategy, t.max_payload_bytes, latest) IS NULL
    ORDER BY i.n;
    GET DIAGNOSTICS published = ROW_COUNT;
    IF published + cardinality(duplicates) < cardinality(publish_batch.topics) THEN
        PERFORM require_events(publish_batch.topics, payloads, keys, types, content_types, publish_batch.headers,
                               publish_batch.partitions, not_befores, dedup_keys, true);
    END IF;
END
$$;

-- name: relieved_partitions
-- The partitions of a batch, chosen already where a topic has a limit for what waits, which is then held.
CREATE OR REPLACE FUNCTION relieved_partitions(topics text[], keys text[], partitions integer[]) RETURNS integer[]
LANGUAGE plpgsql AS $$
DECLARE
    chosen record;
BEGIN
    SELECT array_agg(c.id) FILTER (WHERE c.id IS NOT NULL) AS limited,
           array_agg(CASE WHEN c.id IS NULL THEN c.partition ELSE (c.id & 65535)::integer END ORDER BY c.n)
               AS partitions
    INTO chosen
    FROM (
        SELECT g.n, g.partition, CASE WHEN t.max_unsequenced_events IS NOT NULL OR t.max_unsequenced_bytes IS NOT NULL
            THEN choose_partition(t.id, t.partitions, t.strategy, g.key, g.partition) END AS id
        FROM (SELECT unnest(relieved_partitions.topics) AS topic, unnest(keys) AS key,
                     unnest(relieved_partitions.partitions) AS partition,
                     generate_subscripts(relieved_partitions.topics, 1) AS n) AS g
        JOIN topics AS t ON t.address = g.topic
        OFFSET 0
    ) AS c;
    IF chosen.limited IS NULL THEN
        RETURN relieved_partitions.partitions;
    END IF;
    PERFORM refuse_under_pressure(chosen.limited);
    RETURN chosen.partitions;
END
$$;

-- name: prepare_bulk
-- Makes the caller's temporary table for COPY. It belongs to Penstock's owner, so that publish_bulk, which runs with
-- the owner's rights, never reads a table whose code somebody else wrote.
CREATE OR REPLACE FUNCTION prepare_bulk() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    IF to_regclass('pg_temp.penstock_bulk') IS NULL THEN
        CREATE TEMPORARY TABLE penstock_bulk (
            place bigint GENERATED ALWAYS AS IDENTITY,
            topic text NOT NULL,
            event_id uuid,
            key text,
            type text,
            content_type text,
            headers jsonb,
            payload bytea NOT NULL,
            partition integer,
            not_before timestamptz
        ) ON COMMIT DELETE ROWS;
        GRANT INSERT ON penstock_bulk TO PUBLIC;
    END IF;
END
$$;

-- name: publish_bulk
-- Publishes what was copied into penstock_bulk since prepare_bulk, in that order; answers how many. Knows no dedup keys
-- and no strict order. Raises as publish_batch does; PS006 when the table is not the one that prepare_bulk made.
CREATE OR REPLACE FUNCTION publish_bulk() RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET work_mem = '64MB' AS $$
DECLARE
    latest timestamptz := latest_due();
    addresses text[];
    copied bigint;
    published bigint;
BEGIN
    IF NOT EXISTS (
        SELECT FROM pg_class AS c
        WHERE c.oid = to_regclass('pg_temp.penstock_bulk') AND c.relkind = 'r'
          AND c.relowner = (SELECT r.oid FROM pg_roles AS r WHERE r.rolname = current_user)
    ) THEN
        PERFORM refuse('PS006', 'there is no prepared table penstock_bulk', 'Call prepare_bulk() first.');
    END IF;
    SELECT array_agg(g.topic), COALESCE(sum(g.events), 0) INTO addresses, copied
    FROM (SELECT b.topic, count(*) AS events FROM pg_temp.penstock_bulk AS b GROUP BY b.topic) AS g;
    IF EXISTS (
        SELECT FROM topics AS t
        WHERE t.max_unsequenced_events IS NOT NULL OR t.max_unsequenced_bytes IS NOT NULL
    ) THEN
        PERFORM require_bulk(addresses);
        PERFORM relieve_bulk();
    END IF;
    INSERT INTO events (partition_id, event_id, key, type, content_type, headers, payload, due_at)
    SELECT choose_partition(t.id, t.partitions, t.strategy, i.key, i.partition), COALESCE(i.event_id, new_event_id()),
           i.key, COALESCE(i.type, ''), COALESCE(i.content_type, 'application/octet-stream'), i.headers, i.payload,
           CASE WHEN i.not_before > clock_timestamp() THEN i.not_before END
    FROM pg_temp.penstock_bulk AS i
    JOIN publishable_topics(addresses) AS t ON t.address = i.topic
    WHERE event_problem(
          octet_length(i.payload), i.key, i.type, i.content_type, i.headers, i.partition, i.not_before, NULL,
          t.partitions, t.strategy, t.max_payload_bytes, latest) IS NULL
    ORDER BY i.place;
    GET DIAGNOSTICS published = ROW_COUNT;
    IF published < copied THEN
        PERFORM require_bulk(addresses);
    END IF;
    TRUNCATE pg_temp.penstock_bulk;
    RETURN published;
END
$$;

-- name: require_bulk
-- Checks every event that was copied; raises as require_events does.
CREATE OR REPLACE FUNCTION require_bulk(addresses text[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    latest timestamptz := latest_due();
    bad record;
BEGIN
    SELECT i.place, i.topic, p.problem INTO bad
    FROM pg_temp.penstock_bulk AS i
    LEFT JOIN publishable_topics(addresses) AS t ON t.address = i.topic
    CROSS JOIN LATERAL (SELECT event_problem(
        octet_length(i.payload), i.key, i.type, i.content_type, i.headers, i.partition, i.not_before, NULL,
        t.partitions, t.strategy, t.max_payload_bytes, latest)) AS p (problem)
    WHERE p.problem IS NOT NULL
    ORDER BY i.place
    LIMIT 1;
    IF FOUND THEN
        PERFORM refuse(left(bad.problem, 5),
                       format('event for topic "%s": %s', left(bad.topic, 200), substr(bad.problem, 7)),
                       'Nothing of the copy was published.');
    END IF;
END
$$;

-- name: relieve_bulk
-- Chooses the partitions of what was copied for topics that have a limit, and holds it.
CREATE OR REPLACE FUNCTION relieve_bulk() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    limited bigint[];
BEGIN
    WITH chosen AS (
        UPDATE pg_temp.penstock_bulk AS b
        SET partition = choose_partition(t.id, t.partitions, t.strategy, b.key, b.partition) & 65535
        FROM topics AS t
        WHERE t.address = b.topic AND (t.max_unsequenced_events IS NOT NULL OR t.max_unsequenced_bytes IS NOT NULL)
        RETURNING (t.id << 16) | b.partition AS id
    )
    SELECT array_agg(DISTINCT c.id) INTO limited FROM chosen AS c;
    IF limited IS NOT NULL THEN
        PERFORM refuse_under_pressure(limited);
    END IF;
END
$$;

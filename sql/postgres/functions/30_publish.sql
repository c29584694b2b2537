-- name: headers_problem
-- What is wrong with the headers of an event, or NULL. What a reader's JSON parser cannot take must not get into the log:
-- the limits are an object of 64 KiB of text, 32 levels and numbers of 400 digits. STRICT: without headers it costs nothing.
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
       AND regexp_replace(written, '"([^"\\]|\\.)*"', '', 'g') ~ '[0-9]{201}[0-9]{200}' THEN
        RETURN 'its headers hold a number of more than 400 digits';
    END IF;
    RETURN NULL;
END
$$;

-- name: event_problem
-- What is wrong with an event, as 'SQLSTATE problem', or NULL. One rule for publish, publish_batch and publish_bulk. STABLE as
-- the || of numbers is, so that it becomes a part of the query that calls it.
CREATE OR REPLACE FUNCTION event_problem(
    payload_bytes integer, key text, type text, content_type text, headers jsonb,
    partition integer, partitions integer, max_payload_bytes integer
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
        WHEN headers_problem(headers) IS NOT NULL THEN 'PS006 ' || headers_problem(headers)
        WHEN partition < 0 OR partition >= partitions
            THEN 'PS005 partition ' || partition || ' does not exist, the topic has ' || partitions
    END
$$;

-- name: partition_for
-- The partition of an event: the one that was asked for, else by key, else the next in turn.
CREATE OR REPLACE FUNCTION partition_for(topic_id bigint, partitions integer, key text, partition integer)
RETURNS bigint
LANGUAGE sql VOLATILE AS $$
    SELECT (topic_id << 16) | CASE
        WHEN partition IS NOT NULL THEN partition
        WHEN key IS NOT NULL THEN partition_of(key, partitions)
        ELSE mod(nextval('round_robin'), partitions)::integer
    END
$$;

-- name: publish
-- Publishes one event in the caller's transaction: it exists if and only if that transaction commits. Answers the
-- event id. Takes no lock on topic or partition. Raises PS002, PS004, PS005, PS006.
CREATE OR REPLACE FUNCTION publish(
    topic text,
    payload bytea,
    key text DEFAULT NULL,
    type text DEFAULT '',
    content_type text DEFAULT 'application/octet-stream',
    headers jsonb DEFAULT NULL,
    event_id uuid DEFAULT NULL,
    partition integer DEFAULT NULL
) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    target record;
    problem text;
    id uuid := COALESCE(publish.event_id, new_event_id());
BEGIN
    SELECT t.id, t.partitions, t.max_payload_bytes INTO target FROM topics AS t WHERE t.address = publish.topic;
    problem := event_problem(
        octet_length(payload), publish.key, publish.type, publish.content_type, publish.headers,
        publish.partition, target.partitions, target.max_payload_bytes);
    IF problem IS NOT NULL THEN
        PERFORM refuse(left(problem, 5), format('event for topic "%s": %s', topic, substr(problem, 7)),
                       'Nothing was published.');
    END IF;
    INSERT INTO events (partition_id, event_id, key, type, content_type, headers, payload)
    VALUES (
        partition_for(target.id, target.partitions, publish.key, publish.partition),
        id, publish.key, COALESCE(publish.type, ''),
        COALESCE(publish.content_type, 'application/octet-stream'), publish.headers, publish.payload);
    RETURN id;
END
$$;

-- name: publish_batch
-- Publishes many events in one statement, in array order; answers how many. An event that is wrong refuses all of
-- them, and the error names its place (from 0).
CREATE OR REPLACE FUNCTION publish_batch(
    topics text[], payloads bytea[], keys text[], types text[], content_types text[],
    headers text[], event_ids uuid[], partitions integer[]
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    bad record;
    published bigint;
BEGIN
    SELECT i.n - 1 AS place, i.topic, p.problem INTO bad
    FROM unnest(publish_batch.topics, payloads, keys, types, content_types, publish_batch.headers,
                publish_batch.partitions)
        WITH ORDINALITY AS i (topic, payload, key, type, content_type, headers, partition, n)
    LEFT JOIN topics AS t ON t.address = i.topic
    -- In a SELECT of its own, the rule becomes a part of the query; as a table it would be called for each event.
    CROSS JOIN LATERAL (SELECT event_problem(
        octet_length(i.payload), i.key, i.type, i.content_type, i.headers::jsonb,
        i.partition, t.partitions, t.max_payload_bytes)) AS p (problem)
    WHERE p.problem IS NOT NULL
    ORDER BY i.n
    LIMIT 1;
    IF FOUND THEN
        PERFORM refuse(left(bad.problem, 5),
                       format('event %s for topic "%s": %s', bad.place, bad.topic, substr(bad.problem, 7)),
                       'Nothing of the batch was published.');
    END IF;
    INSERT INTO events (partition_id, event_id, key, type, content_type, headers, payload)
    SELECT partition_for(t.id, t.partitions, i.key, i.partition), COALESCE(i.event_id, new_event_id()), i.key,
           COALESCE(i.type, ''), COALESCE(i.content_type, 'application/octet-stream'), i.headers::jsonb, i.payload
    FROM unnest(publish_batch.topics, payloads, keys, types, content_types, publish_batch.headers, event_ids,
                publish_batch.partitions)
        WITH ORDINALITY AS i (topic, payload, key, type, content_type, headers, event_id, partition, n)
    JOIN topics AS t ON t.address = i.topic
    ORDER BY i.n;
    GET DIAGNOSTICS published = ROW_COUNT;
    RETURN published;
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
            partition integer
        ) ON COMMIT DELETE ROWS;
        GRANT INSERT ON penstock_bulk TO PUBLIC;
    END IF;
END
$$;

-- name: publish_bulk
-- Publishes what was copied into penstock_bulk since prepare_bulk, in that order; answers how many. Raises as
-- publish_batch does; PS006 when the table is not the one that prepare_bulk made.
CREATE OR REPLACE FUNCTION publish_bulk() RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    bad record;
    published bigint;
BEGIN
    IF NOT EXISTS (
        SELECT FROM pg_class AS c
        WHERE c.oid = to_regclass('pg_temp.penstock_bulk') AND c.relkind = 'r'
          AND c.relowner = (SELECT r.oid FROM pg_roles AS r WHERE r.rolname = current_user)
    ) THEN
        PERFORM refuse('PS006', 'there is no prepared table penstock_bulk', 'Call prepare_bulk() first.');
    END IF;
    SELECT i.place, i.topic, p.problem INTO bad
    FROM pg_temp.penstock_bulk AS i
    LEFT JOIN topics AS t ON t.address = i.topic
    CROSS JOIN LATERAL (SELECT event_problem(
        octet_length(i.payload), i.key, i.type, i.content_type, i.headers,
        i.partition, t.partitions, t.max_payload_bytes)) AS p (problem)
    WHERE p.problem IS NOT NULL
    ORDER BY i.place
    LIMIT 1;
    IF FOUND THEN
        PERFORM refuse(left(bad.problem, 5),
                       format('event for topic "%s": %s', bad.topic, substr(bad.problem, 7)),
                       'Nothing of the copy was published.');
    END IF;
    INSERT INTO events (partition_id, event_id, key, type, content_type, headers, payload)
    SELECT partition_for(t.id, t.partitions, i.key, i.partition), COALESCE(i.event_id, new_event_id()), i.key,
           COALESCE(i.type, ''), COALESCE(i.content_type, 'application/octet-stream'), i.headers, i.payload
    FROM pg_temp.penstock_bulk AS i JOIN topics AS t ON t.address = i.topic
    ORDER BY i.place;
    GET DIAGNOSTICS published = ROW_COUNT;
    TRUNCATE pg_temp.penstock_bulk;
    RETURN published;
END
$$;

-- name: publish_batch
-- Publishes many events in one statement, in array order. Returns how many, and the duplicates: their places (from 0)
-- and, in the same order, the ids of the earlier events with the same dedup keys. If one event is wrong, none is
-- published, and the error names its place. Raises PS002, PS004, PS005, PS006, PS022.
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
        -- Next to each other in a SELECT they are expanded element by element; in FROM each would be written to a
        -- table first.
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
-- The partitions of a batch. Where a topic has a limit of back pressure, this chooses the partitions of its
-- events and enforces the limit.
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
-- the owner's rights, never reads a table that carries the code of another user.
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
-- Publishes what was copied into penstock_bulk since prepare_bulk, in that order. Returns how many. It supports
-- neither dedup keys nor strict order. Raises as publish_batch does; PS006 when the table is not the one that
-- prepare_bulk made.
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
-- Chooses the partitions of the copied events for topics that have a limit of back pressure, and enforces the
-- limit.
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

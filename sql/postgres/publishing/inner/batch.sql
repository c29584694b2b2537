-- By design: PostgreSQL publishes a batch in one statement; MySQL takes ids in blocks first, and inserts in steps.

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
    WHERE NOT t.restricted AND (SELECT as_login()) OR has_right(t.namespace_id, 'publish')
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

-- By design: MySQL has no COPY.

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

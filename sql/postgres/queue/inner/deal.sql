-- name: newest_turn
-- What the dealer of a queue found last. Of a queue whose last turns were dropped with their slice nothing is known: it
-- is looked at from its beginning.
CREATE OR REPLACE FUNCTION newest_turn(subscription_id bigint) RETURNS queue_turns
LANGUAGE plpgsql STABLE AS $$
DECLARE
    newest queue_turns%ROWTYPE;
BEGIN
    SELECT t.* INTO newest
    FROM queue_turns AS t
    WHERE t.subscription_id = newest_turn.subscription_id
    ORDER BY t.id DESC
    LIMIT 1;
    IF NOT FOUND THEN
        newest := ROW(0, newest_turn.subscription_id, 0, 0, 0, 1, '-infinity')::queue_turns;
    END IF;
    RETURN newest;
END
$$;

-- name: has_undealt
-- Whether a partition has events that a queue has not dealt. The end of the log is looked up in the query: a call of
-- high_watermark for each partition takes three times as long. In plpgsql, because a session plans it once then.
CREATE OR REPLACE FUNCTION has_undealt(subscription_id bigint) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM leases AS l
        CROSS JOIN LATERAL (
            SELECT COALESCE(p.reached, p.position) AS reached
            FROM positions AS p
            WHERE p.subscription_id = l.subscription_id AND p.partition_id = l.partition_id
            ORDER BY p.id DESC
            LIMIT 1
        ) AS stands
        CROSS JOIN LATERAL (
            SELECT c.first_sequence + c.event_count - 1 AS watermark
            FROM chunks AS c
            WHERE c.partition_id = l.partition_id
            ORDER BY c.first_sequence DESC
            LIMIT 1
        ) AS log
        WHERE l.subscription_id = has_undealt.subscription_id AND log.watermark > stands.reached);
END
$$;

-- name: deal
-- Cuts what a queue has not dealt into ranges, the oldest of each partition first, by turns over the partitions.
CREATE OR REPLACE FUNCTION deal(owner_id bigint, range_size integer, room bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF room <= 0 THEN
        RETURN;
    END IF;
    WITH shared AS MATERIALIZED (
        SELECT u.* FROM undealt_parts(owner_id, room, range_size) AS u
    ), dealt AS (
        INSERT INTO queue_ranges (
            subscription_id, partition_id, first_sequence, last_sequence, event_ids, sequenced_at)
        SELECT owner_id, f.partition_id, f.first, f.last, f.event_ids, f.sequenced_at
        FROM (
            SELECT array_agg(s.partition_id) AS ids, array_agg(s.after) AS afters, array_agg(s.until) AS untils
            FROM shared AS s
        ) AS g
        CROSS JOIN LATERAL ranges_of(g.ids, g.afters, g.untils, range_size) AS f
        ORDER BY f.place, f.partition_id
    )
    INSERT INTO positions (subscription_id, partition_id, position, lease_epoch, reason, reached)
    SELECT owner_id, s.partition_id, s.position, s.lease_epoch, 'queue', s.until
    FROM shared AS s;
END
$$;

-- name: ranges_of
-- The ranges of parts of partitions, and how far each is from the beginning of its part. Short ones come with the ids
-- and times of their events, as far as one row of the index of the log has those of a range: here such a row is read
-- once for all its ranges, and in a receive once for each. Of rows that were merged they are left out, because each of
-- those events has a time of its own.
CREATE OR REPLACE FUNCTION ranges_of(part_ids bigint[], afters bigint[], untils bigint[], range_size integer)
RETURNS TABLE (
    partition_id bigint, first bigint, last bigint, place bigint, event_ids bigint[], sequenced_at timestamptz
)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF range_size > 10 THEN
        RETURN QUERY
        SELECT p.id, s, LEAST(s + range_size - 1, p.until), s - p.after, NULL::bigint[], NULL::timestamptz
        FROM unnest(part_ids, afters, untils) AS p (id, after, until)
        CROSS JOIN LATERAL generate_series(p.after + 1, p.until, range_size) AS s;
        RETURN;
    END IF;
    RETURN QUERY
    WITH indexed AS MATERIALIZED (
        -- A part of an array is in memory, and is cut further at no cost.
        SELECT p.id, p.after, p.until, n.sequenced_at, GREATEST(n.first_sequence, p.after + 1) AS first,
               LEAST(n.first_sequence + n.event_count - 1, p.until) AS last,
               n.event_ids[GREATEST(p.after + 2 - n.first_sequence, 1):p.until + 1 - n.first_sequence] AS event_ids
        FROM unnest(part_ids, afters, untils) AS p (id, after, until)
        CROSS JOIN LATERAL (
            SELECT c.*
            FROM chunks AS c
            WHERE c.partition_id = p.id AND c.first_sequence <= p.until AND c.first_sequence >= COALESCE((
                SELECT b.first_sequence
                FROM chunks AS b
                WHERE b.partition_id = p.id AND b.first_sequence <= p.after + 1
                ORDER BY b.first_sequence DESC
                LIMIT 1), 0)
        ) AS n
        WHERE n.sequenced_ats IS NULL
    ), located AS (
        SELECT i.id, s AS first, i.sequenced_at, i.event_ids[s - i.first + 1:s - i.first + range_size] AS event_ids
        FROM indexed AS i
        CROSS JOIN LATERAL generate_series(
            i.after + 1 + (i.first - i.after + range_size - 2) / range_size * range_size, i.last, range_size) AS s
        -- All events of a range or none: of one that is cut later, fewer are left than it has ids.
        WHERE LEAST(s + range_size - 1, i.until) <= i.last
    )
    SELECT p.id, s, LEAST(s + range_size - 1, p.until), s - p.after, l.event_ids, l.sequenced_at
    FROM unnest(part_ids, afters, untils) AS p (id, after, until)
    CROSS JOIN LATERAL generate_series(p.after + 1, p.until, range_size) AS s
    LEFT JOIN located AS l ON l.id = p.id AND l.first = s;
END
$$;

-- name: undealt_parts
-- The partitions of which a queue has not dealt all, locked, and up to where it shall deal each. Room is shared out in
-- whole ranges, because a receive of many short ones takes several times as long; when there are fewer ranges than
-- partitions, chance chooses. A lease row that is locked is left to the next turn. What was dropped before it was dealt
-- is passed over, and recorded.
CREATE OR REPLACE FUNCTION undealt_parts(owner_id bigint, room bigint, range_size integer)
RETURNS TABLE (partition_id bigint, lease_epoch bigint, "position" bigint, after bigint, until bigint)
LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
    WITH grown AS MATERIALIZED (
        SELECT l.partition_id, l.lease_epoch, stands.position,
               GREATEST(stands.reached, p.low_sequence - 1) AS after, log.watermark, stands.reached, p.low_sequence
        FROM leases AS l
        JOIN partitions AS p ON p.id = l.partition_id
        CROSS JOIN LATERAL (
            SELECT o.position, COALESCE(o.reached, o.position) AS reached
            FROM positions AS o
            WHERE o.subscription_id = l.subscription_id AND o.partition_id = l.partition_id
            ORDER BY o.id DESC
            LIMIT 1
        ) AS stands
        CROSS JOIN LATERAL (
            SELECT c.first_sequence + c.event_count - 1 AS watermark
            FROM chunks AS c
            WHERE c.partition_id = l.partition_id
            ORDER BY c.first_sequence DESC
            LIMIT 1
        ) AS log
        WHERE l.subscription_id = owner_id AND log.watermark > stands.reached
        FOR NO KEY UPDATE OF l SKIP LOCKED
    ), passed AS (
        INSERT INTO skips (
            subscription_id, partition_id, log_epoch, first_sequence, last_sequence, max_lag_seconds, policy_version,
            run, skipped_at, reason)
        SELECT s.id, e.partition_id, e.log_epoch, GREATEST(e.first_sequence, n.reached + 1), e.last_sequence,
               s.max_lag_seconds, 0, '00000000-0000-0000-0000-000000000000', clock_timestamp(), 'passed'
        FROM grown AS n
        JOIN subscriptions AS s ON s.id = owner_id
        JOIN log_epochs AS e ON e.partition_id = n.partition_id AND e.last_sequence > n.reached
        WHERE n.reached < n.low_sequence - 1 AND e.first_sequence < n.low_sequence
        ON CONFLICT DO NOTHING
    )
    SELECT g.partition_id, g.lease_epoch, g.position, g.after,
           LEAST(g.watermark, g.after + LEAST(room, GREATEST(room / range_size / g.parts, 1) * range_size))
    FROM (
        SELECT n.*, count(*) OVER () AS parts, row_number() OVER (ORDER BY random()) AS place FROM grown AS n
    ) AS g
    WHERE g.place <= GREATEST(room / range_size, 1);
END
$$;

-- name: backlog_of
-- How much of a partition is unread, redriven dead letters included.
CREATE OR REPLACE FUNCTION backlog_of(subscription_id bigint, partition_id bigint) RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT high_watermark(partition_id) - current_position(subscription_id, partition_id)
        + redriven_letters(subscription_id, partition_id)
$$;

-- name: find_active
-- Whether partitions of a subscription are active. A partition is active when it has unread events or redriven dead
-- letters, or when it is held and was read a moment ago, so that its lease is kept over a short pause between two
-- events. It looks at all partitions that were not active or are not held, and at a part of the others, chosen by
-- their random keys. The high watermark is read last, because it costs most.
CREATE OR REPLACE FUNCTION find_active(
    subscription_id bigint, first_key double precision, share double precision, now timestamptz
) RETURNS TABLE (partition_id bigint, active boolean, was_active boolean)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT
SET enable_nestloop = off SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT l.partition_id,
           CASE WHEN l.holder IS NOT NULL AND GREATEST(p.at, l.acquired_at) > find_active.now - interval '30 seconds'
                    THEN true
                ELSE p.position < (
                    -- The query of high_watermark(): a call of the function would cost three times as much.
                    SELECT c.first_sequence + c.event_count - 1
                    FROM chunks AS c
                    WHERE c.partition_id = l.partition_id
                    ORDER BY c.first_sequence DESC
                    LIMIT 1) OR redriven_letters(l.subscription_id, l.partition_id) > 0 END,
           l.was_active
    FROM (
        SELECT o.*, a.partition_id IS NOT NULL AS was_active, o.random_key - find_active.first_key AS place
        FROM leases AS o
        LEFT JOIN active_partitions AS a ON a.subscription_id = o.subscription_id AND a.partition_id = o.partition_id
        WHERE o.subscription_id = find_active.subscription_id
    ) AS l
    CROSS JOIN LATERAL (
        SELECT q.position, q.at
        FROM positions AS q
        WHERE q.subscription_id = l.subscription_id AND q.partition_id = l.partition_id
        ORDER BY q.id DESC
        LIMIT 1
    ) AS p
    WHERE NOT l.was_active OR l.state = 'AVAILABLE' OR l.place - floor(l.place) < find_active.share;
END
$$;

-- name: survey
-- Records which partitions are active, unless that was done after the given time: all check-ins share what one of
-- them has found. The caller has locked the subscription's row, so that one check-in looks while the others wait and
-- need not look again. Partitions that were active and are held are looked at within ten seconds, a part of them each
-- time, unless the caller asks for all. Returns whether it looked.
CREATE OR REPLACE FUNCTION survey(
    owner subscriptions, since timestamptz, whole boolean, now timestamptz
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    known surveys%ROWTYPE;
    turn double precision;
BEGIN
    -- One that lies ahead was made before the clock was set back.
    SELECT * INTO known FROM surveys AS v WHERE v.subscription_id = owner.id AND v.made_at <= now;
    IF known.made_at >= since THEN
        RETURN false;
    END IF;
    turn := COALESCE(extract(epoch FROM known.made_at) / 10, 0);
    WITH found AS MATERIALIZED (
        SELECT f.partition_id, f.active
        FROM find_active(owner.id, turn - floor(turn),
                         CASE WHEN whole THEN 1 ELSE extract(epoch FROM now) / 10 - turn END, now) AS f
        WHERE f.active <> f.was_active
    ), gone AS (
        DELETE FROM active_partitions AS a
        USING found AS f
        WHERE a.subscription_id = owner.id AND a.partition_id = f.partition_id AND NOT f.active
    )
    INSERT INTO active_partitions (subscription_id, partition_id)
    SELECT owner.id, f.partition_id FROM found AS f WHERE f.active;
    INSERT INTO surveys (subscription_id, made_at, pace_seconds)
    SELECT owner.id, now, count(*) / owner.target_qps FROM consumers AS c WHERE c.subscription_id = owner.id
    ON CONFLICT ON CONSTRAINT surveys_pkey DO UPDATE
    SET made_at = EXCLUDED.made_at, pace_seconds = EXCLUDED.pace_seconds;
    RETURN true;
END
$$;

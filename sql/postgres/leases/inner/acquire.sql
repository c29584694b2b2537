-- name: release_surplus
-- Asks a consumer to give back what it holds above its quota, but only while the others lack more partitions than are
-- free. Partitions with the smallest backlog come first. A partition that is no longer active is given back whatever
-- the quota. Returns how many it asked for.
CREATE OR REPLACE FUNCTION release_surplus(
    owner subscriptions, consumer text, topic_ids bigint[], surplus bigint, now timestamptz
) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    asked integer;
BEGIN
    WITH held AS MATERIALIZED (
        SELECT l.partition_id, backlog_of(owner.id, l.partition_id) AS backlog
        FROM leases AS l
        WHERE l.subscription_id = owner.id AND l.holder = consumer AND l.state = 'ACTIVE'
          AND (topic_ids IS NULL OR l.partition_id >> 16 = ANY (topic_ids))
    ), ordered AS (
        -- A partition that got events since the survey is active again.
        SELECT h.partition_id, (h.backlog > 0 OR a.partition_id IS NOT NULL) AS active, row_number() OVER (
            PARTITION BY h.backlog > 0 OR a.partition_id IS NOT NULL ORDER BY h.backlog, h.partition_id) AS place
        FROM held AS h
        LEFT JOIN active_partitions AS a ON a.subscription_id = owner.id AND a.partition_id = h.partition_id
    ), chosen AS (
        SELECT l.partition_id
        FROM ordered AS o
        JOIN leases AS l ON l.subscription_id = owner.id AND l.partition_id = o.partition_id
        -- Checked again on the row itself: since the first look the lease may have been given back or taken by a
        -- seek.
        WHERE l.holder = consumer AND l.state = 'ACTIVE' AND (NOT o.active OR o.place <= surplus)
        ORDER BY l.partition_id
        FOR UPDATE OF l SKIP LOCKED
    ), changed AS (
        UPDATE leases AS l
        SET state = 'RELEASING', release_deadline = now + make_interval(secs => owner.release_seconds)
        FROM chosen AS c
        WHERE l.subscription_id = owner.id AND l.partition_id = c.partition_id
        RETURNING l.partition_id, l.lease_epoch
    )
    INSERT INTO lease_history (subscription_id, partition_id, lease_epoch, holder, change, at)
    SELECT owner.id, c.partition_id, c.lease_epoch, consumer, 'releasing', now FROM changed AS c;
    GET DIAGNOSTICS asked = ROW_COUNT;
    RETURN asked;
END
$$;

-- name: acquire
-- Leases up to shortage free partitions with unread events. It starts at a random place and wraps around, so that
-- consumers do not compete for the same ones. Every acquisition raises lease_epoch. Returns how many it leased.
CREATE OR REPLACE FUNCTION acquire(
    subscription_id bigint, consumer text, topic_ids bigint[], shortage bigint, now timestamptz
) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    pivot double precision := random();
    taken integer;
BEGIN
    WITH free AS (
        SELECT l.partition_id
        FROM leases AS l
        JOIN active_partitions AS a ON a.subscription_id = l.subscription_id AND a.partition_id = l.partition_id
        WHERE l.subscription_id = acquire.subscription_id AND l.state = 'AVAILABLE'
          AND (topic_ids IS NULL OR l.partition_id >> 16 = ANY (topic_ids))
        ORDER BY l.random_key < pivot, l.random_key
        OFFSET 0  -- First the order, then the look at each: it ends with the last one that is wanted.
    ), wanted AS (
        SELECT f.partition_id
        FROM free AS f
        WHERE backlog_of(acquire.subscription_id, f.partition_id) > 0
        LIMIT shortage
    ), chosen AS (
        SELECT l.partition_id
        FROM wanted AS w
        JOIN leases AS l ON l.subscription_id = acquire.subscription_id AND l.partition_id = w.partition_id
        WHERE l.state = 'AVAILABLE'
        ORDER BY l.partition_id
        FOR UPDATE OF l SKIP LOCKED
    ), changed AS (
        UPDATE leases AS l
        SET state = 'ACTIVE', holder = consumer, lease_epoch = l.lease_epoch + 1, acquired_at = now,
            release_deadline = NULL
        FROM chosen AS c
        WHERE l.subscription_id = acquire.subscription_id AND l.partition_id = c.partition_id
        RETURNING l.partition_id, l.lease_epoch
    )
    INSERT INTO lease_history (subscription_id, partition_id, lease_epoch, holder, change, at)
    SELECT acquire.subscription_id, c.partition_id, c.lease_epoch, consumer, 'acquired', now FROM changed AS c;
    GET DIAGNOSTICS taken = ROW_COUNT;
    RETURN taken;
END
$$;

-- name: call_consumers
-- Calls consumers to check in before their time: target_qps of them at once, then the same number each
-- second. Their next heartbeat tells them. A consumer that was called already, or whose row is locked, is
-- skipped. The caller has locked the subscription's row.
CREATE OR REPLACE FUNCTION call_consumers(owner subscriptions, consumers text[], now timestamptz) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    turn interval := make_interval(secs => 1 / owner.target_qps);
    first_turn timestamptz;
    called integer;
BEGIN
    SELECT CASE WHEN v.called_until BETWEEN now AND now + make_interval(secs => v.pace_seconds + 60)
                THEN v.called_until ELSE now END
    INTO first_turn
    FROM surveys AS v
    WHERE v.subscription_id = owner.id;
    WITH chosen AS (
        SELECT c.id
        FROM consumers AS c
        WHERE c.subscription_id = owner.id AND c.id = ANY (call_consumers.consumers) AND NOT c.called
        ORDER BY c.id
        FOR NO KEY UPDATE SKIP LOCKED
    ), turns AS (
        SELECT h.id, first_turn - interval '1 second' + turn * (row_number() OVER (ORDER BY random()) - 1) AS at
        FROM chosen AS h
    )
    UPDATE consumers AS c
    SET called = true, check_in_at = LEAST(c.check_in_at, GREATEST(t.at, now))
    FROM turns AS t
    WHERE c.subscription_id = owner.id AND c.id = t.id;
    GET DIAGNOSTICS called = ROW_COUNT;
    IF called > 0 THEN
        UPDATE surveys AS v SET called_until = first_turn + turn * called WHERE v.subscription_id = owner.id;
    END IF;
END
$$;

-- name: give_and_take
-- Makes a consumer give back and take the partitions that it should. Returns how many it was asked to give back, and
-- how many it took.
CREATE OR REPLACE FUNCTION give_and_take(
    owner subscriptions, consumer text, topic_ids bigint[], shortage bigint, cold bigint, uncovered bigint,
    now timestamptz, OUT asked integer, OUT taken integer
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    asked := 0; taken := 0;
    IF cold > 0 OR LEAST(-shortage, uncovered) > 0 THEN
        asked := release_surplus(owner, consumer, topic_ids, LEAST(-shortage, uncovered), now);
    END IF;
    IF shortage > 0 THEN
        taken := acquire(owner.id, consumer, topic_ids, shortage, now);
    END IF;
END
$$;

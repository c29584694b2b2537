-- name: redriven_letters
-- How many dead letters of a partition wait for their next delivery.
CREATE OR REPLACE FUNCTION redriven_letters(subscription_id bigint, partition_id bigint) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN count(*)
    FROM dead_letters AS d
    WHERE d.subscription_id = redriven_letters.subscription_id AND d.partition_id = redriven_letters.partition_id
      AND d.redriven_at IS NOT NULL;
END
$$;

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

-- name: quotas
-- Fair shares by weight, among the consumers that take these topics (NULL: all topics), by the method of
-- largest remainders (Hamilton); ties go by consumer id. So all active partitions are held, consumers of
-- equal weight differ by at most 1, and nothing moves in the steady state.
CREATE OR REPLACE FUNCTION quotas(subscription_id bigint, topic_ids bigint[], active bigint)
RETURNS TABLE (consumer text, quota bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    RETURN QUERY
    WITH exact AS (
        SELECT c.id, quotas.active * c.weight / sum(c.weight) OVER () AS share
        FROM consumers AS c
        WHERE c.subscription_id = quotas.subscription_id
          AND (topic_ids IS NULL OR may_hold(c.subscription_id, c.id, topic_ids[1]))
    ), ranked AS (
        SELECT e.id, floor(e.share)::bigint AS whole,
               row_number() OVER (ORDER BY e.share - floor(e.share) DESC, e.id) AS place,
               quotas.active - sum(floor(e.share)) OVER () AS left_over
        FROM exact AS e
    )
    SELECT r.id, r.whole + (r.place <= r.left_over)::integer FROM ranked AS r;
END
$$;

-- name: find_share
-- What a consumer holds of these topics (NULL: all topics), compared with its fair share. shortage: how many active
-- partitions it holds too few (below 0: too many). cold: how many partitions it holds that are not active. uncovered:
-- how many of the partitions that the others lack are not free. It also returns how many partitions are free, which
-- other consumers hold too few (short) or too many (ample), those that are furthest off first, whether no lease has
-- to move (balanced), and, if one has to, which consumers are concerned, with their quotas.
CREATE OR REPLACE FUNCTION find_share(
    subscription_id bigint, consumer text, topic_ids bigint[], OUT shortage bigint, OUT cold bigint,
    OUT uncovered bigint, OUT free bigint, OUT short text[], OUT ample text[], OUT balanced boolean,
    OUT concerned text[], OUT quotas bigint[]
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT
SET enable_nestloop = off SET jit = off AS $$
BEGIN
    WITH board AS MATERIALIZED (
        SELECT l.state, l.holder, a.partition_id IS NOT NULL AS active
        FROM leases AS l
        LEFT JOIN active_partitions AS a ON a.subscription_id = l.subscription_id AND a.partition_id = l.partition_id
        WHERE l.subscription_id = find_share.subscription_id
          AND (find_share.topic_ids IS NULL OR l.partition_id >> 16 = ANY (find_share.topic_ids))
    ), totals AS (
        SELECT count(*) FILTER (WHERE b.active) AS active,
               count(*) FILTER (WHERE b.active AND b.state <> 'ACTIVE') AS unheld,
               count(*) FILTER (WHERE b.active AND b.state = 'AVAILABLE') AS free
        FROM board AS b
    ), held AS (
        SELECT b.holder, count(*) FILTER (WHERE b.active) AS warm, count(*) FILTER (WHERE NOT b.active) AS cold
        FROM board AS b
        WHERE b.state = 'ACTIVE'
        GROUP BY b.holder
    ), standing AS (
        SELECT q.consumer, q.quota, q.quota - COALESCE(h.warm, 0) AS shortage, COALESCE(h.cold, 0) AS cold, t.unheld,
               t.free
        FROM totals AS t
        CROSS JOIN LATERAL quotas(find_share.subscription_id, find_share.topic_ids, t.active) AS q
        LEFT JOIN held AS h ON h.holder = q.consumer
    )
    SELECT max(s.shortage) FILTER (WHERE s.consumer = find_share.consumer),
           max(s.cold) FILTER (WHERE s.consumer = find_share.consumer),
           sum(GREATEST(s.shortage, 0))::bigint - max(s.unheld), max(s.free),
           array_agg(s.consumer ORDER BY s.shortage DESC, s.consumer)
               FILTER (WHERE s.shortage > 0 AND s.consumer <> find_share.consumer),
           array_agg(s.consumer ORDER BY s.shortage, s.consumer)
               FILTER (WHERE s.shortage < 0 AND s.consumer <> find_share.consumer),
           bool_and(s.shortage = 0 AND s.cold = 0),
           array_agg(s.consumer) FILTER (WHERE s.shortage <> 0 OR s.cold > 0),
           array_agg(s.quota) FILTER (WHERE s.shortage <> 0 OR s.cold > 0)
    INTO shortage, cold, uncovered, free, short, ample, balanced, concerned, quotas
    FROM standing AS s;
END
$$;

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

-- name: share_out
-- What a check-in does after a survey, for topics that the same consumers take (NULL: all topics). It compares what
-- each consumer holds with its fair share, makes this consumer give back and take what it should, and calls the
-- others that hold too few or too many. For all topics together it records the result, for follow_share.
CREATE OR REPLACE FUNCTION share_out(
    owner subscriptions, consumer text, topic_ids bigint[], now timestamptz
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    mine record;
    moved record;
BEGIN
    SELECT * INTO mine FROM find_share(owner.id, consumer, topic_ids);
    SELECT * INTO moved FROM give_and_take(owner, consumer, topic_ids, mine.shortage, mine.cold, mine.uncovered, now);
    IF cardinality(mine.short) > 0 OR cardinality(mine.ample) > 0 THEN
        PERFORM call_consumers(
            owner, mine.short[1:mine.free - moved.taken] || mine.ample[1:mine.uncovered - moved.asked], now);
    END IF;
    IF topic_ids IS NULL THEN
        PERFORM write_shares(owner.id, mine.concerned, mine.quotas);
        UPDATE surveys AS v SET balanced = mine.balanced, uncovered = mine.uncovered - moved.asked
        WHERE v.subscription_id = owner.id
          AND (v.balanced, v.uncovered) IS DISTINCT FROM (mine.balanced, mine.uncovered - moved.asked);
    END IF;
END
$$;

-- name: write_shares
-- Stores the quotas of the consumers that are concerned, and no others.
CREATE OR REPLACE FUNCTION write_shares(subscription_id bigint, concerned text[], quotas bigint[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    DELETE FROM shares AS h
    WHERE h.subscription_id = write_shares.subscription_id
      AND NOT EXISTS (SELECT FROM unnest(concerned) AS g (consumer) WHERE g.consumer = h.consumer);
    INSERT INTO shares AS h (subscription_id, consumer, quota)
    SELECT write_shares.subscription_id, g.consumer, g.quota FROM unnest(concerned, quotas) AS g (consumer, quota)
    ON CONFLICT ON CONSTRAINT shares_pkey DO UPDATE SET quota = EXCLUDED.quota WHERE h.quota <> EXCLUDED.quota;
END
$$;

-- name: follow_share
-- What a check-in does until the next survey: it applies what the last survey found for this consumer. Returns false
-- for a consumer that has joined since that survey.
CREATE OR REPLACE FUNCTION follow_share(owner subscriptions, consumer text, now timestamptz) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    known record;
    mine record;
    moved record;
BEGIN
    SELECT v.balanced, v.uncovered, h.quota, c.joined_at <= v.made_at AS stood INTO known
    FROM surveys AS v
    JOIN consumers AS c ON c.subscription_id = v.subscription_id AND c.id = follow_share.consumer
    LEFT JOIN shares AS h ON h.subscription_id = v.subscription_id AND h.consumer = follow_share.consumer
    WHERE v.subscription_id = owner.id;
    IF known.balanced OR known.quota IS NULL THEN
        RETURN known.stood;
    END IF;
    SELECT known.quota - count(a.partition_id) AS shortage, count(*) - count(a.partition_id) AS cold INTO mine
    FROM leases AS l
    LEFT JOIN active_partitions AS a ON a.subscription_id = l.subscription_id AND a.partition_id = l.partition_id
    WHERE l.subscription_id = owner.id AND l.holder = follow_share.consumer AND l.state = 'ACTIVE';
    SELECT * INTO moved FROM give_and_take(owner, consumer, NULL, mine.shortage, mine.cold, known.uncovered, now);
    IF moved.asked > 0 THEN
        UPDATE surveys AS v SET uncovered = v.uncovered - moved.asked WHERE v.subscription_id = owner.id;
    END IF;
    RETURN true;
END
$$;

-- name: check_in
-- Sends a heartbeat, removes dead consumers, computes the fair share, releases and acquires leases, all in one
-- transaction. One check-in of a subscription runs at a time; it reads the clock after it has the lock. The check-in
-- surveys which partitions have unread events and what each consumer holds, when fresh is true or a consumer has
-- died, else at most once in refresh_seconds for the whole subscription. After a survey it calls the consumers that
-- hold too few or too many. Returns the leases that the consumer now holds. While the subscription is paused, it asks
-- the consumer to give back all of them. Raises PS013, PS014.
CREATE OR REPLACE FUNCTION check_in(subscription text, consumer text, session uuid, fresh boolean DEFAULT true)
RETURNS TABLE (
    topic text, partition integer, partition_id bigint, lease_epoch bigint, state text, "position" bigint,
    history integer
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    asked_at timestamptz := clock_timestamp();
    owner subscriptions%ROWTYPE := require_subscription(subscription);
    now timestamptz;
    pause double precision;
    gone integer;
    looked boolean;
    shared record;
BEGIN
    PERFORM commit_durably();
    PERFORM FROM subscriptions AS s WHERE s.id = owner.id FOR NO KEY UPDATE;
    now := clock_timestamp();
    SELECT GREATEST(owner.heartbeat_seconds, max(v.pace_seconds)) INTO pause
    FROM surveys AS v
    WHERE v.subscription_id = owner.id;
    PERFORM extend_deadline(owner, consumer, session, now, now + make_interval(secs => pause * (0.9 + 0.2 * random())));
    SELECT d.expired INTO gone FROM collect_dead(owner.id, now) AS d;
    IF is_paused(owner.id) THEN
        PERFORM release_surplus(owner, consumer, NULL, 1000000000, now);
    ELSE
        looked := survey(owner, CASE WHEN fresh THEN asked_at
                                     WHEN gone > 0 THEN now
                                     ELSE now - make_interval(secs => owner.refresh_seconds) END, fresh, now);
        FOR shared IN SELECT g.topic_ids FROM shared_topics(owner.id, consumer) AS g LOOP
            IF looked OR shared.topic_ids IS NOT NULL OR NOT follow_share(owner, consumer, now) THEN
                PERFORM share_out(owner, consumer, shared.topic_ids, now);
            END IF;
        END LOOP;
    END IF;
    RETURN QUERY SELECT * FROM held_leases(subscription, consumer);
END
$$;

-- name: join
-- Makes a consumer a member of a subscription. The session is a UUID of this run of the consumer: a second run of the same
-- id is refused (PS015) until the first one's deadline has passed or it left. Given topics of the subscription, it is handed only
-- partitions of these. Answers the times, in seconds.
CREATE OR REPLACE FUNCTION "join"(
    subscription text, consumer text, session uuid, weight double precision DEFAULT 1, topics text[] DEFAULT NULL,
    OUT heartbeat_seconds double precision, OUT lease_seconds double precision, OUT history integer
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner subscriptions%ROWTYPE := require_subscription(subscription);
    topic_ids bigint[] := listed_topics(owner, topics);
    present consumers%ROWTYPE;
    now timestamptz;
BEGIN
    IF consumer IS NULL OR char_length(consumer) NOT BETWEEN 1 AND 255 OR session IS NULL THEN
        PERFORM refuse('PS006', 'a consumer without a session or with a bad id', 'An id has 1 to 255 characters.');
    END IF;
    IF weight IS NULL OR weight NOT BETWEEN 0.001 AND 1000 THEN
        -- Beyond that, sums overflow, and every check-in of the subscription with them.
        PERFORM refuse('PS006', format('a consumer of weight %s', weight), 'A weight lies between 0.001 and 1,000.');
    END IF;
    PERFORM FROM subscriptions AS s WHERE s.id = owner.id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        PERFORM require_subscription(subscription);
    END IF;
    now := clock_timestamp();
    SELECT * INTO present FROM consumers AS c WHERE c.subscription_id = owner.id AND c.id = consumer FOR UPDATE;
    IF FOUND AND present.session <> "join".session AND present.deadline > now THEN
        PERFORM refuse('PS015', format('consumer "%s" is already running', consumer),
                       'Give each run an id of its own, or wait until the other one has left or its lease has ended.');
    END IF;
    IF NOT FOUND AND (SELECT count(*) FROM consumers AS c WHERE c.subscription_id = owner.id) >= owner.max_consumers THEN
        PERFORM refuse('PS006', format('subscription "%s" has all its %s consumers', subscription, owner.max_consumers),
                       'Stop one, or raise max_consumers.');
    END IF;
    IF give_up_leases(owner.id, consumer, 'expired', now) > 0 THEN
        -- An earlier run is inside a transaction that holds a lease: under the same id both would hold one lease_epoch.
        PERFORM refuse('PS015', format('an earlier run of consumer "%s" has not ended its transaction', consumer),
                       'Join again in a moment: a time limit ends that transaction.');
    END IF;
    INSERT INTO consumers (subscription_id, id, session, weight, joined_at, heartbeat_at, deadline)
    VALUES (owner.id, consumer, "join".session, "join".weight, now, now, now + make_interval(secs => owner.lease_seconds))
    ON CONFLICT ON CONSTRAINT consumers_pkey DO UPDATE
    SET session = EXCLUDED.session, weight = EXCLUDED.weight, joined_at = EXCLUDED.joined_at,
        heartbeat_at = EXCLUDED.heartbeat_at, deadline = EXCLUDED.deadline;
    PERFORM limit_consumer(owner.id, consumer, topic_ids);
    heartbeat_seconds := owner.heartbeat_seconds;
    lease_seconds := owner.lease_seconds;
    history := current_history();
END
$$;

-- name: give_up_leases
-- Frees the leases of one consumer, in key order. A row that somebody has locked (a zombie inside a transaction) stays as
-- it is and is counted in the answer; its own time limit ends that transaction.
CREATE OR REPLACE FUNCTION give_up_leases(subscription_id bigint, consumer text, change text, now timestamptz)
RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    freed integer;
    held integer;
BEGIN
    SELECT count(*) INTO held
    FROM leases AS l
    WHERE l.subscription_id = give_up_leases.subscription_id AND l.holder = consumer;
    WITH locked AS (
        SELECT l.partition_id, l.lease_epoch
        FROM leases AS l
        WHERE l.subscription_id = give_up_leases.subscription_id AND l.holder = consumer
        ORDER BY l.partition_id
        FOR UPDATE SKIP LOCKED
    ), freed_rows AS (
        UPDATE leases AS l
        SET state = 'AVAILABLE', holder = NULL, acquired_at = NULL, release_deadline = NULL
        FROM locked
        WHERE l.subscription_id = give_up_leases.subscription_id AND l.partition_id = locked.partition_id
        RETURNING l.partition_id, l.lease_epoch
    )
    INSERT INTO lease_history (subscription_id, partition_id, lease_epoch, holder, change, at)
    SELECT give_up_leases.subscription_id, f.partition_id, f.lease_epoch, consumer, give_up_leases.change, now
    FROM freed_rows AS f;
    GET DIAGNOSTICS freed = ROW_COUNT;
    RETURN held - freed;
END
$$;

-- name: collect_dead
-- Removes consumers whose deadline has passed and frees their leases; frees leases that were to be released and are overdue.
-- A consumer stays while one of its lease rows is locked. The caller holds the subscription's row.
CREATE OR REPLACE FUNCTION collect_dead(
    subscription_id bigint, now timestamptz, OUT expired integer, OUT locked integer
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    dead record;
    blocked integer;
BEGIN
    expired := 0; locked := 0;
    FOR dead IN
        SELECT c.id FROM consumers AS c
        WHERE c.subscription_id = collect_dead.subscription_id AND c.deadline <= now
        ORDER BY c.id
        FOR UPDATE SKIP LOCKED
    LOOP
        blocked := give_up_leases(collect_dead.subscription_id, dead.id, 'expired', now);
        locked := locked + blocked;
        IF blocked = 0 THEN
            DELETE FROM consumers AS c WHERE c.subscription_id = collect_dead.subscription_id AND c.id = dead.id;
            expired := expired + 1;
        END IF;
    END LOOP;
    WITH overdue AS (
        SELECT l.partition_id, l.lease_epoch, l.holder
        FROM leases AS l
        WHERE l.subscription_id = collect_dead.subscription_id AND l.state = 'RELEASING' AND l.release_deadline <= now
        ORDER BY l.partition_id
        FOR UPDATE SKIP LOCKED
    ), freed AS (
        UPDATE leases AS l
        SET state = 'AVAILABLE', holder = NULL, acquired_at = NULL, release_deadline = NULL
        FROM overdue
        WHERE l.subscription_id = collect_dead.subscription_id AND l.partition_id = overdue.partition_id
    )
    INSERT INTO lease_history (subscription_id, partition_id, lease_epoch, holder, change, at)
    SELECT collect_dead.subscription_id, o.partition_id, o.lease_epoch, o.holder, 'expired', now FROM overdue AS o;
END
$$;

-- name: lease_board
-- Every partition of a subscription, or of these topics (NULL: all), with its lease and whether it is active: it has unread events or
-- redriven letters, or was read a moment ago (a partition that drains between two events keeps its lease for that long).
CREATE OR REPLACE FUNCTION lease_board(subscription_id bigint, topic_ids bigint[], now timestamptz)
RETURNS TABLE (partition_id bigint, state text, holder text, random_key double precision, backlog bigint, active boolean)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT l.partition_id, l.state, l.holder, l.random_key, high_watermark(l.partition_id) - p.position + r.redriven,
           high_watermark(l.partition_id) > p.position OR r.redriven > 0
               OR (l.holder IS NOT NULL AND GREATEST(p.at, l.acquired_at) > now - interval '30 seconds')
    FROM leases AS l
    CROSS JOIN LATERAL (
        SELECT q.position, q.at
        FROM positions AS q
        WHERE q.subscription_id = l.subscription_id AND q.partition_id = l.partition_id
        ORDER BY q.id DESC
        LIMIT 1
    ) AS p
    CROSS JOIN LATERAL (
        SELECT count(*) AS redriven
        FROM dead_letters AS d
        WHERE d.subscription_id = l.subscription_id AND d.partition_id = l.partition_id AND d.redriven_at IS NOT NULL
    ) AS r
    WHERE l.subscription_id = lease_board.subscription_id
      AND (topic_ids IS NULL OR l.partition_id >> 16 = ANY (topic_ids))
$$;

-- name: quotas
-- Fair share by weight of those who take these topics (NULL: all): largest remainders (Hamilton), ties by consumer id, so that all
-- active partitions are held, the spread at equal weights is at most 1, and nothing moves in the steady state.
CREATE OR REPLACE FUNCTION quotas(subscription_id bigint, topic_ids bigint[], active bigint)
RETURNS TABLE (consumer text, quota bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
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
    SELECT r.id, r.whole + (r.place <= r.left_over)::integer FROM ranked AS r
$$;

-- name: release_surplus
-- Asks a consumer to give up what it holds above its quota, but only while others are short of more than is free: smallest
-- backlog first. A partition that has gone cold is given up whatever the quota. Answers how many.
CREATE OR REPLACE FUNCTION release_surplus(
    owner subscriptions, consumer text, topic_ids bigint[], surplus bigint, now timestamptz
) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    asked integer;
BEGIN
    WITH ordered AS (
        SELECT b.partition_id, b.active, row_number() OVER (PARTITION BY b.active ORDER BY b.backlog, b.partition_id) AS place
        FROM lease_board(owner.id, topic_ids, now) AS b
        WHERE b.holder = consumer AND b.state = 'ACTIVE'
    ), chosen AS (
        SELECT l.partition_id
        FROM ordered AS o
        JOIN leases AS l ON l.subscription_id = owner.id AND l.partition_id = o.partition_id
        -- Asked again of the row itself: since the board was read it may have been given back or taken by a seek.
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
-- Leases up to shortage free partitions with unread events, from a random pivot on and round, so that consumers do not meet.
-- Every acquisition raises lease_epoch.
CREATE OR REPLACE FUNCTION acquire(
    subscription_id bigint, consumer text, topic_ids bigint[], shortage bigint, now timestamptz
) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    pivot double precision := random();
    taken integer;
BEGIN
    WITH wanted AS (
        SELECT b.partition_id
        FROM lease_board(acquire.subscription_id, topic_ids, now) AS b
        WHERE b.state = 'AVAILABLE' AND b.backlog > 0
        ORDER BY b.random_key < pivot, b.random_key
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

-- name: extend_deadline
-- Moves a consumer's deadline to a lease time from now; raises PS014 when the session is not (or no longer) a member.
CREATE OR REPLACE FUNCTION extend_deadline(owner subscriptions, consumer text, session uuid, now timestamptz) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    UPDATE consumers AS c
    SET heartbeat_at = now, deadline = now + make_interval(secs => owner.lease_seconds)
    WHERE c.subscription_id = owner.id AND c.id = consumer AND c.session = extend_deadline.session;
    IF NOT FOUND THEN
        PERFORM refuse('PS014', format('consumer "%s" is not a member of "%s"', consumer, owner.name),
                       'It never joined, left, or was replaced after its lease ended: join again.');
    END IF;
END
$$;

-- name: heartbeat
-- Keeps a consumer and all its leases alive. Raises PS013, PS014.
CREATE OR REPLACE FUNCTION heartbeat(subscription text, consumer text, session uuid) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM extend_deadline(require_subscription(subscription), consumer, session, clock_timestamp());
END
$$;

-- name: held_leases
-- What a consumer holds, with the position after which to read.
CREATE OR REPLACE FUNCTION held_leases(subscription text, consumer text)
RETURNS TABLE (
    topic text, partition integer, partition_id bigint, lease_epoch bigint, state text, "position" bigint, history integer
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT t.address, p.number, p.id, l.lease_epoch, l.state, current_position(s.id, p.id), current_history()
    FROM subscriptions AS s
    JOIN leases AS l ON l.subscription_id = s.id
    JOIN partitions AS p ON p.id = l.partition_id
    JOIN topics AS t ON t.id = p.topic_id
    WHERE s.name = held_leases.subscription AND l.holder = held_leases.consumer
      AND (NOT t.restricted OR has_right(t.namespace_id, 'consume'))
    ORDER BY p.id
$$;

-- name: share_out
-- What a check-in does for topics that the same consumers take (NULL: all): compares what the consumer holds of them with its fair
-- share, asks it for its surplus while others are short, or acquires what it lacks.
CREATE OR REPLACE FUNCTION share_out(owner subscriptions, consumer text, topic_ids bigint[], now timestamptz) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    mine record;
BEGIN
    WITH board AS MATERIALIZED (
        SELECT * FROM lease_board(owner.id, topic_ids, now)
    ), standing AS (
        SELECT q.consumer, q.quota,
               count(b.partition_id) FILTER (WHERE b.state = 'ACTIVE' AND b.active) AS held
        FROM quotas(owner.id, topic_ids, (SELECT count(*) FROM board AS a WHERE a.active)) AS q
        LEFT JOIN board AS b ON b.holder = q.consumer
        GROUP BY q.consumer, q.quota
    )
    SELECT s.quota - s.held AS shortage,
           (SELECT sum(GREATEST(o.quota - o.held, 0)) FROM standing AS o)
               - (SELECT count(*) FROM board AS f WHERE f.active AND f.state <> 'ACTIVE') AS uncovered
    INTO mine
    FROM standing AS s
    WHERE s.consumer = share_out.consumer;
    PERFORM release_surplus(owner, consumer, topic_ids, LEAST(-mine.shortage, mine.uncovered)::bigint, now);
    IF mine.shortage > 0 THEN
        PERFORM acquire(owner.id, consumer, topic_ids, mine.shortage, now);
    END IF;
END
$$;

-- name: check_in
-- Heartbeat, collection of the dead, fair share, release, acquisition, in one transaction, one check-in of a subscription at
-- a time; the clock is read after the lock. While the subscription is paused, all that is held is asked for. Answers the leases that
-- are now held. Raises PS013, PS014.
CREATE OR REPLACE FUNCTION check_in(subscription text, consumer text, session uuid)
RETURNS TABLE (
    topic text, partition integer, partition_id bigint, lease_epoch bigint, state text, "position" bigint, history integer
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    owner subscriptions%ROWTYPE := require_subscription(subscription);
    now timestamptz;
BEGIN
    PERFORM FROM subscriptions AS s WHERE s.id = owner.id FOR NO KEY UPDATE;
    now := clock_timestamp();
    PERFORM extend_deadline(owner, consumer, session, now);
    PERFORM collect_dead(owner.id, now);
    IF is_paused(owner.id) THEN
        PERFORM release_surplus(owner, consumer, NULL, 1000000000, now);
    ELSE
        PERFORM share_out(owner, consumer, g.topic_ids, now) FROM shared_topics(owner.id, consumer) AS g;
    END IF;
    RETURN QUERY SELECT * FROM held_leases(subscription, consumer);
END
$$;

-- name: release
-- Gives single leases back, as the answer to RELEASING or because a consumer has no use for them. What is no longer held is
-- passed over. Answers how many were freed.
CREATE OR REPLACE FUNCTION release(subscription text, consumer text, partition_ids bigint[], lease_epochs bigint[])
RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner subscriptions%ROWTYPE := require_subscription(subscription);
    freed integer;
BEGIN
    WITH locked AS (
        SELECT l.partition_id, l.lease_epoch
        FROM leases AS l
        JOIN unnest(partition_ids, lease_epochs) AS given (partition_id, lease_epoch)
            ON given.partition_id = l.partition_id AND given.lease_epoch = l.lease_epoch
        WHERE l.subscription_id = owner.id AND l.holder = consumer
        ORDER BY l.partition_id
        FOR UPDATE OF l
    ), freed_rows AS (
        UPDATE leases AS l
        SET state = 'AVAILABLE', holder = NULL, acquired_at = NULL, release_deadline = NULL
        FROM locked
        WHERE l.subscription_id = owner.id AND l.partition_id = locked.partition_id
        RETURNING l.partition_id, l.lease_epoch
    )
    INSERT INTO lease_history (subscription_id, partition_id, lease_epoch, holder, change, at)
    SELECT owner.id, f.partition_id, f.lease_epoch, consumer, 'released', clock_timestamp() FROM freed_rows AS f;
    GET DIAGNOSTICS freed = ROW_COUNT;
    RETURN freed;
END
$$;

-- name: leave
-- Ends a consumer's membership and frees its leases at once; leaving twice is no error. A lease that a transaction still
-- holds cannot be freed yet: then the consumer counts as dead from now on, and the next check-in collects it.
CREATE OR REPLACE FUNCTION leave(subscription text, consumer text, session uuid) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner subscriptions%ROWTYPE := require_subscription(subscription);
BEGIN
    PERFORM FROM consumers AS c
    WHERE c.subscription_id = owner.id AND c.id = consumer AND c.session = leave.session
    FOR UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF give_up_leases(owner.id, consumer, 'released', clock_timestamp()) = 0 THEN
        DELETE FROM consumers AS c WHERE c.subscription_id = owner.id AND c.id = consumer;
    ELSE
        UPDATE consumers AS c SET deadline = LEAST(c.deadline, clock_timestamp())
        WHERE c.subscription_id = owner.id AND c.id = consumer;
    END IF;
END
$$;

-- name: join
-- Makes a consumer a member of a subscription. The session is a UUID of this run of the consumer: a second run of the
-- same id is refused (PS015) until the first one's deadline has passed or it left. If it names topics of the
-- subscription, it gets only partitions of these. Returns the times, in seconds.
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
    PERFORM commit_durably();
    PERFORM require_stream(owner);
    IF consumer IS NULL OR char_length(consumer) NOT BETWEEN 1 AND 255 OR session IS NULL THEN
        PERFORM refuse('PS006', 'the consumer has no session, or its id does not have 1 to 255 characters',
                       'Pass a session, and an id of that length.');
    END IF;
    IF weight IS NULL OR weight NOT BETWEEN 0.001 AND 1000 THEN
        -- Beyond that, sums overflow, and every check-in of the subscription fails.
        PERFORM refuse('PS006', format('weight cannot be %s', weight), 'Use 0.001 to 1,000.');
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
    IF NOT FOUND
        AND (SELECT count(*) FROM consumers AS c WHERE c.subscription_id = owner.id) >= owner.max_consumers THEN
        PERFORM refuse('PS006', format('subscription "%s" has %s consumers already, its limit', subscription,
                                       owner.max_consumers),
                       'Stop one, or raise max_consumers.');
    END IF;
    IF give_up_leases(owner.id, consumer, 'expired', now) > 0 THEN
        -- An earlier run is inside a transaction that has locked a lease: under the same id both would hold one
        -- lease_epoch.
        PERFORM refuse('PS015', format('an earlier run of consumer "%s" has not ended its transaction', consumer),
                       'Join again in a moment: a time limit ends that transaction.');
    END IF;
    INSERT INTO consumers (subscription_id, id, session, weight, joined_at, heartbeat_at, deadline)
    VALUES (owner.id, consumer, "join".session, "join".weight, now, now,
            now + make_interval(secs => owner.lease_seconds))
    ON CONFLICT ON CONSTRAINT consumers_pkey DO UPDATE
    SET session = EXCLUDED.session, weight = EXCLUDED.weight, joined_at = EXCLUDED.joined_at,
        heartbeat_at = EXCLUDED.heartbeat_at, deadline = EXCLUDED.deadline, check_in_at = EXCLUDED.check_in_at,
        called = false;
    PERFORM limit_consumer(owner.id, consumer, topic_ids);
    heartbeat_seconds := owner.heartbeat_seconds;
    lease_seconds := owner.lease_seconds;
    history := current_history();
END
$$;

-- name: give_up_leases
-- Frees the leases of one consumer, in key order. A lease row that is locked (by a zombie inside a transaction) stays
-- as it is and is counted in the result. The time limit of that transaction ends it.
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

-- name: mend_deadlines
-- Gives consumers whose last heartbeat lies ahead a lease from now on: the clock was set back since, and one that died
-- before would keep its partitions for as long as that. One that lives beats again. The same for leases that have to be
-- released. The caller has locked the subscription's row.
CREATE OR REPLACE FUNCTION mend_deadlines(subscription_id bigint, now timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    lease interval;
    release interval;
BEGIN
    SELECT make_interval(secs => s.lease_seconds), make_interval(secs => s.release_seconds) INTO lease, release
    FROM subscriptions AS s WHERE s.id = mend_deadlines.subscription_id;
    WITH ahead AS MATERIALIZED (
        SELECT a.id
        FROM consumers AS a
        WHERE a.subscription_id = mend_deadlines.subscription_id AND a.heartbeat_at > now + interval '5 seconds'
        ORDER BY a.id
        FOR UPDATE SKIP LOCKED
    )
    UPDATE consumers AS c SET deadline = now + lease, heartbeat_at = now
    FROM ahead AS a
    WHERE c.subscription_id = mend_deadlines.subscription_id AND c.id = a.id;
    WITH ahead AS MATERIALIZED (
        SELECT a.partition_id
        FROM leases AS a
        WHERE a.subscription_id = mend_deadlines.subscription_id AND a.state = 'RELEASING'
          AND a.release_deadline > now + release + interval '5 seconds'
        ORDER BY a.partition_id
        FOR UPDATE SKIP LOCKED
    )
    UPDATE leases AS l SET release_deadline = now + release
    FROM ahead AS a
    WHERE l.subscription_id = mend_deadlines.subscription_id AND l.partition_id = a.partition_id;
END
$$;

-- name: collect_dead
-- Removes consumers whose deadline has passed and frees their leases. It also frees leases that should have been
-- released and are overdue. A consumer stays while one of its lease rows is locked. The caller has locked the
-- subscription's row.
CREATE OR REPLACE FUNCTION collect_dead(
    subscription_id bigint, now timestamptz, OUT expired integer, OUT locked integer
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    dead record;
    blocked integer;
BEGIN
    expired := 0; locked := 0;
    PERFORM mend_deadlines(collect_dead.subscription_id, now);
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

-- name: extend_deadline
-- Moves a consumer's deadline to a lease time from now; a check-in also uses up its scheduled time, and sets the next
-- one. Raises PS014 when the session is not (or no longer) a member.
CREATE OR REPLACE FUNCTION extend_deadline(
    owner subscriptions, consumer text, session uuid, now timestamptz, next_check_in timestamptz DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    UPDATE consumers AS c
    SET heartbeat_at = now, deadline = now + make_interval(secs => owner.lease_seconds),
        check_in_at = COALESCE(next_check_in, c.check_in_at), called = c.called AND next_check_in IS NULL
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

-- name: heartbeats
-- The heartbeat of all consumers of a process at once. Returns for each, by its place in the arrays, its standing,
-- the seconds until its next check-in, and the seconds between two check-ins of one consumer. The standing is member,
-- gone, or locked: then another session has locked its row, so call again. It waits for no lock, and a consumer that
-- is gone does not affect the others. While consumers are being called to check in early, the others postpone their
-- check-ins. Raises PS006.
CREATE OR REPLACE FUNCTION heartbeats(subscription_names text[], consumer_ids text[], sessions uuid[])
RETURNS TABLE (place integer, standing text, check_in_seconds double precision, pace_seconds double precision)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    now timestamptz := clock_timestamp();
    looked_up text := '';
    owner_id bigint;
    lease interval;
    pause interval;
    turns_until timestamptz;
    due timestamptz;
BEGIN
    IF cardinality(consumer_ids) IS DISTINCT FROM cardinality(subscription_names)
        OR cardinality(sessions) IS DISTINCT FROM cardinality(subscription_names) THEN
        PERFORM refuse('PS006', 'a heartbeat needs a subscription and a session for each of its consumers',
                       'Pass arrays of the same length.');
    END IF;
    FOR at IN 1 .. COALESCE(cardinality(consumer_ids), 0) LOOP
        IF subscription_names[at] IS DISTINCT FROM looked_up THEN
            looked_up := subscription_names[at];
            SELECT s.id, make_interval(secs => s.lease_seconds), v.called_until, COALESCE(v.pace_seconds, 0),
                   make_interval(secs => GREATEST(v.pace_seconds, s.heartbeat_seconds))
            INTO owner_id, lease, turns_until, pace_seconds, pause
            FROM subscriptions AS s
            LEFT JOIN surveys AS v ON v.subscription_id = s.id
            WHERE s.name = subscription_names[at]
              AND (NOT EXISTS (SELECT FROM namespace_grants) OR NOT reads_hidden(s.id));
        END IF;
        UPDATE consumers AS c
        SET heartbeat_at = now, deadline = now + lease, check_in_at = CASE
                -- Of before the clock was set back.
                WHEN c.check_in_at > now + 3 * pause + interval '1 minute' THEN now
                WHEN c.check_in_at <= now AND NOT c.called AND turns_until
                    BETWEEN now + interval '1 second' AND now + pause + interval '1 minute'
                THEN turns_until + pause * random()
                ELSE c.check_in_at END
        WHERE c.ctid = (
            SELECT m.ctid FROM consumers AS m
            WHERE m.subscription_id = owner_id AND m.id = consumer_ids[at] AND m.session = sessions[at]
            FOR NO KEY UPDATE SKIP LOCKED)
        RETURNING c.check_in_at INTO due;
        place := at;
        check_in_seconds := 0;
        IF FOUND THEN
            standing := 'member';
            check_in_seconds := extract(epoch FROM GREATEST(due, now) - now);
        ELSIF EXISTS (
            SELECT FROM consumers AS c
            WHERE c.subscription_id = owner_id AND c.id = consumer_ids[at] AND c.session = sessions[at]) THEN
            standing := 'locked';
        ELSE
            standing := 'gone';
        END IF;
        RETURN NEXT;
    END LOOP;
END
$$;

-- name: held_leases
-- The leases that a consumer holds, each with the position after which to read.
CREATE OR REPLACE FUNCTION held_leases(subscription text, consumer text)
RETURNS TABLE (
    topic text, partition integer, partition_id bigint, lease_epoch bigint, state text, "position" bigint,
    history integer
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off AS $$
BEGIN
    RETURN QUERY
    SELECT t.address, p.number, p.id, l.lease_epoch, l.state, current_position(l.subscription_id, p.id),
           current_history()
    FROM leases AS l
    JOIN partitions AS p ON p.id = l.partition_id
    JOIN topics AS t ON t.id = p.topic_id
    -- A separate query comes first: in a join, the leases of all subscriptions may be read where statistics say that
    -- most belong to one.
    WHERE l.subscription_id = (SELECT s.id FROM subscriptions AS s WHERE s.name = held_leases.subscription)
      AND l.holder = held_leases.consumer
      AND (NOT t.restricted OR has_right(t.namespace_id, 'consume'))
    ORDER BY p.id;
END
$$;

-- name: release
-- Gives single leases back, in response to RELEASING or because a consumer has no use for them. A lease that is no
-- longer held is skipped. Returns how many were freed.
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
-- Ends a consumer's membership and frees its leases at once; leaving twice is no error. A lease whose row a
-- transaction still locks cannot be freed yet. Then the consumer counts as dead from now on, and the next check-in of
-- the subscription removes it.
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

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
    topic_ids bigint[] := require_listed(owner, topics);
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

-- name: sweep
-- Removes the dead consumers of all subscriptions, as check-ins do; this is for subscriptions in which no consumer
-- checks in any more. A subscription whose row is locked has a check-in right now, and is skipped. Then moves the
-- positions of queues from which nobody receives. Raises PS006, PS018.
CREATE OR REPLACE FUNCTION sweep(
    max_rows integer DEFAULT 1000, OUT expired_consumers integer, OUT locked_leases integer
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner record;
    found_here record;
BEGIN
    PERFORM require_read_committed('sweep()');
    IF max_rows IS NULL OR max_rows NOT BETWEEN 1 AND 100000 THEN
        PERFORM refuse('PS006', format('a sweep of %s subscriptions', max_rows), 'Use 1 to 100,000.');
    END IF;
    expired_consumers := 0; locked_leases := 0;
    FOR owner IN
        SELECT s.id
        FROM subscriptions AS s
        WHERE EXISTS (
                SELECT FROM consumers AS c
                WHERE c.subscription_id = s.id
                  AND (c.deadline <= clock_timestamp() OR c.heartbeat_at > clock_timestamp() + interval '5 seconds'))
           OR EXISTS (
                SELECT FROM leases AS l
                WHERE l.subscription_id = s.id AND l.state = 'RELEASING' AND l.release_deadline
                    NOT BETWEEN clock_timestamp() AND clock_timestamp() + make_interval(secs => s.release_seconds + 5))
        ORDER BY s.id
        LIMIT max_rows
        FOR NO KEY UPDATE OF s SKIP LOCKED
    LOOP
        SELECT * INTO found_here FROM collect_dead(owner.id, clock_timestamp());
        expired_consumers := expired_consumers + found_here.expired;
        locked_leases := locked_leases + found_here.locked;
    END LOOP;
    PERFORM end_old(max_rows);
    PERFORM move_idle_floors(max_rows);
END
$$;

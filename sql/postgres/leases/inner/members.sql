-- name: require_member
-- Locks a live member of a subscription whose row the caller has locked; raises PS014.
CREATE OR REPLACE FUNCTION require_member(owner subscriptions, consumer text, session uuid) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM FROM consumers AS c
    WHERE c.subscription_id = owner.id AND c.id = consumer AND c.session = require_member.session
      AND c.deadline > clock_timestamp()
    FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM refuse('PS014', format('consumer "%s" is not a member of "%s"', consumer, owner.name),
                       'It never joined, left, or its lease has ended: join again.');
    END IF;
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

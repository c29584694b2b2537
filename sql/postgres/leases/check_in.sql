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
              AND ((SELECT no_walls()) OR NOT reads_hidden(s.id));
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

-- name: report_error
-- Records a consumer's last error. The next one replaces it, it is cut at 2,000 characters, and it is removed with
-- the consumer. The caller must not put payloads or passwords into it. Raises PS006, PS013, PS014.
CREATE OR REPLACE FUNCTION report_error(subscription text, consumer text, session uuid, error text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner subscriptions%ROWTYPE := require_subscription(subscription);
BEGIN
    IF error IS NULL THEN
        PERFORM refuse('PS006', 'the reported error has no text', 'Say what went wrong.');
    END IF;
    -- Locked, or the consumer could be collected before the row is written.
    PERFORM FROM consumers AS c
    WHERE c.subscription_id = owner.id AND c.id = consumer AND c.session = report_error.session
    FOR KEY SHARE;
    IF NOT FOUND THEN
        PERFORM refuse('PS014', format('consumer "%s" is not a member of "%s"', consumer, owner.name),
                       'It never joined, left, or was replaced after its lease ended: join again.');
    END IF;
    INSERT INTO consumer_errors (subscription_id, consumer, error, at)
    VALUES (owner.id, report_error.consumer, left(report_error.error, 2000), clock_timestamp())
    ON CONFLICT ON CONSTRAINT consumer_errors_pkey DO UPDATE SET error = EXCLUDED.error, at = EXCLUDED.at;
END
$$;

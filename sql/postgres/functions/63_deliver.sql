-- name: poll
-- Events of leased partitions, each after its own read position, at most max_events together and max_each of a
-- partition (NULL: no such limit), in the order of the arrays: a caller that rotates the arrays starves no partition.
-- A lease that is no longer held returns no rows; the next heartbeat or check-in tells why. A paused subscription
-- returns none. Raises PS013, PS016, PS021.
CREATE OR REPLACE FUNCTION poll(
    subscription text, consumer text, partition_ids bigint[], lease_epochs bigint[], after bigint[],
    max_events integer DEFAULT 500, max_each integer DEFAULT NULL
) RETURNS TABLE (
    partition_id bigint, sequence bigint, event_id uuid, key text, type text, content_type text, headers jsonb,
    payload bytea, created_at timestamptz, sequenced_at timestamptz
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    owner subscriptions%ROWTYPE := require_subscription(subscription);
    source record;
    wanted integer := LEAST(GREATEST(COALESCE(max_events, 500), 1), 100000);
    wanted_here integer;
    watermark bigint;
    found_rows integer;
    is_below boolean;
BEGIN
    IF owner.paused_at IS NOT NULL THEN
        RETURN;
    END IF;
    FOR source IN
        SELECT l.partition_id AS id, LEAST(given.after, 1000000000000000000) + 1 AS from_sequence
        FROM unnest(partition_ids, lease_epochs, poll.after)
            WITH ORDINALITY AS given (partition_id, lease_epoch, after, place)
        JOIN leases AS l
            ON l.subscription_id = owner.id AND l.partition_id = given.partition_id
            AND l.lease_epoch = given.lease_epoch AND l.holder = consumer
        JOIN consumers AS c
            ON c.subscription_id = owner.id AND c.id = consumer AND c.deadline > clock_timestamp()
        ORDER BY given.place
    LOOP
        is_below := require_readable(source.id, source.from_sequence, owner.id);
        watermark := high_watermark(source.id);
        IF watermark < source.from_sequence - 1 THEN
            -- A reader that waited for the log to reach its position would never see the events that the log
            -- then holds instead.
            PERFORM refuse('PS021', format('sequence %s of partition %s was read, but the log ends at %s',
                                           source.from_sequence - 1, source.id & 65535, watermark),
                           'A restore lost commits. Open the next history: penstock restore reconcile.');
        END IF;
        CONTINUE WHEN watermark < source.from_sequence;  -- Cheaper than to read and find nothing.
        wanted_here := LEAST(wanted, GREATEST(COALESCE(max_each, wanted), 1));
        IF is_below THEN
            RETURN QUERY SELECT source.id, r.* FROM read_rehydrated(source.id, source.from_sequence, wanted_here) AS r;
        ELSE
            RETURN QUERY SELECT source.id, r.* FROM read_log(source.id, source.from_sequence, wanted_here) AS r;
        END IF;
        GET DIAGNOSTICS found_rows = ROW_COUNT;
        wanted := wanted - found_rows;
        EXIT WHEN wanted = 0;
    END LOOP;
END
$$;

-- name: limit_transaction
-- Sets a limit that ends the session if the transaction that now locks a lease row lasts longer than the lease.
-- Otherwise a paused consumer would make its successor wait without limit. It never raises a limit that the caller
-- has set.
CREATE OR REPLACE FUNCTION limit_transaction(left_seconds double precision) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    allowed double precision := GREATEST(floor(left_seconds * 950), 1);
    given text := current_setting('idle_in_transaction_session_timeout');
    set_to text;  -- an assignment costs a third of what PERFORM does, which begins a query
BEGIN
    IF given = '0' OR 1000 * extract(epoch FROM given::interval) > allowed THEN
        set_to := set_config('idle_in_transaction_session_timeout', allowed || 'ms', true);
    END IF;
    IF current_setting('server_version_num')::integer < 170000 THEN
        RETURN;
    END IF;
    given := current_setting('transaction_timeout');
    IF given = '0' THEN
        set_to := set_config('transaction_timeout', allowed || 'ms', true);
    ELSIF 1000 * extract(epoch FROM given::interval - (clock_timestamp() - transaction_timestamp())) > allowed THEN
        -- A new value does not restart a running timer; it has to be switched off first.
        set_to := set_config('transaction_timeout', '0', true);
        set_to := set_config('transaction_timeout', allowed || 'ms', true);
    END IF;
END
$$;

-- name: hold_leases
-- The fence. Locks the lease rows, in key order, to the end of the caller's transaction; take-over needs the same
-- lock. A check without the lock would allow a write skew: a zombie that checks before the take-over and commits
-- after it would be accepted. Counts a refusal in a sequence, which the refusal cannot roll back. Without a consumer
-- (NULL) the leases are those of another store: nobody may hold them here, and mark_low_water must have told of this
-- lease_epoch and of no higher one. Raises PS010, PS018.
CREATE OR REPLACE FUNCTION hold_leases(
    owner subscriptions, consumer text, partition_ids bigint[], lease_epochs bigint[]
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    held integer;
    left_seconds double precision;
BEGIN
    PERFORM require_read_committed('a commit');
    SELECT count(*) INTO held
    FROM (
        SELECT l.partition_id
        FROM leases AS l
        JOIN unnest(partition_ids, lease_epochs) AS given (partition_id, lease_epoch)
            ON given.partition_id = l.partition_id AND given.lease_epoch = l.lease_epoch
        WHERE l.subscription_id = owner.id AND l.holder IS NOT DISTINCT FROM consumer
        ORDER BY l.partition_id
        FOR NO KEY UPDATE OF l
    ) AS locked;
    IF consumer IS NULL THEN
        left_seconds := owner.lease_seconds;
    ELSE
        SELECT extract(epoch FROM c.deadline - clock_timestamp()) INTO left_seconds
        FROM consumers AS c
        WHERE c.subscription_id = owner.id AND c.id = consumer;
    END IF;
    IF held <> cardinality(partition_ids) OR left_seconds IS NULL OR left_seconds <= 0 THEN
        PERFORM nextval('rejected_commits');
        PERFORM refuse('PS010', COALESCE('consumer "' || consumer || '"', 'the holder in another store')
                                || format(' no longer holds these leases of "%s"', owner.name),
                       'Drop what was read, roll back, and check in: another consumer may already have taken over.');
    END IF;
    PERFORM limit_transaction(left_seconds);
END
$$;

-- name: commit
-- Moves positions forward, all or none, in the caller's transaction: what else that transaction writes takes effect
-- exactly once. positions are the last sequences that were handled. after are the positions after which the events
-- were read: a reader that lost its connection during the last COMMIT may read events again, but must not handle them
-- twice. Raises PS006, PS010, PS011, PS012, PS013, PS018, PS021.
CREATE OR REPLACE FUNCTION "commit"(
    subscription text, consumer text, partition_ids bigint[], lease_epochs bigint[], positions bigint[],
    after bigint[] DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner subscriptions%ROWTYPE := require_subscription(subscription);
    bad record;
BEGIN
    IF COALESCE(cardinality(partition_ids), 0) = 0 OR cardinality(partition_ids) <> cardinality(lease_epochs)
        OR cardinality(partition_ids) <> cardinality("commit".positions)
        OR cardinality(partition_ids) <> cardinality("commit".after) THEN
        PERFORM refuse('PS006', 'a commit needs one lease_epoch and one position for each of its partitions',
                       'Pass arrays of the same length, at least one long.');
    ELSIF cardinality(partition_ids) <> (SELECT count(DISTINCT p.id) FROM unnest(partition_ids) AS p (id)) THEN
        -- It would be chance which of two positions came last, and a position could move back.
        PERFORM refuse('PS006', 'a commit names a partition twice, or a NULL',
                       'Pass the last position of each partition.');
    END IF;
    PERFORM hold_leases(owner, consumer, partition_ids, lease_epochs);
    SELECT given.*, stored.position AS present, high_watermark(given.partition_id) AS watermark,
           stored.id > counter.given_id AS is_set_back INTO bad
    FROM (SELECT c.last_value - (NOT c.is_called)::integer AS given_id FROM positions_id AS c) AS counter,
        unnest(partition_ids, "commit".positions, "commit".after) AS given (partition_id, wanted, read_after)
    CROSS JOIN LATERAL newest_row(owner.id, given.partition_id) AS stored
    WHERE given.wanted IS NULL OR given.wanted <= stored.position OR given.read_after <> stored.position
       OR given.wanted > high_watermark(given.partition_id) OR stored.id > counter.given_id
    ORDER BY given.partition_id
    LIMIT 1;
    IF FOUND AND bad.is_set_back THEN
        PERFORM refuse_set_back('positions_id');
    ELSIF FOUND AND (bad.wanted IS NULL OR bad.wanted <= bad.present) THEN
        PERFORM refuse('PS011', format('position %s of partition %s is not after %s', bad.wanted,
                                       bad.partition_id & 65535, bad.present),
                       'Positions only move forward; use seek to go back.');
    ELSIF FOUND AND bad.read_after <> bad.present THEN
        PERFORM refuse('PS011', format('partition %s stands at %s, but the events were read after %s',
                                       bad.partition_id & 65535, bad.present, bad.read_after),
                       'The position was moved in between: roll back and read again.');
    ELSIF FOUND THEN
        PERFORM refuse('PS012', format('position %s of partition %s is beyond the high watermark %s', bad.wanted,
                                       bad.partition_id & 65535, bad.watermark),
                       'Commit only what was read.');
    END IF;
    INSERT INTO positions (subscription_id, partition_id, position, lease_epoch, reason)
    SELECT owner.id, given.partition_id, given.wanted, given.lease_epoch, 'commit'
    FROM unnest(partition_ids, lease_epochs, "commit".positions) AS given (partition_id, lease_epoch, wanted);
END
$$;

-- name: position
-- The positions of a subscription on a topic.
CREATE OR REPLACE FUNCTION "position"(subscription text, topic text)
RETURNS TABLE (partition integer, "position" bigint, history integer)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner subscriptions%ROWTYPE := require_subscription(subscription);
    source_id bigint := require_topic(topic);
BEGIN
    RETURN QUERY
    SELECT p.number, current_position(owner.id, p.id), current_history()
    FROM partitions AS p
    WHERE p.topic_id = source_id
    ORDER BY p.number;
END
$$;

-- name: refuse_set_back
-- Refuses to write a position that no reader would find (PS021): the newest row is the one with the highest
-- number, and the counter is below that.
CREATE OR REPLACE FUNCTION refuse_set_back(counter text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM refuse(
        'PS021',
        format('the counter %s is below numbers that it gave out before: something has set it back', counter),
        'After a restore or a failover: penstock restore reconcile raises it.');
END
$$;

-- name: move_position
-- Sets the position of a partition whose topic and lease row the caller has locked, raises lease_epoch and takes the
-- lease from its holder, whose later commits are refused as stale. Raises PS006, PS012, PS016, PS021.
CREATE OR REPLACE FUNCTION move_position(present leases, start text) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    wanted bigint;
BEGIN
    IF (newest_row(present.subscription_id, present.partition_id)).id > (
        SELECT c.last_value - (NOT c.is_called)::integer FROM positions_id AS c)
    THEN
        PERFORM refuse_set_back('positions_id');
    END IF;
    SELECT start_position(p.id, p.low_sequence, start) INTO wanted
    FROM partitions AS p
    WHERE p.id = present.partition_id;
    UPDATE leases AS l
    SET state = 'AVAILABLE', holder = NULL, lease_epoch = l.lease_epoch + 1, acquired_at = NULL, release_deadline = NULL
    WHERE l.subscription_id = present.subscription_id AND l.partition_id = present.partition_id;
    INSERT INTO lease_history (subscription_id, partition_id, lease_epoch, holder, change, at)
    VALUES (present.subscription_id, present.partition_id, present.lease_epoch + 1, COALESCE(present.holder, ''),
            'seek', clock_timestamp());
    INSERT INTO positions (subscription_id, partition_id, position, lease_epoch, reason)
    VALUES (present.subscription_id, present.partition_id, wanted, present.lease_epoch + 1, 'seek');
    -- A position that moves back gives its events new attempts.
    DELETE FROM attempts AS a
    WHERE a.subscription_id = present.subscription_id AND a.partition_id = present.partition_id;
    RETURN wanted;
END
$$;

-- name: refuse_unread
-- Raises the error that a subscription does not read a topic (PS013).
CREATE OR REPLACE FUNCTION refuse_unread(subscription text, topic text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM refuse('PS013', format('subscription "%s" does not read topic "%s"', subscription, left(topic, 200)),
                   'Subscribe it to the topic first.');
END
$$;

-- name: seek
-- Sets the position of one partition ('earliest', 'latest', the sequence to read next, a time, 'bookmark:NAME' or
-- 'subscription:NAME'), raises lease_epoch and takes the lease from its holder, whose later commits are refused as
-- stale. Raises PS002, PS005, PS006, PS012, PS013, PS016, PS019, PS021, PS029.
CREATE OR REPLACE FUNCTION seek(subscription text, topic text, partition integer, start text) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner subscriptions%ROWTYPE := require_subscription(subscription);
    source_id bigint := require_partition(topic, partition);
    present leases%ROWTYPE;
BEGIN
    PERFORM commit_durably();
    PERFORM require_stream(owner);
    PERFORM require_read_committed('seek()');
    PERFORM FROM topics AS t WHERE t.address = seek.topic FOR NO KEY UPDATE;
    SELECT * INTO present FROM leases AS l
    WHERE l.subscription_id = owner.id AND l.partition_id = source_id
    FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM refuse_unread(subscription, topic);
    END IF;
    RETURN move_position(present, start);
END
$$;

-- name: reset_subscription
-- Does what seek does for every partition of a subscription, or of one of its topics (NULL: all topics), in one
-- transaction: all or none. Returns the new positions. Raises PS002, PS006, PS012, PS013, PS016, PS018, PS019, PS021,
-- PS029.
CREATE OR REPLACE FUNCTION reset_subscription(subscription text, start text, of_topic text DEFAULT NULL)
RETURNS TABLE (topic text, partition integer, "position" bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner subscriptions%ROWTYPE := require_subscription(subscription);
    only_id bigint;
    present leases%ROWTYPE;
BEGIN
    PERFORM commit_durably();
    PERFORM require_stream(owner);
    PERFORM require_read_committed('reset_subscription()');
    IF of_topic IS NOT NULL THEN
        only_id := require_topic_for(of_topic, 'consume');
        IF NOT EXISTS (
                SELECT FROM subscription_topics AS r WHERE r.subscription_id = owner.id AND r.topic_id = only_id) THEN
            PERFORM refuse_unread(subscription, of_topic);
        END IF;
    END IF;
    PERFORM FROM topics AS t
    WHERE t.id IN (SELECT r.topic_id FROM subscription_topics AS r WHERE r.subscription_id = owner.id)
      AND (only_id IS NULL OR t.id = only_id)
    ORDER BY t.address
    FOR NO KEY UPDATE;
    FOR present IN
        SELECT l.*
        FROM leases AS l JOIN partitions AS p ON p.id = l.partition_id
        WHERE l.subscription_id = owner.id AND (only_id IS NULL OR p.topic_id = only_id)
        ORDER BY l.partition_id
        FOR UPDATE OF l
    LOOP
        RETURN QUERY
        SELECT t.address, p.number, move_position(present, start)
        FROM partitions AS p JOIN topics AS t ON t.id = p.topic_id
        WHERE p.id = present.partition_id;
    END LOOP;
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
    PERFORM move_idle_floors(max_rows);
END
$$;

-- name: rejected_commits
-- How many commits the fence has refused since the installation, for all subscriptions; NULL for a login that does
-- not pass the walls.
CREATE OR REPLACE FUNCTION rejected_commits() RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT CASE WHEN NOT sees_all() THEN NULL WHEN s.is_called THEN s.last_value + 1 ELSE 0 END
    FROM rejected_commits AS s
$$;

-- name: take_overs
-- How often another consumer acquired a lease after its holder's time had run out.
CREATE OR REPLACE FUNCTION take_overs(subscription text) RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT count(*)
    FROM lease_history AS lost
    JOIN subscriptions AS s ON s.id = lost.subscription_id
    JOIN lease_history AS taken
        ON taken.subscription_id = lost.subscription_id AND taken.partition_id = lost.partition_id
        AND taken.change = 'acquired' AND taken.lease_epoch = lost.lease_epoch + 1 AND taken.holder <> lost.holder
    WHERE s.name = take_overs.subscription AND lost.change = 'expired' AND NOT reads_hidden(s.id)
$$;

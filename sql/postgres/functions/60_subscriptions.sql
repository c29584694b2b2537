-- name: require_subscription
-- The subscription with this name; raises PS013, also when it reads a topic that the login may not consume.
CREATE OR REPLACE FUNCTION require_subscription(subscription text) RETURNS subscriptions
LANGUAGE plpgsql STABLE AS $$
DECLARE
    found_row subscriptions%ROWTYPE;
BEGIN
    SELECT s.* INTO found_row FROM subscriptions AS s WHERE s.name = subscription;
    -- First it checks whether there are any rights at all, so that a heartbeat has no cost for rights where
    -- there are none.
    IF NOT FOUND OR (EXISTS (SELECT FROM namespace_grants) AND reads_hidden(found_row.id)) THEN
        PERFORM refuse('PS013', format('there is no subscription "%s"', subscription),
                       'Create it: SELECT penstock.subscribe(...).');
    END IF;
    RETURN found_row;
END
$$;

-- name: current_position
-- The newest position in the ledger; NULL when the subscription does not read the partition.
CREATE OR REPLACE FUNCTION current_position(subscription_id bigint, partition_id bigint) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN p.position
    FROM positions AS p
    WHERE p.subscription_id = current_position.subscription_id AND p.partition_id = current_position.partition_id
    ORDER BY p.id DESC
    LIMIT 1;
END
$$;

-- name: newest_row
-- The newest position in the ledger and the number of its row; NULL when the subscription does not read the partition.
CREATE OR REPLACE FUNCTION newest_row(subscription_id bigint, partition_id bigint, OUT id bigint, OUT "position" bigint)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    SELECT p.id, p.position
    INTO id, "position"
    FROM positions AS p
    WHERE p.subscription_id = newest_row.subscription_id AND p.partition_id = newest_row.partition_id
    ORDER BY p.id DESC
    LIMIT 1;
END
$$;

-- name: start_position
-- Where a new subscription starts: 'earliest' (the first event that is left), 'latest' (after the last event), a
-- sequence to begin with, a position of the log (LSN) instead, a time, or what plain_start knows. With a time it starts
-- with the first event that was sequenced then or later, however early that event was published. A sequence below the
-- low sequence is accepted where a verified copy holds it: then the consumers read the archive first. Raises PS006,
-- PS012, PS013, PS016, PS019, PS021, PS029.
CREATE OR REPLACE FUNCTION start_position(partition_id bigint, low_sequence bigint, start text) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    start := plain_start(partition_id, start);
    IF start = 'earliest' THEN
        RETURN low_sequence - 1;
    ELSIF start = 'latest' THEN
        RETURN high_watermark(partition_id);
    ELSIF start ~ '^[1-9][0-9]{0,17}$' THEN
        PERFORM require_readable(
            partition_id, CASE WHEN is_archived(partition_id, start::bigint)
                               THEN GREATEST(low_sequence, start::bigint) ELSE start::bigint END, 0);
        IF start::bigint > high_watermark(partition_id) + 1 THEN
            PERFORM refuse('PS012', format('sequence %s is beyond the high watermark', start),
                           'Start at or before the next sequence, or at "latest".');
        END IF;
        RETURN start::bigint - 1;
    ELSIF start ~ '^[0-9]+[.][0-9]+$' THEN
        RETURN start_position(partition_id, low_sequence, checked_sequence(partition_id, start)::text);
    END IF;
    RETURN position_before(partition_id, low_sequence, start_time(start));
END
$$;

-- name: start_time
-- A time at which to start: ISO 8601 with its zone, and not in the future. Raises PS006.
CREATE OR REPLACE FUNCTION start_time(start text) RETURNS timestamptz
LANGUAGE plpgsql STABLE AS $$
DECLARE
    found_time timestamptz;
BEGIN
    IF start
        ~ $p$^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?(Z|[+-][0-9]{2}:?[0-9]{2})\Z$p$
    THEN
        BEGIN
            found_time := start::timestamptz;
        EXCEPTION WHEN data_exception THEN
            NULL;  -- There is no such day, or hour.
        END;
    END IF;
    IF found_time IS NULL THEN
        PERFORM refuse(
            'PS006', format('a subscription cannot start at "%s"', left(start, 100)),
            'Use "earliest", "latest", a sequence from 1 on, a position of the log, "bookmark:NAME", or a time with '
            'its zone: 2026-01-31T09:30:00+01:00.');
    ELSIF found_time > clock_timestamp() THEN
        PERFORM refuse('PS006', format('the time %s is in the future', start),
                       'Use "latest" for what is published from now on.');
    END IF;
    RETURN found_time;
END
$$;

-- name: position_since
-- The position before the first event of a partition that was sequenced at a time or later, if the database knows it.
-- Otherwise position is NULL: such an event may be among those that were removed. The log epoch in which to look then
-- comes with it; NULL when no seal says so.
CREATE OR REPLACE FUNCTION position_since(
    partition_id bigint, low_sequence bigint, since timestamptz, OUT "position" bigint, OUT log_epoch integer,
    OUT first_sequence bigint, OUT last_sequence bigint
)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    watermark bigint := high_watermark(partition_id);
    wanted bigint;
BEGIN
    SELECT COALESCE(c.first_sequence + place.n - 1, c.first_sequence) INTO wanted
    FROM chunks AS c
    CROSS JOIN LATERAL (
        SELECT min(t.n) AS n FROM unnest(c.sequenced_ats) WITH ORDINALITY AS t (at, n) WHERE t.at >= since
    ) AS place
    WHERE c.partition_id = position_since.partition_id AND c.sequenced_at >= since
    ORDER BY c.first_sequence
    LIMIT 1;
    wanted := COALESCE(wanted, watermark + 1);
    position := wanted - 1;
    -- The index of what was dropped is removed too: then only a seal says when its last event was sequenced.
    IF wanted < low_sequence OR (wanted = low_sequence AND wanted BETWEEN 2 AND watermark
                                 AND sequenced_at_of(partition_id, wanted - 1) IS NULL) THEN
        SELECT e.log_epoch, e.first_sequence, e.last_sequence
        INTO position_since.log_epoch, position_since.first_sequence, position_since.last_sequence
        FROM log_epochs AS e
        WHERE e.partition_id = position_since.partition_id AND e.sequenced_until >= since
        ORDER BY e.sequenced_until, e.log_epoch
        LIMIT 1;
        IF FOUND THEN
            position := CASE WHEN position_since.first_sequence >= low_sequence THEN position END;
        ELSIF wanted < low_sequence OR log_epoch_at(partition_id, low_sequence - 1) = 0 THEN
            position := NULL;
        END IF;
    END IF;
END
$$;

-- name: position_before
-- The position before the first event that was sequenced at a time or later. If such an event may have been dropped,
-- this raises an error (PS016): no event is skipped silently.
CREATE OR REPLACE FUNCTION position_before(partition_id bigint, low_sequence bigint, since timestamptz) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    found_place record := position_since(partition_id, low_sequence, since);
BEGIN
    IF found_place.position IS NULL THEN
        PERFORM refuse('PS016', format('events sequenced since %s were dropped: the log begins at sequence %s', since,
                                       low_sequence),
                       'Name the archive targets, so that the time is looked up there, or start at "earliest".');
    END IF;
    RETURN found_place.position;
END
$$;

-- name: position_at
-- The position before the first event of a partition that was sequenced at a time or later; the high watermark when
-- there is none. If such an event may have been dropped, this raises PS016. Raises PS002, PS005, PS006, PS016.
CREATE OR REPLACE FUNCTION position_at(topic text, partition integer, since timestamptz) RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    source_id bigint := require_partition(topic, partition);
BEGIN
    IF since IS NULL THEN
        PERFORM refuse('PS006', 'the time is NULL', 'Give a time with its zone.');
    END IF;
    RETURN position_before(source_id, (SELECT p.low_sequence FROM partitions AS p WHERE p.id = source_id), since);
END
$$;

-- name: locate_time
-- The position before the first event of a partition that was sequenced at a time or later, where the database knows
-- it. Where such an event may have been dropped, position is NULL, and the log epoch is the one in which to look
-- first: no event before it was sequenced then. Raises PS002, PS005, PS006, PS016.
CREATE OR REPLACE FUNCTION locate_time(topic text, partition integer, since timestamptz)
RETURNS TABLE ("position" bigint, log_epoch integer, first_sequence bigint, last_sequence bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    source_id bigint := require_partition(topic, partition);
BEGIN
    IF since IS NULL THEN
        PERFORM refuse('PS006', 'the time is NULL', 'Give a time with its zone.');
    END IF;
    RETURN QUERY
    SELECT s.position, s.log_epoch, s.first_sequence, s.last_sequence
    FROM partitions AS p CROSS JOIN LATERAL position_since(p.id, p.low_sequence, since) AS s
    WHERE p.id = source_id AND (s.position IS NOT NULL OR s.log_epoch IS NOT NULL);
    IF NOT FOUND THEN
        PERFORM refuse('PS016', format('events sequenced since %s were dropped, and no seal says which', since),
                       'Start at "earliest".');
    END IF;
END
$$;

-- name: require_start_of_queue
-- Refuses a queue that would begin below the low sequence of a topic (PS016): no queue reads the archive.
CREATE OR REPLACE FUNCTION require_start_of_queue(owner_id bigint, source_id bigint) RETURNS void
LANGUAGE plpgsql STABLE AS $$
DECLARE
    wrong record;
BEGIN
    SELECT current_position(owner_id, p.id) + 1 AS start, p.low_sequence AS low INTO wrong
    FROM partitions AS p JOIN subscriptions AS s ON s.id = owner_id
    WHERE p.topic_id = source_id AND s.mode = 'queue' AND current_position(owner_id, p.id) < p.low_sequence - 1
    ORDER BY p.number
    LIMIT 1;
    IF FOUND THEN
        PERFORM refuse('PS016', format('sequence %s is below the low sequence %s, and a queue reads nothing from the '
                                       'archive', wrong.start, wrong.low),
                       'Begin at "earliest"; or read the history as a stream, whose consumers have archive=targets.');
    END IF;
END
$$;

-- name: subscribe
-- Creates the subscription if it does not exist, and adds topics to it. Returns how many were new. It locks the
-- topic's row against the logical drop, so that "earliest" never points below the low sequence, and against resize
-- and deletion. In mode 'queue' its events are received and acknowledged one by one; the mode stays. Raises PS002,
-- PS006, PS007, PS012, PS013, PS016, PS019, PS021, PS029, PS030, PS031, PS033, PS042.
CREATE OR REPLACE FUNCTION subscribe(
    subscription text, topics text[], start text DEFAULT 'earliest', mode text DEFAULT 'stream'
) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner_id bigint;
    source_id bigint;
    added integer := 0;
BEGIN
    PERFORM commit_durably();
    PERFORM require_read_committed('subscribe()');
    PERFORM require_name(replace(subscription, '/', '.'), 'subscription');
    IF COALESCE(cardinality(subscribe.topics), 0) = 0 THEN
        PERFORM refuse('PS006', 'the subscription names no topic', 'Name at least one topic.');
    END IF;
    -- Locked before the subscription, as in every call that locks both.
    PERFORM lock_topic(t.address, 'consume')
    FROM (SELECT DISTINCT g COLLATE "C" AS address FROM unnest(subscribe.topics) AS g ORDER BY 1) AS t;
    LOOP
        INSERT INTO subscriptions (name) VALUES (subscription) ON CONFLICT (name) DO NOTHING;
        SELECT s.id INTO owner_id FROM subscriptions AS s WHERE s.name = subscription FOR NO KEY UPDATE;
        EXIT WHEN FOUND;  -- Else it was deleted while this waited for it.
    END LOOP;
    IF reads_hidden(owner_id) THEN
        PERFORM refuse('PS007', format('there is already a subscription "%s"', subscription), 'Choose another name.');
    END IF;
    PERFORM begin_queue(owner_id, subscribe.mode);
    FOR source_id IN SELECT t.id FROM topics AS t WHERE t.address = ANY (subscribe.topics) ORDER BY t.address LOOP
        INSERT INTO subscription_topics (subscription_id, topic_id) VALUES (owner_id, source_id) ON CONFLICT DO NOTHING;
        CONTINUE WHEN NOT FOUND;
        added := added + 1;
        INSERT INTO leases (subscription_id, partition_id)
        SELECT owner_id, p.id FROM partitions AS p WHERE p.topic_id = source_id;
        INSERT INTO positions (subscription_id, partition_id, position, lease_epoch, reason)
        SELECT owner_id, p.id, start_position(p.id, p.low_sequence, subscribe.start), 0, 'start'
        FROM partitions AS p
        WHERE p.topic_id = source_id;
        PERFORM require_start_of_queue(owner_id, source_id);
    END LOOP;
    IF added > 0 THEN
        PERFORM refresh_policy(owner_id);
    END IF;
    RETURN added;
END
$$;

-- name: configure_subscription
-- Sets the times of a subscription, in seconds. They become part of the subscription's own heartbeat policy,
-- whose other settings stay. Raises PS006, PS013, PS018.
CREATE OR REPLACE FUNCTION configure_subscription(
    subscription text, heartbeat_seconds double precision, lease_seconds double precision,
    release_seconds double precision
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner_id bigint;
    wanted jsonb := jsonb_build_object(
        'heartbeat_seconds', heartbeat_seconds, 'lease_seconds', lease_seconds, 'release_seconds', release_seconds);
BEGIN
    PERFORM commit_durably();
    PERFORM require_policy_settings('heartbeat', wanted);
    PERFORM require_read_committed('configure_subscription()');
    owner_id := lock_policy_scope('subscription', subscription);
    PERFORM store_policy('subscription', owner_id, 'heartbeat', COALESCE((
        SELECT p.settings FROM policies AS p
        WHERE p.scope = 'subscription' AND p.scope_id = owner_id AND p.kind = 'heartbeat'), '{}') || wanted, 'hand');
END
$$;

-- name: unsubscribe
-- Removes a subscription with its leases and dead letters. From then on it keeps no event from being removed, and its
-- name can be used again. Of many dead letters, or of a large queue, remove_leftovers deletes the rest. The rows in the
-- ledger of positions stay, without effect, until the ledger is trimmed. Raises PS013.
CREATE OR REPLACE FUNCTION unsubscribe(subscription text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner_id bigint := (require_subscription(subscription)).id;
BEGIN
    PERFORM commit_durably();
    -- First the row that every check-in locks first: any other order deadlocks with them.
    PERFORM FROM subscriptions AS s WHERE s.id = owner_id FOR UPDATE;
    DELETE FROM consumers AS c WHERE c.subscription_id = owner_id;
    DELETE FROM leaders AS l WHERE l.subscription_id = owner_id;
    DELETE FROM leases AS l WHERE l.subscription_id = owner_id;
    DELETE FROM archive_readers AS a WHERE a.subscription_id = owner_id;
    DELETE FROM active_partitions AS a WHERE a.subscription_id = owner_id;
    DELETE FROM shares AS h WHERE h.subscription_id = owner_id;
    DELETE FROM surveys AS v WHERE v.subscription_id = owner_id;
    DELETE FROM subscription_topics AS t WHERE t.subscription_id = owner_id;
    DELETE FROM stops AS s WHERE s.subscription_id = owner_id;
    DELETE FROM attempts AS a WHERE a.subscription_id = owner_id;
    -- What a dealer deals meanwhile is a leftover too: this waits for him.
    DELETE FROM queues AS q WHERE q.subscription_id = owner_id;
    PERFORM forget_policies('subscription', ARRAY[owner_id]);
    WITH gone AS (
        DELETE FROM subscriptions AS s WHERE s.id = owner_id RETURNING s.id, s.name
    )
    INSERT INTO removals (subscription_id, name) SELECT g.id, g.name FROM gone AS g;
    PERFORM remove_rows(owner_id, 1000);
END
$$;

-- name: subscription_lag
-- Position, high watermark, lag and holder of every partition of one subscription, or of all. lag_seconds is the time
-- since the first unread event was sequenced.
CREATE OR REPLACE FUNCTION subscription_lag(subscription text DEFAULT NULL)
RETURNS TABLE (
    subscription text, topic text, partition integer, "position" bigint, high_watermark bigint, lag_events bigint,
    lag_seconds double precision, state text, holder text, lease_epoch bigint
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT s.name, t.address, p.number, at.position, at.watermark, at.watermark - at.position,
           COALESCE(extract(epoch FROM clock_timestamp() - sequenced_at_of(p.id, at.position + 1)), 0),
           l.state, l.holder, l.lease_epoch
    FROM (
        SELECT i.* FROM subscriptions AS i
        WHERE (subscription_lag.subscription IS NULL OR i.name = subscription_lag.subscription)
          AND (NOT EXISTS (SELECT FROM namespace_grants) OR NOT reads_unseen(i.id))
        OFFSET 0
    ) AS s
    JOIN leases AS l ON l.subscription_id = s.id
    JOIN partitions AS p ON p.id = l.partition_id
    JOIN topics AS t ON t.id = p.topic_id
    CROSS JOIN LATERAL (
        SELECT current_position(s.id, p.id) AS position, high_watermark(p.id) AS watermark
    ) AS at
    WHERE NOT t.restricted OR has_right(t.namespace_id, 'read')
    ORDER BY s.name, t.address, p.number
$$;

-- name: is_paused
-- Whether a subscription is paused. Call it after its row is locked, in a separate statement.
CREATE OR REPLACE FUNCTION is_paused(subscription_id bigint) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN s.paused_at IS NOT NULL FROM subscriptions AS s WHERE s.id = is_paused.subscription_id;
END
$$;

-- name: listed_topics
-- The ids of the topics to which a consumer limits itself; NULL for all topics of the subscription. Raises
-- PS002, PS003, PS006, PS013, PS030 to PS034.
CREATE OR REPLACE FUNCTION listed_topics(owner subscriptions, topics text[]) RETURNS bigint[]
LANGUAGE plpgsql STABLE AS $$
DECLARE
    address text;
    source_id bigint;
    found_ids bigint[] := '{}';
BEGIN
    IF topics IS NULL THEN
        RETURN NULL;
    ELSIF cardinality(topics) = 0 THEN
        PERFORM refuse('PS006', 'the list of topics of the consumer is empty',
                       'Name at least one topic, or pass no list for all of them.');
    END IF;
    FOREACH address IN ARRAY topics LOOP
        PERFORM require_address(address);
        source_id := require_topic_for(address, 'consume');
        IF NOT EXISTS (
                SELECT FROM subscription_topics AS r
                WHERE r.subscription_id = owner.id AND r.topic_id = source_id) THEN
            PERFORM refuse_unread(owner.name, address);
        END IF;
        found_ids := found_ids || source_id;
    END LOOP;
    RETURN found_ids;
END
$$;

-- name: limit_consumer
-- Records the topics of a consumer that joins, in place of those of an earlier run.
CREATE OR REPLACE FUNCTION limit_consumer(subscription_id bigint, consumer text, topic_ids bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM consumer_topics AS t
    WHERE t.subscription_id = limit_consumer.subscription_id AND t.consumer = limit_consumer.consumer;
    INSERT INTO consumer_topics (subscription_id, consumer, topic_id)
    SELECT DISTINCT limit_consumer.subscription_id, limit_consumer.consumer, t.id FROM unnest(topic_ids) AS t (id);
END
$$;

-- name: may_hold
-- Whether a consumer takes partitions of a topic: it has named this topic, or no topics at all.
CREATE OR REPLACE FUNCTION may_hold(subscription_id bigint, consumer text, topic_id bigint) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN count(*) = 0 OR bool_or(t.topic_id = may_hold.topic_id)
    FROM consumer_topics AS t
    WHERE t.subscription_id = may_hold.subscription_id AND t.consumer = may_hold.consumer;
END
$$;

-- name: shared_topics
-- The topics of a subscription that a consumer takes, in groups: the topics of one group are taken by the same
-- consumers, and each group is shared out by itself. There is one group of all topics (NULL) when no consumer has
-- named topics.
CREATE OR REPLACE FUNCTION shared_topics(subscription_id bigint, consumer text) RETURNS TABLE (topic_ids bigint[])
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM consumer_topics AS t WHERE t.subscription_id = shared_topics.subscription_id) THEN
        RETURN QUERY SELECT NULL::bigint[];
        RETURN;
    END IF;
    RETURN QUERY
    SELECT array_agg(e.topic_id ORDER BY e.topic_id)
    FROM (
        SELECT r.topic_id, array_agg(c.id ORDER BY c.id) AS takers
        FROM subscription_topics AS r
        JOIN consumers AS c ON c.subscription_id = r.subscription_id AND may_hold(c.subscription_id, c.id, r.topic_id)
        WHERE r.subscription_id = shared_topics.subscription_id
        GROUP BY r.topic_id
    ) AS e
    WHERE shared_topics.consumer = ANY (e.takers)
    GROUP BY e.takers
    ORDER BY 1;
END
$$;

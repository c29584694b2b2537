-- name: require_subscription
-- The subscription of a name; raises PS013, also when it reads what the login may not consume.
CREATE OR REPLACE FUNCTION require_subscription(subscription text) RETURNS subscriptions
LANGUAGE plpgsql STABLE AS $$
DECLARE
    found_row subscriptions%ROWTYPE;
BEGIN
    SELECT s.* INTO found_row FROM subscriptions AS s WHERE s.name = subscription;
    -- First whether there are rights at all: where there are none, a heartbeat does not pay for them.
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
LANGUAGE sql STABLE AS $$
    SELECT p.position
    FROM positions AS p
    WHERE p.subscription_id = current_position.subscription_id AND p.partition_id = current_position.partition_id
    ORDER BY p.id DESC
    LIMIT 1
$$;

-- name: start_position
-- Where a new subscription stands: 'earliest' (all that is left), 'latest' (only what comes) or a sequence to begin with.
CREATE OR REPLACE FUNCTION start_position(partition_id bigint, low_sequence bigint, start text) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF start = 'earliest' THEN
        RETURN low_sequence - 1;
    ELSIF start = 'latest' THEN
        RETURN high_watermark(partition_id);
    ELSIF start ~ '^[1-9][0-9]{0,17}$' THEN
        PERFORM require_readable(partition_id, start::bigint, 0);
        IF start::bigint > high_watermark(partition_id) + 1 THEN
            PERFORM refuse('PS012', format('sequence %s is beyond the high watermark', start),
                           'Start at or before the next sequence, or at "latest".');
        END IF;
        RETURN start::bigint - 1;
    END IF;
    PERFORM refuse('PS006', format('a subscription cannot start at "%s"', start),
                   'Use "earliest", "latest" or a sequence from 1 on.');
END
$$;

-- name: subscribe
-- Creates the subscription if need be and adds topics to it; answers how many were new. The topic row is locked against
-- the logical drop, so that "earliest" never points below the low sequence, and against resize and deletion. Raises PS002, PS006,
-- PS007, PS012, PS016, PS030, PS031, PS033.
CREATE OR REPLACE FUNCTION subscribe(subscription text, topics text[], start text DEFAULT 'earliest') RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner_id bigint;
    source_id bigint;
    address text;
    added integer := 0;
BEGIN
    PERFORM require_read_committed('subscribe()');
    PERFORM require_name(replace(subscription, '/', '.'), 'subscription');
    IF COALESCE(cardinality(subscribe.topics), 0) = 0 THEN
        PERFORM refuse('PS006', 'a subscription without a topic', 'Name at least one topic.');
    END IF;
    -- Before the subscription, as everybody does who holds both.
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
    FOR address IN SELECT DISTINCT t COLLATE "C" FROM unnest(subscribe.topics) AS t ORDER BY 1 LOOP
        source_id := (lock_topic(address, 'consume')).id;
        INSERT INTO subscription_topics (subscription_id, topic_id) VALUES (owner_id, source_id) ON CONFLICT DO NOTHING;
        CONTINUE WHEN NOT FOUND;
        added := added + 1;
        INSERT INTO leases (subscription_id, partition_id)
        SELECT owner_id, p.id FROM partitions AS p WHERE p.topic_id = source_id;
        INSERT INTO positions (subscription_id, partition_id, position, lease_epoch, reason)
        SELECT owner_id, p.id, start_position(p.id, p.low_sequence, subscribe.start), 0, 'start'
        FROM partitions AS p
        WHERE p.topic_id = source_id;
    END LOOP;
    IF added > 0 THEN
        PERFORM refresh_policy(owner_id);
    END IF;
    RETURN added;
END
$$;

-- name: configure_subscription
-- Sets the times of a subscription, in seconds: its own heartbeat policy, whose other settings stay. Raises PS006, PS013, PS018.
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
    PERFORM require_policy_settings('heartbeat', wanted);
    PERFORM require_read_committed('configure_subscription()');
    owner_id := lock_policy_scope('subscription', subscription);
    PERFORM store_policy('subscription', owner_id, 'heartbeat', COALESCE((
        SELECT p.settings FROM policies AS p
        WHERE p.scope = 'subscription' AND p.scope_id = owner_id AND p.kind = 'heartbeat'), '{}') || wanted, 'hand');
END
$$;

-- name: unsubscribe
-- Removes a subscription with its leases and dead letters; it holds back no event any more. What the ledger of positions says of it stays, void,
-- until it is trimmed. Raises PS013.
CREATE OR REPLACE FUNCTION unsubscribe(subscription text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner_id bigint := (require_subscription(subscription)).id;
BEGIN
    -- First the row that every check-in locks first: any other order deadlocks with them.
    PERFORM FROM subscriptions AS s WHERE s.id = owner_id FOR UPDATE;
    DELETE FROM consumers AS c WHERE c.subscription_id = owner_id;
    DELETE FROM leaders AS l WHERE l.subscription_id = owner_id;
    DELETE FROM leases AS l WHERE l.subscription_id = owner_id;
    DELETE FROM subscription_topics AS t WHERE t.subscription_id = owner_id;
    DELETE FROM stops AS s WHERE s.subscription_id = owner_id;
    DELETE FROM attempts AS a WHERE a.subscription_id = owner_id;
    DELETE FROM dead_letters AS d WHERE d.subscription_id = owner_id;
    PERFORM forget_policies('subscription', ARRAY[owner_id]);
    DELETE FROM subscriptions AS s WHERE s.id = owner_id;
END
$$;

-- name: subscription_lag
-- Position, high watermark, lag and holder of every partition of one subscription, or of all. lag_seconds is the time since
-- the first unread event was sequenced.
CREATE OR REPLACE FUNCTION subscription_lag(subscription text DEFAULT NULL)
RETURNS TABLE (
    subscription text, topic text, partition integer, "position" bigint, high_watermark bigint, lag_events bigint,
    lag_seconds double precision, state text, holder text, lease_epoch bigint
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT s.name, t.address, p.number, at.position, at.watermark, at.watermark - at.position,
           COALESCE(extract(epoch FROM clock_timestamp() - sequenced_at_of(p.id, at.position + 1)), 0),
           l.state, l.holder, l.lease_epoch
    FROM subscriptions AS s
    JOIN leases AS l ON l.subscription_id = s.id
    JOIN partitions AS p ON p.id = l.partition_id
    JOIN topics AS t ON t.id = p.topic_id
    CROSS JOIN LATERAL (
        SELECT current_position(s.id, p.id) AS position, high_watermark(p.id) AS watermark
    ) AS at
    WHERE (subscription_lag.subscription IS NULL OR s.name = subscription_lag.subscription)
      AND (NOT t.restricted OR has_right(t.namespace_id, 'read'))
    ORDER BY s.name, t.address, p.number
$$;

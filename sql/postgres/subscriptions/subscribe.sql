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
    IF NOT may_name(subscription) THEN
        PERFORM refuse('PS007', format('the subscription "%s" is or would be another''s', subscription),
                       'Choose a name below a namespace of yours.');
    END IF;
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
        PERFORM require_no_relay_member(owner_id);
        PERFORM refuse_circle(owner_id);
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
-- ledger of positions stay, without effect, until the ledger is trimmed. One of the sinks of a relay goes
-- only if the others can reach its quorum. Raises PS006, PS013, PS018.
CREATE OR REPLACE FUNCTION unsubscribe(subscription text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner_id bigint := (require_subscription(subscription)).id;
BEGIN
    PERFORM commit_durably();
    PERFORM require_read_committed('unsubscribe()');
    PERFORM leave_relay_group(owner_id);
    -- First the row that every check-in locks first: any other order deadlocks with them.
    PERFORM FROM subscriptions AS s WHERE s.id = owner_id FOR UPDATE;
    PERFORM require_left_relay(owner_id);
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
    DELETE FROM relay_places AS r WHERE r.subscription_id = owner_id;
    DELETE FROM left_out AS o WHERE o.subscription_id = owner_id;
    DELETE FROM relay_breakers AS b WHERE b.subscription_id = owner_id;
    -- What a dealer deals meanwhile is a leftover too: this waits for him.
    DELETE FROM queues AS q WHERE q.subscription_id = owner_id;
    DELETE FROM queue_labels AS l WHERE l.subscription_id = owner_id;
    DELETE FROM letter_tasks AS k WHERE k.subscription_id = owner_id;
    DELETE FROM letter_moves AS m WHERE m.subscription_id = owner_id;
    PERFORM forget_policies('subscription', ARRAY[owner_id]);
    WITH gone AS (
        DELETE FROM subscriptions AS s WHERE s.id = owner_id RETURNING s.id, s.name
    )
    INSERT INTO removals (subscription_id, name) SELECT g.id, g.name FROM gone AS g;
    PERFORM remove_rows(owner_id, 1000);
END
$$;

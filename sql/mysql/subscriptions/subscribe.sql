-- name: subscribe
-- Creates the subscription if it does not exist, and adds topics (a JSON array) to it. Returns how many were new. In
-- mode 'queue' its events are received and acknowledged one by one; the mode (stream or queue) stays. Raises PS002,
-- PS006, PS007, PS012, PS013, PS016, PS018, PS019, PS021, PS029, PS030, PS031, PS033, PS042.
CREATE PROCEDURE subscribe(subscription LONGTEXT, topics JSON, start LONGTEXT, mode LONGTEXT)
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE added INT;
    {{on error: CALL undo_call()}}
    CALL begin_call('subscribe()');
    CALL require_read_committed('subscribe()');
    CALL make_subscription(subscription, topics, start, mode, owner_id, added);
    SELECT added;
    CALL end_call();
END;

-- name: configure_subscription
-- Sets the times of a subscription, in seconds. They become part of the subscription's own heartbeat policy,
-- whose other settings stay. Raises PS006, PS013, PS018.
CREATE PROCEDURE configure_subscription(
    subscription LONGTEXT, heartbeat_seconds DOUBLE, lease_seconds DOUBLE, release_seconds DOUBLE
)
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE new_version INT;
    DECLARE present LONGTEXT DEFAULT '{}';
    -- MariaDB treats a variable as text.
    DECLARE wanted LONGTEXT DEFAULT JSON_OBJECT(
        'heartbeat_seconds', heartbeat_seconds + 0e0, 'lease_seconds', lease_seconds + 0e0,
        'release_seconds', release_seconds + 0e0);
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    {{on error: CALL undo_call()}}
    CALL begin_call('configure_subscription()');
    CALL require_policy_settings('heartbeat', wanted);
    CALL require_read_committed('configure_subscription()');
    CALL lock_policy_scope('subscription', subscription, owner_id);
    SELECT p.settings INTO present
    FROM policies AS p WHERE p.scope = 'subscription' AND p.scope_id = owner_id AND p.kind = 'heartbeat';
    CALL store_policy('subscription', owner_id, 'heartbeat', JSON_MERGE_PRESERVE(
        JSON_REMOVE(present, '$.heartbeat_seconds', '$.lease_seconds', '$.release_seconds'), wanted),
        'hand', new_version);
    CALL end_call();
END;

-- name: unsubscribe
-- Removes a subscription with its leases and dead letters. From then on it keeps no event from being removed, and its
-- name can be used again. Of many dead letters, or of a large queue, remove_leftovers deletes the rest. The rows in the
-- ledger of positions stay, without effect, until the ledger is trimmed. One of the sinks of a relay goes
-- only if the others can reach its quorum. Raises PS006, PS013, PS018.
CREATE PROCEDURE unsubscribe(subscription LONGTEXT)
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE gone INT;
    {{on error: CALL undo_call()}}
    CALL begin_call('unsubscribe()');
    CALL require_subscription(subscription, owner_id);
    CALL leave_relay_group(owner_id);
    -- First the row that every check-in locks first: any other order deadlocks with them.
    CALL lock_subscription(subscription, owner_id);
    CALL require_left_relay(owner_id);
    DELETE c FROM consumers AS c WHERE c.subscription_id = owner_id;
    DELETE l FROM leaders AS l WHERE l.subscription_id = owner_id;
    DELETE l FROM leases AS l WHERE l.subscription_id = owner_id;
    DELETE a FROM archive_readers AS a WHERE a.subscription_id = owner_id;
    DELETE a FROM active_partitions AS a WHERE a.subscription_id = owner_id;
    DELETE h FROM shares AS h WHERE h.subscription_id = owner_id;
    DELETE v FROM surveys AS v WHERE v.subscription_id = owner_id;
    DELETE t FROM subscription_topics AS t WHERE t.subscription_id = owner_id;
    DELETE s FROM stops AS s WHERE s.subscription_id = owner_id;
    DELETE a FROM attempts AS a WHERE a.subscription_id = owner_id;
    DELETE r FROM relay_places AS r WHERE r.subscription_id = owner_id;
    DELETE o FROM left_out AS o WHERE o.subscription_id = owner_id;
    DELETE b FROM relay_breakers AS b WHERE b.subscription_id = owner_id;
    -- What a dealer deals meanwhile is a leftover too: this waits for him.
    DELETE q FROM queues AS q WHERE q.subscription_id = owner_id;
    DELETE l FROM queue_labels AS l WHERE l.subscription_id = owner_id;
    DELETE k FROM letter_tasks AS k WHERE k.subscription_id = owner_id;
    DELETE m FROM letter_moves AS m WHERE m.subscription_id = owner_id;
    DELETE t FROM queue_turns AS t WHERE t.subscription_id = owner_id;
    CALL forget_policies('subscription', JSON_ARRAY(owner_id));
    INSERT INTO removals (subscription_id, name) SELECT s.id, s.name FROM subscriptions AS s WHERE s.id = owner_id;
    DELETE s FROM subscriptions AS s WHERE s.id = owner_id;
    CALL remove_rows(owner_id, 1000, gone);
    CALL end_call();
END;

-- name: subscribe
-- Creates the subscription if it does not exist, and adds topics (a JSON array) to it. Returns how many were new. In
-- mode 'queue' its events are received and acknowledged one by one; the mode (stream or queue) stays. Raises PS002,
-- PS006, PS007, PS012, PS013, PS016, PS018, PS019, PS021, PS029, PS030, PS031, PS033, PS042.
CREATE PROCEDURE subscribe(subscription LONGTEXT, topics JSON, start LONGTEXT, mode LONGTEXT)
BEGIN
    DECLARE owner_id, source_id BIGINT;
    DECLARE added, known, taken INT DEFAULT 0;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE given CURSOR FOR
        SELECT DISTINCT t.id
        FROM JSON_TABLE(topics, '$[*]' COLUMNS (address VARCHAR(4000) PATH '$')) AS g
        JOIN topics AS t ON t.address_hash = UNHEX(SHA2(g.address, 256))
        ORDER BY t.id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    {{on error: CALL undo_call()}}
    CALL begin_call('subscribe()');
    CALL require_read_committed('subscribe()');
    CALL require_name(REPLACE(subscription, '/', '.'), 'subscription');
    IF COALESCE(JSON_LENGTH(topics), 0) = 0 THEN
        CALL refuse('PS006', 'the subscription names no topic');
    END IF;
    SET taken = NOT may_name(subscription);
    IF taken > 0 THEN
        CALL refuse('PS007', CONCAT('the subscription "', LEFT(subscription, 80), '" is or would be another''s'));
    END IF;
    -- Checked before the row is locked, because it may be another tenant's.
    SELECT COUNT(s.id) INTO taken
    FROM subscriptions AS s WHERE s.name_hash = UNHEX(SHA2(subscription, 256)) AND reads_hidden(s.id);
    IF taken > 0 THEN
        CALL refuse('PS007', CONCAT('there is already a subscription "', LEFT(subscription, 80), '"'));
    END IF;
    -- Locked before the subscription, as in every call that locks both.
    CALL lock_topics(topics, 'consume');
    INSERT INTO subscriptions (name) VALUES (subscription)
    ON DUPLICATE KEY UPDATE max_consumers = subscriptions.max_consumers;
    CALL lock_subscription(subscription, owner_id);
    CALL begin_queue(owner_id, mode);
    OPEN given;
    topic: LOOP
        FETCH given INTO source_id;
        IF done THEN
            LEAVE topic;
        END IF;
        SELECT COUNT(*) INTO known
        FROM subscription_topics AS t WHERE t.subscription_id = owner_id AND t.topic_id = source_id;
        IF known = 0 THEN
            CALL add_topic(owner_id, source_id, start);
            SET added = added + 1;
        END IF;
    END LOOP;
    CLOSE given;
    IF added > 0 THEN
        CALL refuse_circle(owner_id);
        CALL refresh_policy(owner_id);
    END IF;
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
-- ledger of positions stay, without effect, until the ledger is trimmed. Raises PS013.
CREATE PROCEDURE unsubscribe(subscription LONGTEXT)
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE gone INT;
    {{on error: CALL undo_call()}}
    CALL begin_call('unsubscribe()');
    -- First the row that every check-in locks first: any other order deadlocks with them.
    CALL lock_subscription(subscription, owner_id);
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
    DELETE t FROM queue_turns AS t WHERE t.subscription_id = owner_id;
    CALL forget_policies('subscription', JSON_ARRAY(owner_id));
    INSERT INTO removals (subscription_id, name) SELECT s.id, s.name FROM subscriptions AS s WHERE s.id = owner_id;
    DELETE s FROM subscriptions AS s WHERE s.id = owner_id;
    CALL remove_rows(owner_id, 1000, gone);
    CALL end_call();
END;

-- name: refuse_subscription
-- Raises the error that there is no such subscription (PS013), in the same words whether it is missing or
-- hidden.
CREATE PROCEDURE refuse_subscription(subscription LONGTEXT)
NO SQL
BEGIN
    CALL refuse('PS013', CONCAT('there is no subscription "', LEFT(COALESCE(subscription, ''), 80), '"'));
END;

-- name: look_at_subscription
-- The id of a subscription, NULL when there is none; raises PS013 when it reads a topic that the login may not
-- consume.
CREATE PROCEDURE look_at_subscription(subscription LONGTEXT, OUT subscription_id BIGINT)
READS SQL DATA
BEGIN
    DECLARE given INT;
    DECLARE is_hidden BOOLEAN;
    SELECT MAX(s.id) INTO subscription_id FROM subscriptions AS s WHERE s.name_hash = UNHEX(SHA2(subscription, 256));
    -- First it checks whether there are any rights at all, so that a heartbeat has no cost for rights where
    -- there are none.
    SELECT COUNT(g.verb) INTO given FROM (SELECT n.verb FROM namespace_grants AS n LIMIT 1) AS g;
    IF given > 0 OR @penstock_acting IS NOT NULL THEN
        SET is_hidden = reads_hidden(subscription_id);
        IF is_hidden THEN
            CALL refuse_subscription(subscription);
        END IF;
    END IF;
END;

-- name: require_subscription
-- The id of a subscription; raises PS013, also when it reads a topic that the login may not consume.
CREATE PROCEDURE require_subscription(subscription LONGTEXT, OUT subscription_id BIGINT)
READS SQL DATA
BEGIN
    CALL look_at_subscription(subscription, subscription_id);
    IF subscription_id IS NULL THEN
        CALL refuse_subscription(subscription);
    END IF;
END;

-- name: lock_subscription
-- Locks the row of a subscription. Every call that changes consumers or leases locks this row first. Raises PS013
-- before it would lock a subscription that is hidden.
CREATE PROCEDURE lock_subscription(subscription LONGTEXT, OUT subscription_id BIGINT)
BEGIN
    CALL look_at_subscription(subscription, subscription_id);
    SET subscription_id = (
        SELECT s.id FROM subscriptions AS s WHERE s.name_hash = UNHEX(SHA2(subscription, 256)) FOR UPDATE);
    IF subscription_id IS NULL THEN
        CALL refuse_subscription(subscription);
    END IF;
END;

-- name: is_paused
-- Whether a subscription is paused. Call it after its row is locked.
CREATE PROCEDURE is_paused(owner_id BIGINT, OUT paused BOOLEAN)
READS SQL DATA
BEGIN
    SELECT COUNT(s.paused_at) > 0 INTO paused FROM subscriptions AS s WHERE s.id = owner_id;
END;

-- name: add_topic
-- Makes a subscription read a topic. The caller has locked the topic's row against the logical drop, so that
-- "earliest" never points below the low sequence.
CREATE PROCEDURE add_topic(owner_id BIGINT, source_id BIGINT, start LONGTEXT)
BEGIN
    DECLARE part_id, wanted BIGINT;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE parts CURSOR FOR SELECT p.id FROM partitions AS p WHERE p.topic_id = source_id ORDER BY p.id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    INSERT INTO subscription_topics (subscription_id, topic_id) VALUES (owner_id, source_id);
    OPEN parts;
    part: LOOP
        FETCH parts INTO part_id;
        IF done THEN
            LEAVE part;
        END IF;
        CALL start_position(part_id, start, wanted);
        CALL require_start_of_queue(owner_id, part_id, wanted);
        INSERT INTO leases (subscription_id, partition_id) VALUES (owner_id, part_id);
        INSERT INTO positions (subscription_id, partition_id, position, lease_epoch, reason)
        VALUES (owner_id, part_id, wanted, 0, 'start');
    END LOOP;
    CLOSE parts;
END;

-- name: require_reader
-- Refuses a topic that a subscription does not read (PS013).
CREATE PROCEDURE require_reader(owner_id BIGINT, topic_id BIGINT, subscription LONGTEXT, topic LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE is_read INT;
    SELECT COUNT(r.topic_id) INTO is_read
    FROM subscription_topics AS r WHERE r.subscription_id = owner_id AND r.topic_id = topic_id;
    IF is_read = 0 THEN
        CALL refuse('PS013',
                    CONCAT('subscription "', LEFT(subscription, 40), '" does not read topic "', LEFT(topic, 40), '"'));
    END IF;
END;

-- name: lock_topics_read
-- Locks the topics of a subscription, or one of them (NULL: all topics), in the order of their ids.
CREATE PROCEDURE lock_topics_read(owner_id BIGINT, only_id BIGINT)
BEGIN
    DECLARE source_id, locked BIGINT;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE sources CURSOR FOR
        SELECT r.topic_id FROM subscription_topics AS r
        WHERE r.subscription_id = owner_id AND (only_id IS NULL OR r.topic_id = only_id)
        ORDER BY r.topic_id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    OPEN sources;
    topic: LOOP
        FETCH sources INTO source_id;
        IF done THEN
            LEAVE topic;
        END IF;
        SET locked = (SELECT t.id FROM topics AS t WHERE t.id = source_id FOR UPDATE);
    END LOOP;
    CLOSE sources;
END;

-- name: make_subscription
-- What subscribe does: how many topics are new for the subscription.
CREATE PROCEDURE make_subscription(
    subscription LONGTEXT, topics JSON, start LONGTEXT, mode LONGTEXT, OUT owner_id BIGINT, OUT added INT
)
BEGIN
    DECLARE source_id BIGINT;
    DECLARE known, taken INT DEFAULT 0;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE given CURSOR FOR
        SELECT DISTINCT t.id
        FROM JSON_TABLE(topics, '$[*]' COLUMNS (address VARCHAR(4000) PATH '$')) AS g
        JOIN topics AS t ON t.address_hash = UNHEX(SHA2(g.address, 256))
        ORDER BY t.id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    SET added = 0;
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
        CALL require_no_relay_member(owner_id);
        CALL refuse_circle(owner_id);
        CALL refresh_policy(owner_id);
    END IF;
END;

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

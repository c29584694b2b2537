-- name: join
-- Makes a consumer a member of a subscription. The session is a UUID of this run of the consumer: a second run of the
-- same id is refused (PS015) until the first one's deadline has passed or it left. If it names topics of the
-- subscription (a JSON array), it gets only partitions of these. Returns the times, in seconds. Raises PS002, PS003,
-- PS006, PS013, PS015, PS030 to PS034.
CREATE PROCEDURE `join`(subscription LONGTEXT, consumer TEXT, session CHAR(36), weight DOUBLE, topics JSON)
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE places, taken, blocked INT;
    DECLARE heartbeat_time, lease_time DOUBLE;
    DECLARE run BINARY(16) DEFAULT UNHEX(REPLACE(session, '-', ''));
    DECLARE known_run BINARY(16);
    DECLARE known_deadline, present DATETIME(6);
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    {{on error: CALL undo_call()}}
    CALL begin_call('join()');
    IF run IS NULL OR NOT COALESCE(CHAR_LENGTH(consumer) BETWEEN 1 AND 255, FALSE) THEN
        CALL refuse('PS006', 'the consumer has no session, or its id does not have 1 to 255 characters');
    END IF;
    IF NOT COALESCE(weight BETWEEN 0.001 AND 1000, FALSE) THEN
        -- Beyond that, sums overflow, and every check-in of the subscription fails.
        CALL refuse('PS006',
                    CONCAT('weight cannot be ', COALESCE(weight, 'NULL'), ': use 0.001 to 1,000'));
    END IF;
    CALL lock_subscription(subscription, owner_id);
    CALL require_stream(owner_id);
    CALL require_listed(owner_id, subscription, topics);
    SET present = UTC_TIMESTAMP(6);
    SELECT s.heartbeat_seconds, s.lease_seconds, s.max_consumers INTO heartbeat_time, lease_time, places
    FROM subscriptions AS s WHERE s.id = owner_id;
    SELECT c.session, c.deadline INTO known_run, known_deadline
    FROM consumers AS c WHERE c.subscription_id = owner_id AND c.id = consumer FOR UPDATE;
    IF known_run <> run AND known_deadline > present THEN
        CALL refuse('PS015', CONCAT('consumer "', consumer, '" is already running'));
    END IF;
    SELECT COUNT(*) INTO taken FROM consumers AS c WHERE c.subscription_id = owner_id;
    IF known_run IS NULL AND taken >= places THEN
        CALL refuse('PS006', CONCAT('subscription "', subscription, '" has ', places, ' consumers already, its limit'));
    END IF;
    CALL give_up_leases(owner_id, consumer, 'expired', present, blocked);
    IF blocked > 0 THEN
        -- An earlier run is inside a transaction that has locked a lease: under the same id both would hold one
        -- lease_epoch.
        CALL refuse('PS015', CONCAT('an earlier run of consumer "', consumer, '" has not ended its transaction'));
    END IF;
    INSERT INTO consumers (subscription_id, id, session, weight, joined_at, heartbeat_at, deadline)
    VALUES (owner_id, consumer, run, weight, present, present, present + INTERVAL lease_time * 1000000 MICROSECOND)
    ON DUPLICATE KEY UPDATE
        session = VALUES(session), weight = VALUES(weight), joined_at = VALUES(joined_at),
        heartbeat_at = VALUES(heartbeat_at), deadline = VALUES(deadline), check_in_at = DEFAULT(check_in_at),
        called = FALSE;
    CALL limit_consumer(owner_id, consumer, topics);
    SELECT heartbeat_time AS heartbeat_seconds, lease_time AS lease_seconds, MAX(h.history) AS history
    FROM histories AS h;
    CALL end_call();
END;

-- name: leave
-- Ends a consumer's membership and frees its leases at once; leaving twice is no error. A lease whose row a
-- transaction still locks cannot be freed yet. Then the consumer counts as dead from now on, and the next check-in of
-- the subscription removes it.
CREATE PROCEDURE `leave`(subscription LONGTEXT, consumer VARCHAR(255), session CHAR(36))
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE member VARCHAR(255);
    DECLARE blocked INT;
    {{on error: CALL undo_call()}}
    CALL begin_call('leave()');
    CALL require_subscription(subscription, owner_id);
    SET member = (
        SELECT c.id FROM consumers AS c
        WHERE c.subscription_id = owner_id AND c.id = consumer AND c.session = UNHEX(REPLACE(session, '-', ''))
        FOR UPDATE);
    IF member IS NOT NULL THEN
        CALL give_up_leases(owner_id, consumer, 'released', UTC_TIMESTAMP(6), blocked);
        IF blocked = 0 THEN
            DELETE c FROM consumers AS c WHERE c.subscription_id = owner_id AND c.id = consumer;
        ELSE
            UPDATE consumers AS c SET c.deadline = LEAST(c.deadline, UTC_TIMESTAMP(6))
            WHERE c.subscription_id = owner_id AND c.id = consumer;
        END IF;
    END IF;
    CALL end_call();
END;

-- name: sweep
-- Removes the dead consumers of all subscriptions, as check-ins do; this is for subscriptions in which no consumer
-- checks in any more. A subscription whose row is locked has a check-in right now, and is skipped. Then moves the
-- positions of queues from which nobody receives. Raises PS006, PS018.
CREATE PROCEDURE sweep(max_rows INT)
BEGIN
    DECLARE found_id, owner_id BIGINT;
    DECLARE expired, locked, expired_consumers, locked_leases INT DEFAULT 0;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE owners CURSOR FOR
        SELECT s.id
        FROM subscriptions AS s
        WHERE EXISTS (
                SELECT * FROM consumers AS c
                WHERE c.subscription_id = s.id
                  AND (c.deadline <= UTC_TIMESTAMP(6) OR c.heartbeat_at > UTC_TIMESTAMP(6) + INTERVAL 5 SECOND))
           OR EXISTS (
                SELECT * FROM leases AS l
                WHERE l.subscription_id = s.id AND l.state = 'RELEASING' AND l.release_deadline NOT BETWEEN
                    UTC_TIMESTAMP(6) AND UTC_TIMESTAMP(6) + INTERVAL (s.release_seconds + 5) * 1000000 MICROSECOND)
        ORDER BY s.id
        LIMIT max_rows;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    {{on error: CALL undo_call()}}
    CALL begin_call('sweep()');
    CALL require_read_committed('sweep()');
    IF NOT COALESCE(max_rows BETWEEN 1 AND 100000, FALSE) THEN
        CALL refuse('PS006', CONCAT('a sweep of ', COALESCE(max_rows, 'NULL'), ' subscriptions: use 1 to 100,000'));
    END IF;
    OPEN owners;
    each_owner: LOOP
        FETCH owners INTO found_id;
        IF done THEN
            LEAVE each_owner;
        END IF;
        SET owner_id = (SELECT s.id FROM subscriptions AS s WHERE s.id = found_id FOR UPDATE SKIP LOCKED);
        IF owner_id IS NOT NULL THEN
            CALL collect_dead(owner_id, UTC_TIMESTAMP(6), expired, locked);
            SET expired_consumers = expired_consumers + expired, locked_leases = locked_leases + locked;
        END IF;
    END LOOP;
    CLOSE owners;
    CALL end_old(max_rows);
    CALL move_idle_floors(max_rows);
    SELECT expired_consumers, locked_leases;
    CALL end_call();
END;

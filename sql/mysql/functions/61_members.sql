-- name: free_lease
-- Frees a lease whose row the caller has locked, and records how.
CREATE PROCEDURE free_lease(
    owner_id BIGINT, part_id BIGINT, held_epoch BIGINT, held_by VARCHAR(255), how VARCHAR(20), present DATETIME(6)
)
BEGIN
    UPDATE leases AS l
    SET l.state = 'AVAILABLE', l.holder = NULL, l.acquired_at = NULL, l.release_deadline = NULL
    WHERE l.subscription_id = owner_id AND l.partition_id = part_id;
    INSERT INTO lease_history (subscription_id, partition_id, lease_epoch, holder, `change`, at)
    VALUES (owner_id, part_id, held_epoch, held_by, how, present);
END;

-- name: give_up_leases
-- Frees the leases of one consumer, in key order. A lease row that is locked (by a zombie inside a transaction) stays
-- as it is and is counted in the result. The time limit of that transaction ends it.
CREATE PROCEDURE give_up_leases(
    owner_id BIGINT, consumer VARCHAR(255), how VARCHAR(20), present DATETIME(6), OUT blocked INT
)
BEGIN
    DECLARE part_id, held_epoch BIGINT;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE held CURSOR FOR
        SELECT l.partition_id FROM leases AS l
        WHERE l.subscription_id = owner_id AND l.holder = consumer
        ORDER BY l.partition_id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    SET blocked = 0;
    OPEN held;
    lease: LOOP
        FETCH held INTO part_id;
        IF done THEN
            LEAVE lease;
        END IF;
        SET held_epoch = (
            SELECT l.lease_epoch FROM leases AS l
            WHERE l.subscription_id = owner_id AND l.partition_id = part_id AND l.holder = consumer
            FOR UPDATE SKIP LOCKED);
        IF held_epoch IS NULL THEN
            SET blocked = blocked + 1;
        ELSE
            CALL free_lease(owner_id, part_id, held_epoch, consumer, how, present);
        END IF;
    END LOOP;
    CLOSE held;
END;

-- name: free_overdue
-- Frees leases that should have been released by a deadline and were not.
CREATE PROCEDURE free_overdue(owner_id BIGINT, present DATETIME(6))
BEGIN
    DECLARE part_id, held_epoch BIGINT;
    DECLARE held_by VARCHAR(255);
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE overdue CURSOR FOR
        SELECT l.partition_id, l.holder FROM leases AS l
        WHERE l.subscription_id = owner_id AND l.state = 'RELEASING' AND l.release_deadline <= present
        ORDER BY l.partition_id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    OPEN overdue;
    lease: LOOP
        FETCH overdue INTO part_id, held_by;
        IF done THEN
            LEAVE lease;
        END IF;
        SET held_epoch = (
            SELECT l.lease_epoch FROM leases AS l
            WHERE l.subscription_id = owner_id AND l.partition_id = part_id AND l.holder = held_by
              AND l.state = 'RELEASING' AND l.release_deadline <= present
            FOR UPDATE SKIP LOCKED);
        IF held_epoch IS NOT NULL THEN
            CALL free_lease(owner_id, part_id, held_epoch, held_by, 'expired', present);
        END IF;
    END LOOP;
    CLOSE overdue;
END;

-- name: mend_deadlines
-- Gives consumers whose last heartbeat lies ahead a lease from now on: the clock was set back since, and one that died
-- before would keep its partitions for as long as that. One that lives beats again. The same for leases that have to be
-- released. The caller has locked the subscription's row.
CREATE PROCEDURE mend_deadlines(owner_id BIGINT, present DATETIME(6))
BEGIN
    DECLARE lease_time, release_time DOUBLE;
    DECLARE ahead INT;
    SELECT s.lease_seconds, s.release_seconds INTO lease_time, release_time
    FROM subscriptions AS s WHERE s.id = owner_id;
    -- Looked for first: an UPDATE would lock all that it passes over.
    SELECT COUNT(*) INTO ahead
    FROM consumers AS c WHERE c.subscription_id = owner_id AND c.heartbeat_at > present + INTERVAL 5 SECOND;
    IF ahead > 0 THEN
        UPDATE consumers AS c
        SET c.deadline = present + INTERVAL lease_time * 1000000 MICROSECOND, c.heartbeat_at = present
        WHERE c.subscription_id = owner_id AND c.heartbeat_at > present + INTERVAL 5 SECOND;
    END IF;
    SELECT COUNT(*) INTO ahead
    FROM leases AS l
    WHERE l.subscription_id = owner_id AND l.state = 'RELEASING'
      AND l.release_deadline > present + INTERVAL (release_time + 5) * 1000000 MICROSECOND;
    IF ahead > 0 THEN
        UPDATE leases AS l
        SET l.release_deadline = present + INTERVAL release_time * 1000000 MICROSECOND
        WHERE l.subscription_id = owner_id AND l.state = 'RELEASING'
          AND l.release_deadline > present + INTERVAL (release_time + 5) * 1000000 MICROSECOND;
    END IF;
END;

-- name: collect_dead
-- Removes consumers whose deadline has passed and frees their leases. It also frees leases that should have been
-- released and are overdue. A consumer stays while one of its lease rows is locked. The caller has locked the
-- subscription's row.
CREATE PROCEDURE collect_dead(owner_id BIGINT, present DATETIME(6), OUT expired INT, OUT locked INT)
BEGIN
    DECLARE dead_id, still_dead VARCHAR(255);
    DECLARE blocked INT;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE dead CURSOR FOR
        SELECT c.id FROM consumers AS c WHERE c.subscription_id = owner_id AND c.deadline <= present ORDER BY c.id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    SET expired = 0, locked = 0;
    CALL mend_deadlines(owner_id, present);
    OPEN dead;
    consumer: LOOP
        FETCH dead INTO dead_id;
        IF done THEN
            LEAVE consumer;
        END IF;
        SET still_dead = (
            SELECT c.id FROM consumers AS c
            WHERE c.subscription_id = owner_id AND c.id = dead_id AND c.deadline <= present
            FOR UPDATE SKIP LOCKED);
        IF still_dead IS NULL THEN
            ITERATE consumer;
        END IF;
        CALL give_up_leases(owner_id, dead_id, 'expired', present, blocked);
        SET locked = locked + blocked;
        IF blocked = 0 THEN
            DELETE c FROM consumers AS c WHERE c.subscription_id = owner_id AND c.id = dead_id;
            SET expired = expired + 1;
        END IF;
    END LOOP;
    CLOSE dead;
    CALL free_overdue(owner_id, present);
END;

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

-- name: extend_deadline
-- Moves a consumer's deadline to a lease time from now; a check-in (else NULL) also uses up its scheduled time, and
-- sets the next one. Raises PS014 when the session is not (or no longer) a member.
CREATE PROCEDURE extend_deadline(
    owner_id BIGINT, consumer VARCHAR(255), session CHAR(36), present DATETIME(6), next_check_in DATETIME(6)
)
BEGIN
    DECLARE lease_time DOUBLE;
    DECLARE member VARCHAR(255) DEFAULT (
        SELECT c.id FROM consumers AS c
        WHERE c.subscription_id = owner_id AND c.id = consumer AND c.session = UNHEX(REPLACE(session, '-', ''))
        FOR UPDATE);
    IF member IS NULL THEN
        CALL refuse('PS014', CONCAT('consumer "', COALESCE(consumer, ''), '" is not a member, or not any more'));
    END IF;
    SELECT s.lease_seconds INTO lease_time FROM subscriptions AS s WHERE s.id = owner_id;
    UPDATE consumers AS c
    SET c.heartbeat_at = present, c.deadline = present + INTERVAL lease_time * 1000000 MICROSECOND,
        c.check_in_at = COALESCE(next_check_in, c.check_in_at), c.called = c.called AND next_check_in IS NULL
    WHERE c.subscription_id = owner_id AND c.id = consumer;
END;

-- name: heartbeat
-- Keeps a consumer and all its leases alive. Raises PS013, PS014.
CREATE PROCEDURE heartbeat(subscription LONGTEXT, consumer VARCHAR(255), session CHAR(36))
BEGIN
    DECLARE owner_id BIGINT;
    {{on error: CALL undo_call()}}
    CALL begin_call('heartbeat()');
    CALL find_subscription(subscription, owner_id);
    CALL extend_deadline(owner_id, consumer, session, UTC_TIMESTAMP(6), NULL);
    CALL end_call();
END;

-- name: heartbeats
-- The heartbeat of all consumers of a process at once. Returns for each, by its place in the arrays, its standing,
-- the seconds until its next check-in, and the seconds between two check-ins of one consumer. The standing is member,
-- gone, or locked: then another session has locked its row, so call again. It waits for no lock, and a consumer that
-- is gone does not affect the others. While consumers are being called to check in early, the others postpone their
-- check-ins. Raises PS006.
CREATE PROCEDURE heartbeats(subscription_names JSON, consumer_ids JSON, sessions JSON)
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE given_rights INT;
    DECLARE given_id, member VARCHAR(255);
    DECLARE run BINARY(16);
    DECLARE lease_time, pause DOUBLE;
    DECLARE turns_until DATETIME(6);
    DECLARE present DATETIME(6) DEFAULT UTC_TIMESTAMP(6);
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE given CURSOR FOR
        SELECT STRAIGHT_JOIN s.id, c.id, UNHEX(REPLACE(r.id, '-', '')), s.lease_seconds,
               GREATEST(s.heartbeat_seconds, COALESCE(v.pace_seconds, 0)), v.called_until
        FROM JSON_TABLE(subscription_names, '$[*]' COLUMNS (place FOR ORDINALITY, name VARCHAR(500) PATH '$')) AS n
        JOIN (
            SELECT j.place, j.id
            FROM JSON_TABLE(consumer_ids, '$[*]' COLUMNS (place FOR ORDINALITY, id VARCHAR(255) PATH '$')) AS j
            LIMIT 1000000
        ) AS c ON c.place = n.place
        JOIN (
            SELECT j.place, j.id
            FROM JSON_TABLE(sessions, '$[*]' COLUMNS (place FOR ORDINALITY, id CHAR(36) PATH '$')) AS j
            LIMIT 1000000
        ) AS r ON r.place = n.place
        JOIN subscriptions AS s FORCE INDEX (subscriptions_name) ON s.name_hash = UNHEX(SHA2(n.name, 256))
        LEFT JOIN surveys AS v FORCE INDEX (PRIMARY) ON v.subscription_id = s.id
        WHERE given_rights = 0 OR NOT reads_hidden(s.id)
        ORDER BY s.id, c.id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    {{on error: CALL undo_call()}}
    CALL begin_call('heartbeats()');
    IF NOT COALESCE(JSON_LENGTH(consumer_ids) = JSON_LENGTH(subscription_names)
        AND JSON_LENGTH(sessions) = JSON_LENGTH(subscription_names), FALSE) THEN
        CALL refuse('PS006', 'a heartbeat needs a subscription and a session for each of its consumers');
    END IF;
    SELECT COUNT(g.verb) INTO given_rights FROM (SELECT n.verb FROM namespace_grants AS n LIMIT 1) AS g;
    OPEN given;
    consumer: LOOP
        FETCH given INTO owner_id, given_id, run, lease_time, pause, turns_until;
        IF done THEN
            LEAVE consumer;
        END IF;
        SET member = (
            SELECT c.id FROM consumers AS c
            WHERE c.subscription_id = owner_id AND c.id = given_id AND c.session = run
            FOR UPDATE SKIP LOCKED);
        IF member IS NOT NULL THEN
            UPDATE consumers AS c
            SET c.heartbeat_at = present, c.deadline = present + INTERVAL lease_time * 1000000 MICROSECOND,
                c.check_in_at = IF(
                    -- Of before the clock was set back.
                    c.check_in_at > present + INTERVAL (3 * pause + 60) * 1000000 MICROSECOND, present, IF(
                        c.check_in_at <= present AND NOT c.called AND turns_until BETWEEN present + INTERVAL 1 SECOND
                            AND present + INTERVAL (pause + 60) * 1000000 MICROSECOND,
                        turns_until + INTERVAL pause * RAND() * 1000000 MICROSECOND, c.check_in_at))
            WHERE c.subscription_id = owner_id AND c.id = given_id;
        END IF;
    END LOOP;
    CLOSE given;
    SELECT r.place, IF(c.id IS NULL, 'gone', IF(c.heartbeat_at >= present, 'member', 'locked')) AS standing,
           COALESCE(GREATEST(TIMESTAMPDIFF(MICROSECOND, present, c.check_in_at), 0) / 1e6, 0) AS check_in_seconds,
           COALESCE(v.pace_seconds, 0) AS pace_seconds
    FROM JSON_TABLE(sessions, '$[*]' COLUMNS (place FOR ORDINALITY, id CHAR(36) PATH '$')) AS r
    LEFT JOIN (
        SELECT j.place, j.name
        FROM JSON_TABLE(subscription_names, '$[*]' COLUMNS (place FOR ORDINALITY, name VARCHAR(500) PATH '$')) AS j
        LIMIT 1000000
    ) AS n ON n.place = r.place
    LEFT JOIN (
        SELECT j.place, j.id
        FROM JSON_TABLE(consumer_ids, '$[*]' COLUMNS (place FOR ORDINALITY, id VARCHAR(255) PATH '$')) AS j
        LIMIT 1000000
    ) AS g ON g.place = r.place
    LEFT JOIN subscriptions AS s FORCE INDEX (subscriptions_name)
        ON s.name_hash = UNHEX(SHA2(n.name, 256)) AND (given_rights = 0 OR NOT reads_hidden(s.id))
    LEFT JOIN consumers AS c FORCE INDEX (PRIMARY)
        ON c.subscription_id = s.id AND c.id = g.id AND c.session = UNHEX(REPLACE(r.id, '-', ''))
    LEFT JOIN surveys AS v FORCE INDEX (PRIMARY) ON v.subscription_id = s.id
    ORDER BY r.place;
    CALL end_call();
END;

-- name: held_leases
-- The leases that a consumer holds, each with the position after which to read.
CREATE PROCEDURE held_leases(subscription LONGTEXT, consumer VARCHAR(255))
READS SQL DATA
BEGIN
    DECLARE history INT;
    CALL refuse_serializable('held_leases()');
    SELECT MAX(h.history) INTO history FROM histories AS h;
    SELECT t.address AS topic, p.number AS `partition`, p.id AS partition_id, l.lease_epoch, l.state,
           current_position(s.id, p.id) AS position, history AS history
    FROM subscriptions AS s
    JOIN leases AS l ON l.subscription_id = s.id
    JOIN partitions AS p ON p.id = l.partition_id
    JOIN topics AS t ON t.id = p.topic_id
    WHERE s.name_hash = UNHEX(SHA2(subscription, 256)) AND l.holder = consumer
      AND (NOT t.restricted OR has_right(t.namespace_id, 'consume'))
    ORDER BY p.id;
END;

-- name: release
-- Gives single leases back (two JSON arrays; for the LIMIT see poll), in response to RELEASING or because a consumer
-- has no use for them. A lease that is no longer held is skipped. Returns how many were freed.
CREATE PROCEDURE `release`(subscription LONGTEXT, consumer VARCHAR(255), partition_ids JSON, lease_epochs JSON)
BEGIN
    DECLARE owner_id, part_id, given_epoch, held_epoch BIGINT;
    DECLARE freed INT DEFAULT 0;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE given CURSOR FOR
        SELECT p.id, e.lease_epoch
        FROM JSON_TABLE(partition_ids, '$[*]' COLUMNS (place FOR ORDINALITY, id BIGINT PATH '$')) AS p
        JOIN (
            SELECT j.place, j.lease_epoch
            FROM JSON_TABLE(lease_epochs, '$[*]' COLUMNS (place FOR ORDINALITY, lease_epoch BIGINT PATH '$')) AS j
            LIMIT 1000000
        ) AS e ON e.place = p.place
        ORDER BY p.id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    {{on error: CALL undo_call()}}
    CALL begin_call('release()');
    CALL find_subscription(subscription, owner_id);
    OPEN given;
    lease: LOOP
        FETCH given INTO part_id, given_epoch;
        IF done THEN
            LEAVE lease;
        END IF;
        SET held_epoch = (
            SELECT l.lease_epoch FROM leases AS l
            WHERE l.subscription_id = owner_id AND l.partition_id = part_id AND l.lease_epoch = given_epoch
              AND l.holder = consumer
            FOR UPDATE);
        IF held_epoch IS NOT NULL THEN
            CALL free_lease(owner_id, part_id, held_epoch, consumer, 'released', UTC_TIMESTAMP(6));
            SET freed = freed + 1;
        END IF;
    END LOOP;
    CLOSE given;
    SELECT freed;
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
    CALL find_subscription(subscription, owner_id);
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

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
-- Frees the leases of one consumer, in key order. A row that somebody has locked (a zombie inside a transaction) stays as
-- it is and is counted in the answer; its own time limit ends that transaction.
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
-- Frees leases that were to be released in time and were not.
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

-- name: collect_dead
-- Removes consumers whose deadline has passed and frees their leases; frees leases that were to be released and are overdue.
-- A consumer stays while one of its lease rows is locked. The caller holds the subscription's row.
CREATE PROCEDURE collect_dead(owner_id BIGINT, present DATETIME(6), OUT expired INT, OUT locked INT)
BEGIN
    DECLARE dead_id, still_dead VARCHAR(255);
    DECLARE blocked INT;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE dead CURSOR FOR
        SELECT c.id FROM consumers AS c WHERE c.subscription_id = owner_id AND c.deadline <= present ORDER BY c.id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    SET expired = 0, locked = 0;
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
-- Makes a consumer a member of a subscription. The session is a UUID of this run of the consumer: a second run of the same
-- id is refused (PS015) until the first one's deadline has passed or it left. Given topics of the subscription (a JSON array), it is
-- handed only partitions of these. Answers the times, in seconds. Raises PS002, PS003, PS006, PS013, PS015, PS030 to PS034.
CREATE PROCEDURE `join`(subscription LONGTEXT, consumer TEXT, session CHAR(36), weight DOUBLE, topics JSON)
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE places, taken, blocked INT;
    DECLARE heartbeat_time, lease_time DOUBLE;
    DECLARE run BINARY(16) DEFAULT UNHEX(REPLACE(session, '-', ''));
    DECLARE known_run BINARY(16);
    DECLARE known_deadline, present DATETIME(6);
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION
    BEGIN
        CALL undo_call();
        RESIGNAL;
    END;
    CALL begin_call('join()');
    IF run IS NULL OR NOT COALESCE(CHAR_LENGTH(consumer) BETWEEN 1 AND 255, FALSE) THEN
        CALL refuse('PS006', 'a consumer without a session, or whose id has not 1 to 255 characters');
    END IF;
    IF NOT COALESCE(weight BETWEEN 0.001 AND 1000, FALSE) THEN
        -- Beyond that, sums overflow, and every check-in of the subscription with them.
        CALL refuse('PS006', CONCAT('a consumer of weight ', COALESCE(weight, 'NULL'), ', not between 0.001 and 1,000'));
    END IF;
    CALL lock_subscription(subscription, owner_id);
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
        CALL refuse('PS006', CONCAT('subscription "', subscription, '" has all its ', places, ' consumers'));
    END IF;
    CALL give_up_leases(owner_id, consumer, 'expired', present, blocked);
    IF blocked > 0 THEN
        -- An earlier run is inside a transaction that holds a lease: under the same id both would hold one lease_epoch.
        CALL refuse('PS015', CONCAT('an earlier run of consumer "', consumer, '" has not ended its transaction'));
    END IF;
    INSERT INTO consumers (subscription_id, id, session, weight, joined_at, heartbeat_at, deadline)
    VALUES (owner_id, consumer, run, weight, present, present, present + INTERVAL lease_time * 1000000 MICROSECOND)
    ON DUPLICATE KEY UPDATE
        session = VALUES(session), weight = VALUES(weight), joined_at = VALUES(joined_at),
        heartbeat_at = VALUES(heartbeat_at), deadline = VALUES(deadline);
    CALL limit_consumer(owner_id, consumer, topics);
    SELECT heartbeat_time AS heartbeat_seconds, lease_time AS lease_seconds, MAX(h.history) AS history FROM histories AS h;
END;

-- name: extend_deadline
-- Moves a consumer's deadline to a lease time from now; raises PS014 when the session is not (or no longer) a member.
CREATE PROCEDURE extend_deadline(owner_id BIGINT, consumer VARCHAR(255), session CHAR(36), present DATETIME(6))
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
    SET c.heartbeat_at = present, c.deadline = present + INTERVAL lease_time * 1000000 MICROSECOND
    WHERE c.subscription_id = owner_id AND c.id = consumer;
END;

-- name: heartbeat
-- Keeps a consumer and all its leases alive. Raises PS013, PS014.
CREATE PROCEDURE heartbeat(subscription LONGTEXT, consumer VARCHAR(255), session CHAR(36))
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION
    BEGIN
        CALL undo_call();
        RESIGNAL;
    END;
    CALL begin_call('heartbeat()');
    CALL find_subscription(subscription, owner_id);
    CALL extend_deadline(owner_id, consumer, session, UTC_TIMESTAMP(6));
END;

-- name: read_board
-- Fills the session's table board: every partition of a subscription, or of these topics (a JSON array of ids; NULL: all), who works
-- on it, how much of it is unread and whether it is active. It is active when it has unread events or redriven letters, or was
-- read a moment ago (one that drains between two events keeps its lease for that long).
CREATE PROCEDURE read_board(owner_id BIGINT, topic_ids JSON, present DATETIME(6))
BEGIN
    CREATE TEMPORARY TABLE IF NOT EXISTS board (
        partition_id BIGINT NOT NULL PRIMARY KEY, state VARCHAR(10) NOT NULL, holder_hash BINARY(32), random_key DOUBLE NOT NULL,
        backlog BIGINT NOT NULL, is_active BOOLEAN NOT NULL, KEY board_holder (holder_hash)
    ) ENGINE = MEMORY;
    DELETE FROM board;
    INSERT INTO board (partition_id, state, holder_hash, random_key, backlog, is_active)
    SELECT STRAIGHT_JOIN n.partition_id, n.state, UNHEX(SHA2(n.holder, 256)), n.random_key,
           n.watermark - p.position + n.redriven, n.watermark > p.position OR n.redriven > 0
               OR (n.holder IS NOT NULL AND GREATEST(p.at, n.acquired_at) > present - INTERVAL 30 SECOND)
    FROM (
        SELECT l.partition_id, l.state, l.holder, l.random_key, l.acquired_at, high_watermark(l.partition_id) AS watermark, (
                   SELECT q.id
                   FROM positions AS q FORCE INDEX (positions_newest)
                   WHERE q.subscription_id = l.subscription_id AND q.partition_id = l.partition_id
                   ORDER BY q.subscription_id DESC, q.partition_id DESC, q.id DESC
                   LIMIT 1) AS newest, (
                   SELECT COUNT(*) FROM dead_letters AS d FORCE INDEX (dead_letters_redriven)
                   WHERE d.subscription_id = l.subscription_id AND d.partition_id = l.partition_id
                     AND d.redriven_at IS NOT NULL) AS redriven
        FROM leases AS l
        WHERE l.subscription_id = owner_id AND (topic_ids IS NULL OR JSON_CONTAINS(topic_ids, CAST(l.partition_id >> 16 AS CHAR)))
        LIMIT 1000000  -- Keeps it from being merged into the query, which would call the function for each mention.
    ) AS n
    JOIN positions AS p ON p.id = n.newest;
END;

-- name: find_share
-- How many active partitions of the board a consumer holds too few (shortage; below 0: too many), and how many the others want
-- beyond what is free (uncovered). Fair share by weight of those who take this topic (NULL: all): largest remainders (Hamilton), ties by consumer id, so that all
-- active partitions are held, the spread at equal weights is at most 1, and nothing moves in the steady state.
CREATE PROCEDURE find_share(
    owner_id BIGINT, consumer VARCHAR(255), of_topic BIGINT, OUT shortage BIGINT, OUT uncovered BIGINT
)
BEGIN
    DECLARE active, unheld BIGINT;
    SELECT COALESCE(SUM(b.is_active), 0), COALESCE(SUM(b.is_active AND b.state <> 'ACTIVE'), 0) INTO active, unheld
    FROM board AS b;
    WITH exact AS (
        SELECT c.id, active * c.weight / SUM(c.weight) OVER () AS share, (
                   SELECT COUNT(*) FROM board AS b
                   WHERE b.holder_hash = UNHEX(SHA2(c.id, 256)) AND b.state = 'ACTIVE' AND b.is_active) AS held
        FROM consumers AS c
        WHERE c.subscription_id = owner_id AND (of_topic IS NULL OR may_hold(owner_id, c.id, of_topic))
    ), ranked AS (
        SELECT e.id, FLOOR(e.share) - e.held AS missing,
               ROW_NUMBER() OVER (ORDER BY e.share - FLOOR(e.share) DESC, e.id) AS place,
               active - SUM(FLOOR(e.share)) OVER () AS left_over
        FROM exact AS e
    )
    SELECT MAX(IF(r.id = consumer, r.missing + (r.place <= r.left_over), NULL)),
           SUM(GREATEST(r.missing + (r.place <= r.left_over), 0)) - unheld
    INTO shortage, uncovered
    FROM ranked AS r;
END;

-- name: release_surplus
-- Asks a consumer to give up what it holds above its quota, but only while others are short of more than is free: smallest
-- backlog first. A partition that has gone cold is given up whatever the quota.
CREATE PROCEDURE release_surplus(
    owner_id BIGINT, consumer VARCHAR(255), surplus BIGINT, present DATETIME(6), deadline DATETIME(6)
)
BEGIN
    DECLARE part_id, held_epoch BIGINT;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE chosen CURSOR FOR
        SELECT o.partition_id
        FROM (
            SELECT b.partition_id, b.is_active,
                   ROW_NUMBER() OVER (PARTITION BY b.is_active ORDER BY b.backlog, b.partition_id) AS place
            FROM board AS b
            WHERE b.state = 'ACTIVE' AND b.holder_hash = UNHEX(SHA2(consumer, 256))
        ) AS o
        WHERE NOT o.is_active OR o.place <= surplus
        ORDER BY o.partition_id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    OPEN chosen;
    lease: LOOP
        FETCH chosen INTO part_id;
        IF done THEN
            LEAVE lease;
        END IF;
        -- Asked again of the row itself: since the board was read it may have been given back or taken by a seek.
        SET held_epoch = (
            SELECT l.lease_epoch FROM leases AS l
            WHERE l.subscription_id = owner_id AND l.partition_id = part_id AND l.holder = consumer AND l.state = 'ACTIVE'
            FOR UPDATE SKIP LOCKED);
        IF held_epoch IS NOT NULL THEN
            UPDATE leases AS l SET l.state = 'RELEASING', l.release_deadline = deadline
            WHERE l.subscription_id = owner_id AND l.partition_id = part_id;
            INSERT INTO lease_history (subscription_id, partition_id, lease_epoch, holder, `change`, at)
            VALUES (owner_id, part_id, held_epoch, consumer, 'releasing', present);
        END IF;
    END LOOP;
    CLOSE chosen;
END;

-- name: acquire
-- Leases up to shortage free partitions with unread events, from a random pivot on and round, so that consumers do not meet.
-- Every acquisition raises lease_epoch.
CREATE PROCEDURE acquire(owner_id BIGINT, consumer VARCHAR(255), shortage BIGINT, present DATETIME(6))
BEGIN
    DECLARE part_id, free_epoch BIGINT;
    DECLARE pivot DOUBLE DEFAULT RAND();
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE wanted CURSOR FOR
        SELECT w.partition_id
        FROM (
            SELECT b.partition_id
            FROM board AS b
            WHERE b.state = 'AVAILABLE' AND b.backlog > 0
            ORDER BY b.random_key < pivot, b.random_key
            LIMIT shortage
        ) AS w
        ORDER BY w.partition_id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    OPEN wanted;
    lease: LOOP
        FETCH wanted INTO part_id;
        IF done THEN
            LEAVE lease;
        END IF;
        SET free_epoch = (
            SELECT l.lease_epoch FROM leases AS l
            WHERE l.subscription_id = owner_id AND l.partition_id = part_id AND l.state = 'AVAILABLE'
            FOR UPDATE SKIP LOCKED);
        IF free_epoch IS NOT NULL THEN
            UPDATE leases AS l
            SET l.state = 'ACTIVE', l.holder = consumer, l.lease_epoch = free_epoch + 1, l.acquired_at = present,
                l.release_deadline = NULL
            WHERE l.subscription_id = owner_id AND l.partition_id = part_id;
            INSERT INTO lease_history (subscription_id, partition_id, lease_epoch, holder, `change`, at)
            VALUES (owner_id, part_id, free_epoch + 1, consumer, 'acquired', present);
        END IF;
    END LOOP;
    CLOSE wanted;
END;

-- name: held_leases
-- What a consumer holds, with the position after which to read.
CREATE PROCEDURE held_leases(subscription LONGTEXT, consumer VARCHAR(255))
READS SQL DATA
BEGIN
    DECLARE history INT;
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

-- name: share_out
-- What a check-in does for topics that the same consumers take (a JSON array of ids, and one of them; NULL: all): compares what the
-- consumer holds of them with its fair share, asks it for its surplus while others are short, or acquires what it lacks.
CREATE PROCEDURE share_out(
    owner_id BIGINT, consumer VARCHAR(255), topic_ids JSON, of_topic BIGINT, present DATETIME(6), deadline DATETIME(6)
)
BEGIN
    DECLARE shortage, uncovered BIGINT;
    CALL read_board(owner_id, topic_ids, present);
    CALL find_share(owner_id, consumer, of_topic, shortage, uncovered);
    CALL release_surplus(owner_id, consumer, LEAST(-shortage, uncovered), present, deadline);
    IF shortage > 0 THEN
        CALL acquire(owner_id, consumer, shortage, present);
    END IF;
END;

-- name: check_in
-- Heartbeat, collection of the dead, fair share, release, acquisition, in one transaction, one check-in of a subscription at
-- a time; the clock is read after the lock. While the subscription is paused, all that is held is asked for. Answers the leases that
-- are now held. Raises PS013, PS014, PS018.
CREATE PROCEDURE check_in(subscription LONGTEXT, consumer VARCHAR(255), session CHAR(36))
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE expired, locked, listed INT;
    DECLARE paused BOOLEAN;
    DECLARE release_time DOUBLE;
    DECLARE present, deadline DATETIME(6);
    DECLARE EXIT HANDLER FOR SQLEXCEPTION
    BEGIN
        CALL undo_call();
        RESIGNAL;
    END;
    CALL require_read_committed('check_in()');
    CALL begin_call('check_in()');
    CALL lock_subscription(subscription, owner_id);
    SET present = UTC_TIMESTAMP(6);
    SELECT s.release_seconds INTO release_time FROM subscriptions AS s WHERE s.id = owner_id;
    SET deadline = present + INTERVAL release_time * 1000000 MICROSECOND;
    CALL extend_deadline(owner_id, consumer, session, present);
    CALL collect_dead(owner_id, present, expired, locked);
    CALL find_paused(owner_id, paused);
    SELECT COUNT(f.topic_id) INTO listed
    FROM (SELECT t.topic_id FROM consumer_topics AS t WHERE t.subscription_id = owner_id LIMIT 1) AS f;
    IF paused THEN
        CALL read_board(owner_id, NULL, present);
        CALL release_surplus(owner_id, consumer, 1000000000, present, deadline);
    ELSEIF listed > 0 THEN
        CALL share_out_groups(owner_id, consumer, present, deadline);
    ELSE
        CALL share_out(owner_id, consumer, NULL, NULL, present, deadline);
    END IF;
    CALL held_leases(subscription, consumer);
END;

-- name: release
-- Gives single leases (two JSON arrays; as to the LIMIT see poll) back, as the answer to RELEASING or because a consumer has
-- no use for them. What is
-- no longer held is passed over. Answers how many were freed.
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
    DECLARE EXIT HANDLER FOR SQLEXCEPTION
    BEGIN
        CALL undo_call();
        RESIGNAL;
    END;
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
END;

-- name: leave
-- Ends a consumer's membership and frees its leases at once; leaving twice is no error. A lease that a transaction still
-- holds cannot be freed yet: then the consumer counts as dead from now on, and the next check-in collects it.
CREATE PROCEDURE `leave`(subscription LONGTEXT, consumer VARCHAR(255), session CHAR(36))
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE member VARCHAR(255);
    DECLARE blocked INT;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION
    BEGIN
        CALL undo_call();
        RESIGNAL;
    END;
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
END;

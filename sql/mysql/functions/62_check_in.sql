-- name: redriven_letters
-- How many dead letters of a partition wait for their next delivery.
CREATE FUNCTION redriven_letters(of_subscription BIGINT, of_partition BIGINT) RETURNS BIGINT
READS SQL DATA
BEGIN
    DECLARE found BIGINT;
    SELECT COUNT(*) INTO found
    FROM dead_letters AS d FORCE INDEX (dead_letters_redriven)
    WHERE d.subscription_id = of_subscription AND d.partition_id = of_partition AND d.redriven_at IS NOT NULL;
    RETURN found;
END;

-- name: backlog_of
-- How much of a partition is unread, redriven dead letters included.
CREATE FUNCTION backlog_of(of_subscription BIGINT, of_partition BIGINT) RETURNS BIGINT
READS SQL DATA
RETURN high_watermark(of_partition) - current_position(of_subscription, of_partition)
    + redriven_letters(of_subscription, of_partition);

-- name: survey
-- Records which partitions of a subscription are active, unless that was done after the given time: all check-ins
-- share what one of them has found. A partition is active when it has unread events or redriven dead letters, or when
-- it is held and was read a moment ago, so that its lease is kept over a short pause between two events. Partitions
-- that were active and are held are looked at within ten seconds, a part of them each time, chosen by their random
-- keys, unless the caller asks for all. The caller has locked the subscription's row, so that one check-in looks
-- while the others wait and need not look again. Returns whether it looked.
CREATE PROCEDURE survey(owner_id BIGINT, since DATETIME(6), is_whole BOOLEAN, present DATETIME(6), OUT looked BOOLEAN)
survey: BEGIN
    DECLARE turn, share DOUBLE;
    -- One that lies ahead was made before the clock was set back.
    SELECT COUNT(v.made_at) = 0 INTO looked
    FROM surveys AS v WHERE v.subscription_id = owner_id AND v.made_at BETWEEN since AND present;
    IF NOT looked THEN
        LEAVE survey;
    END IF;
    SELECT MAX(TIMESTAMPDIFF(MICROSECOND, '2000-01-01', v.made_at)) / 1e7 INTO turn
    FROM surveys AS v WHERE v.subscription_id = owner_id AND v.made_at <= present;
    SET share = IF(is_whole OR turn IS NULL, 1, TIMESTAMPDIFF(MICROSECOND, '2000-01-01', present) / 1e7 - turn);
    SET turn = COALESCE(turn - FLOOR(turn), 0);
    CREATE TEMPORARY TABLE IF NOT EXISTS looked_at (
        partition_id BIGINT NOT NULL PRIMARY KEY, is_active BOOLEAN NOT NULL, was_active BOOLEAN NOT NULL
    ) ENGINE = MEMORY;
    DELETE FROM looked_at;
    INSERT INTO looked_at (partition_id, is_active, was_active)
    SELECT STRAIGHT_JOIN n.partition_id,
           IF(n.holder IS NOT NULL AND GREATEST(p.at, n.acquired_at) > present - INTERVAL 30 SECOND, TRUE,
              high_watermark(n.partition_id) > p.position OR redriven_letters(owner_id, n.partition_id) > 0),
           n.was_active
    FROM (
        SELECT l.partition_id, l.holder, l.acquired_at, a.partition_id IS NOT NULL AS was_active, (
                   SELECT q.id
                   FROM positions AS q FORCE INDEX (positions_newest)
                   WHERE q.subscription_id = l.subscription_id AND q.partition_id = l.partition_id
                   ORDER BY q.subscription_id DESC, q.partition_id DESC, q.id DESC
                   LIMIT 1) AS newest
        FROM leases AS l FORCE INDEX (PRIMARY)
        LEFT JOIN active_partitions AS a ON a.subscription_id = owner_id AND a.partition_id = l.partition_id
        WHERE l.subscription_id = owner_id AND (
            a.partition_id IS NULL OR l.state = 'AVAILABLE' OR l.random_key - turn - FLOOR(l.random_key - turn) < share)
        LIMIT 1000000  -- Keeps it from being merged into the query.
    ) AS n
    JOIN positions AS p ON p.id = n.newest;
    DELETE a
    FROM looked_at AS f
    STRAIGHT_JOIN active_partitions AS a ON a.subscription_id = owner_id AND a.partition_id = f.partition_id
    WHERE NOT f.is_active;
    INSERT INTO active_partitions (subscription_id, partition_id)
    SELECT owner_id, f.partition_id FROM looked_at AS f WHERE f.is_active AND NOT f.was_active;
    INSERT INTO surveys (subscription_id, made_at, pace_seconds)
    SELECT s.id, present, (SELECT COUNT(*) FROM consumers AS c WHERE c.subscription_id = owner_id) / s.target_qps
    FROM subscriptions AS s
    WHERE s.id = owner_id
    ON DUPLICATE KEY UPDATE made_at = VALUES(made_at), pace_seconds = VALUES(pace_seconds);
END;

-- name: read_board
-- Fills the session's table board: every partition of a subscription, or of these topics (a JSON array of ids; NULL:
-- all topics), which consumer holds it, and whether it is active.
CREATE PROCEDURE read_board(owner_id BIGINT, topic_ids JSON)
BEGIN
    CREATE TEMPORARY TABLE IF NOT EXISTS board (
        partition_id BIGINT NOT NULL PRIMARY KEY, state VARCHAR(10) NOT NULL, holder_hash BINARY(32),
        random_key DOUBLE NOT NULL, is_active BOOLEAN NOT NULL, KEY board_holder (holder_hash)
    ) ENGINE = MEMORY;
    DELETE FROM board;
    INSERT INTO board (partition_id, state, holder_hash, random_key, is_active)
    SELECT l.partition_id, l.state, UNHEX(SHA2(l.holder, 256)), l.random_key, a.partition_id IS NOT NULL
    FROM leases AS l FORCE INDEX (PRIMARY)
    LEFT JOIN active_partitions AS a ON a.subscription_id = owner_id AND a.partition_id = l.partition_id
    WHERE l.subscription_id = owner_id
      AND (topic_ids IS NULL OR JSON_CONTAINS(topic_ids, CAST(l.partition_id >> 16 AS CHAR)));
END;

-- name: find_standings
-- Fills the session's table stands: how many active partitions of the board each consumer holds, and how many it
-- holds too few (below 0: too many). The fair shares are by weight, among the consumers that take this topic (NULL:
-- all topics), by the method of largest remainders (Hamilton); ties go by consumer id. So all active partitions are
-- held, consumers of equal weight differ by at most 1, and nothing moves in the steady state.
CREATE PROCEDURE find_standings(owner_id BIGINT, of_topic BIGINT, active BIGINT)
BEGIN
    CREATE TEMPORARY TABLE IF NOT EXISTS stands (
        consumer VARCHAR(255) NOT NULL PRIMARY KEY, shortage BIGINT NOT NULL, held BIGINT NOT NULL
    ) ENGINE = MEMORY;
    DELETE FROM stands;
    INSERT INTO stands (consumer, shortage, held)
    WITH exact AS (
        SELECT c.id, active * c.weight / SUM(c.weight) OVER () AS share, (
                   SELECT COUNT(*) FROM board AS b
                   WHERE b.holder_hash = UNHEX(SHA2(c.id, 256)) AND b.state = 'ACTIVE' AND b.is_active) AS held
        FROM consumers AS c
        WHERE c.subscription_id = owner_id AND (of_topic IS NULL OR may_hold(owner_id, c.id, of_topic))
    ), ranked AS (
        SELECT e.id, e.held, FLOOR(e.share) - e.held AS missing,
               ROW_NUMBER() OVER (ORDER BY e.share - FLOOR(e.share) DESC, e.id) AS place,
               active - SUM(FLOOR(e.share)) OVER () AS left_over
        FROM exact AS e
    )
    SELECT r.id, r.missing + (r.place <= r.left_over), r.held FROM ranked AS r;
END;

-- name: find_share
-- What a consumer holds, compared with its fair share. shortage: how many active partitions it holds too few (below
-- 0: too many). cold: how many partitions that are held are not active. uncovered: how many of the partitions that
-- the others lack are not free. It also returns how many partitions are free, and how many of the others hold too few
-- or too many (concerned).
CREATE PROCEDURE find_share(
    owner_id BIGINT, me VARCHAR(255), of_topic BIGINT, OUT shortage BIGINT, OUT cold BIGINT, OUT uncovered BIGINT,
    OUT available BIGINT, OUT concerned BIGINT
)
BEGIN
    DECLARE active, unheld BIGINT;
    SELECT COALESCE(SUM(b.is_active), 0), COALESCE(SUM(b.is_active AND b.state <> 'ACTIVE'), 0),
           COALESCE(SUM(b.is_active AND b.state = 'AVAILABLE'), 0),
           COALESCE(SUM(NOT b.is_active AND b.state = 'ACTIVE'), 0)
    INTO active, unheld, available, cold
    FROM board AS b;
    CALL find_standings(owner_id, of_topic, active);
    SELECT MAX(IF(s.consumer = me, s.shortage, NULL)), SUM(GREATEST(s.shortage, 0)) - unheld,
           SUM(s.shortage <> 0 AND s.consumer <> me)
    INTO shortage, uncovered, concerned
    FROM stands AS s;
END;

-- name: release_surplus
-- Asks a consumer to give back what it holds above its quota, but only while the others lack more partitions than are
-- free. Partitions with the smallest backlog come first. A partition that is no longer active is given back whatever
-- the quota. Returns how many it asked for.
CREATE PROCEDURE release_surplus(
    owner_id BIGINT, consumer VARCHAR(255), surplus BIGINT, present DATETIME(6), deadline DATETIME(6), OUT asked BIGINT
)
BEGIN
    DECLARE part_id, held_epoch BIGINT;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE chosen CURSOR FOR
        SELECT o.partition_id
        FROM (
            -- A partition that got events since the survey is active again.
            SELECT h.partition_id, (h.is_active OR h.backlog > 0) AS is_active, ROW_NUMBER() OVER (
                       PARTITION BY (h.is_active OR h.backlog > 0) ORDER BY h.backlog, h.partition_id) AS place
            FROM (
                SELECT b.partition_id, b.is_active, backlog_of(owner_id, b.partition_id) AS backlog
                FROM board AS b
                WHERE b.state = 'ACTIVE' AND b.holder_hash = UNHEX(SHA2(consumer, 256))
                LIMIT 1000000  -- Keeps it from being merged, which would call the functions for each mention.
            ) AS h
        ) AS o
        WHERE NOT o.is_active OR o.place <= surplus
        ORDER BY o.partition_id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    SET asked = 0;
    OPEN chosen;
    lease: LOOP
        FETCH chosen INTO part_id;
        IF done THEN
            LEAVE lease;
        END IF;
        -- Checked again on the row itself: since the board was read the lease may have been given back or taken by a
        -- seek.
        SET held_epoch = (
            SELECT l.lease_epoch FROM leases AS l
            WHERE l.subscription_id = owner_id AND l.partition_id = part_id AND l.holder = consumer
              AND l.state = 'ACTIVE'
            FOR UPDATE SKIP LOCKED);
        IF held_epoch IS NOT NULL THEN
            UPDATE leases AS l SET l.state = 'RELEASING', l.release_deadline = deadline
            WHERE l.subscription_id = owner_id AND l.partition_id = part_id;
            INSERT INTO lease_history (subscription_id, partition_id, lease_epoch, holder, `change`, at)
            VALUES (owner_id, part_id, held_epoch, consumer, 'releasing', present);
            SET asked = asked + 1;
        END IF;
    END LOOP;
    CLOSE chosen;
END;

-- name: acquire
-- Leases up to shortage free partitions with unread events. It starts at a random place and wraps around, so that
-- consumers do not compete for the same ones. Every acquisition raises lease_epoch. Returns how many it leased.
CREATE PROCEDURE acquire(owner_id BIGINT, consumer VARCHAR(255), shortage BIGINT, present DATETIME(6), OUT taken BIGINT)
BEGIN
    DECLARE part_id, free_epoch BIGINT;
    DECLARE pivot DOUBLE DEFAULT RAND();
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE wanted CURSOR FOR
        SELECT w.partition_id
        FROM (
            SELECT f.partition_id
            FROM (
                SELECT b.partition_id
                FROM board AS b
                WHERE b.state = 'AVAILABLE' AND b.is_active
                ORDER BY b.random_key < pivot, b.random_key
                LIMIT 1000000  -- First the order, then the look at each: it ends with the last one that is wanted.
            ) AS f
            WHERE backlog_of(owner_id, f.partition_id) > 0
            LIMIT shortage
        ) AS w
        ORDER BY w.partition_id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    SET taken = 0;
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
            SET taken = taken + 1;
        END IF;
    END LOOP;
    CLOSE wanted;
END;

-- name: call_consumers
-- Calls consumers that hold too few or too many partitions to check in before their time: target_qps of them at once,
-- then the same number each second. Their next heartbeat tells them. A consumer that was called already, or whose row
-- is locked, is skipped. The caller has locked the subscription's row.
CREATE PROCEDURE call_consumers(
    owner_id BIGINT, me VARCHAR(255), many_short BIGINT, many_ample BIGINT, present DATETIME(6)
)
BEGIN
    DECLARE one, member VARCHAR(255);
    DECLARE turn DOUBLE;
    DECLARE first_turn DATETIME(6);
    DECLARE called INT DEFAULT 0;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE concerned CURSOR FOR
        SELECT r.consumer
        FROM (
            SELECT s.consumer, s.shortage,
                   ROW_NUMBER() OVER (PARTITION BY SIGN(s.shortage) ORDER BY ABS(s.shortage) DESC, s.consumer) AS place
            FROM stands AS s
            WHERE s.shortage <> 0 AND s.consumer <> me
        ) AS r
        WHERE r.place <= IF(r.shortage > 0, many_short, many_ample)
        ORDER BY RAND();
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    SELECT 1000000 / s.target_qps,
           IF(v.called_until BETWEEN present AND present + INTERVAL (v.pace_seconds + 60) * 1000000 MICROSECOND,
              v.called_until, present)
    INTO turn, first_turn
    FROM subscriptions AS s JOIN surveys AS v ON v.subscription_id = s.id
    WHERE s.id = owner_id;
    OPEN concerned;
    consumer: LOOP
        FETCH concerned INTO one;
        IF done THEN
            LEAVE consumer;
        END IF;
        SET member = (
            SELECT c.id FROM consumers AS c
            WHERE c.subscription_id = owner_id AND c.id = one AND NOT c.called
            FOR UPDATE SKIP LOCKED);
        IF member IS NOT NULL THEN
            UPDATE consumers AS c
            SET c.called = TRUE, c.check_in_at = LEAST(c.check_in_at, GREATEST(
                    present, first_turn + INTERVAL turn * called - 1000000 MICROSECOND))
            WHERE c.subscription_id = owner_id AND c.id = one;
            SET called = called + 1;
        END IF;
    END LOOP;
    CLOSE concerned;
    IF called > 0 THEN
        UPDATE surveys AS v
        SET v.called_until = first_turn + INTERVAL turn * called MICROSECOND
        WHERE v.subscription_id = owner_id;
    END IF;
END;

-- name: give_and_take
-- Makes a consumer give back and take the partitions of the board that it should. Returns how many it was
-- asked to give back, and how many it took.
CREATE PROCEDURE give_and_take(
    owner_id BIGINT, consumer VARCHAR(255), shortage BIGINT, cold BIGINT, uncovered BIGINT, present DATETIME(6),
    deadline DATETIME(6), OUT asked BIGINT, OUT taken BIGINT
)
BEGIN
    SET asked = 0, taken = 0;
    IF cold > 0 OR LEAST(-shortage, uncovered) > 0 THEN
        CALL release_surplus(owner_id, consumer, LEAST(-shortage, uncovered), present, deadline, asked);
    END IF;
    IF shortage > 0 THEN
        CALL acquire(owner_id, consumer, shortage, present, taken);
    END IF;
END;

-- name: share_out
-- What a check-in does after a survey, for topics that the same consumers take (a JSON array of ids, and one of them;
-- NULL: all topics). It compares what each consumer holds with its fair share, makes this consumer give back and take
-- what it should, and calls the others that hold too few or too many. For all topics together it records the result,
-- for follow_share.
CREATE PROCEDURE share_out(
    owner_id BIGINT, consumer VARCHAR(255), topic_ids JSON, of_topic BIGINT, present DATETIME(6), deadline DATETIME(6)
)
BEGIN
    DECLARE shortage, cold, uncovered, available, concerned, asked, taken BIGINT;
    CALL read_board(owner_id, topic_ids);
    CALL find_share(owner_id, consumer, of_topic, shortage, cold, uncovered, available, concerned);
    CALL give_and_take(owner_id, consumer, shortage, cold, uncovered, present, deadline, asked, taken);
    IF concerned > 0 THEN
        CALL call_consumers(owner_id, consumer, available - taken, uncovered - asked, present);
    END IF;
    IF topic_ids IS NULL THEN
        CALL write_shares(owner_id);
        UPDATE surveys AS v
        SET v.balanced = (shortage = 0 AND cold = 0 AND concerned = 0), v.uncovered = uncovered - asked
        WHERE v.subscription_id = owner_id;
    END IF;
END;

-- name: write_shares
-- Stores the quotas of the consumers that hold too few or too many, and no others.
CREATE PROCEDURE write_shares(owner_id BIGINT)
BEGIN
    DELETE h FROM shares AS h LEFT JOIN stands AS s ON s.consumer = h.consumer AND s.shortage <> 0
    WHERE h.subscription_id = owner_id AND s.consumer IS NULL;
    INSERT INTO shares (subscription_id, consumer, quota)
    SELECT owner_id, s.consumer, s.shortage + s.held FROM stands AS s WHERE s.shortage <> 0
    ON DUPLICATE KEY UPDATE quota = VALUES(quota);
END;

-- name: follow_share
-- What a check-in does until the next survey: it applies what the last survey found for this consumer. Returns false
-- for a consumer that has joined since that survey.
CREATE PROCEDURE follow_share(
    owner_id BIGINT, me VARCHAR(255), present DATETIME(6), deadline DATETIME(6), OUT is_known BOOLEAN
)
BEGIN
    DECLARE uncovered, quota, warm, cold, asked, taken BIGINT;
    DECLARE is_balanced BOOLEAN;
    SELECT v.balanced, v.uncovered, c.joined_at <= v.made_at, (
               SELECT h.quota FROM shares AS h WHERE h.subscription_id = owner_id AND h.consumer = me)
    INTO is_balanced, uncovered, is_known, quota
    FROM surveys AS v JOIN consumers AS c ON c.subscription_id = v.subscription_id
    WHERE v.subscription_id = owner_id AND c.id = me;
    IF is_known AND NOT is_balanced THEN
        SELECT COUNT(a.partition_id), COUNT(l.partition_id) - COUNT(a.partition_id) INTO warm, cold
        FROM leases AS l FORCE INDEX (PRIMARY)
        LEFT JOIN active_partitions AS a ON a.subscription_id = owner_id AND a.partition_id = l.partition_id
        WHERE l.subscription_id = owner_id AND l.holder = me AND l.state = 'ACTIVE';
        IF cold > 0 OR quota <> warm THEN
            CALL read_board(owner_id, NULL);
            CALL give_and_take(
                owner_id, me, COALESCE(quota - warm, 0), cold, uncovered, present, deadline, asked, taken);
            UPDATE surveys AS v SET v.uncovered = v.uncovered - asked WHERE v.subscription_id = owner_id;
        END IF;
    END IF;
END;

-- name: check_in
-- Sends a heartbeat, removes dead consumers, computes the fair share, releases and acquires leases, all in one
-- transaction. One check-in of a subscription runs at a time; it reads the clock after it has the lock. The check-in
-- surveys which partitions have unread events and what each consumer holds, when fresh is true or a consumer has
-- died, else at most once in refresh_seconds for the whole subscription. After a survey it calls the consumers that
-- hold too few or too many. Returns the leases that the consumer now holds. While the subscription is paused, it asks
-- the consumer to give back all of them. Raises PS013, PS014, PS018.
CREATE PROCEDURE check_in(subscription LONGTEXT, consumer VARCHAR(255), session CHAR(36), fresh BOOLEAN)
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE asked BIGINT;
    DECLARE expired, locked, listed INT;
    DECLARE paused, looked BOOLEAN;
    DECLARE is_known BOOLEAN DEFAULT FALSE;
    DECLARE release_time, refresh_time, pause DOUBLE;
    DECLARE present, deadline DATETIME(6);
    DECLARE asked_at DATETIME(6) DEFAULT UTC_TIMESTAMP(6);
    {{on error: CALL undo_call()}}
    CALL begin_call('check_in()');
    CALL require_read_committed('check_in()');
    CALL lock_subscription(subscription, owner_id);
    SET present = UTC_TIMESTAMP(6);
    SELECT s.release_seconds, s.refresh_seconds, GREATEST(s.heartbeat_seconds, COALESCE(v.pace_seconds, 0))
    INTO release_time, refresh_time, pause
    FROM subscriptions AS s LEFT JOIN surveys AS v ON v.subscription_id = s.id
    WHERE s.id = owner_id;
    CALL extend_deadline(owner_id, consumer, session, present,
                         present + INTERVAL pause * (0.9 + 0.2 * RAND()) * 1000000 MICROSECOND);
    CALL collect_dead(owner_id, present, expired, locked);
    SET deadline = present + INTERVAL release_time * 1000000 MICROSECOND;
    CALL find_paused(owner_id, paused);
    IF paused THEN
        CALL read_board(owner_id, NULL);
        CALL release_surplus(owner_id, consumer, 1000000000, present, deadline, asked);
    ELSE
        CALL survey(
            owner_id,
            IF(fresh, asked_at, IF(expired > 0, present, present - INTERVAL refresh_time * 1000000 MICROSECOND)), fresh,
            present, looked);
        SELECT COUNT(f.topic_id) INTO listed
        FROM (SELECT t.topic_id FROM consumer_topics AS t WHERE t.subscription_id = owner_id LIMIT 1) AS f;
        IF listed > 0 THEN
            CALL share_out_groups(owner_id, consumer, present, deadline);
        ELSE
            IF NOT looked THEN
                CALL follow_share(owner_id, consumer, present, deadline, is_known);
            END IF;
            IF NOT is_known THEN
                CALL share_out(owner_id, consumer, NULL, NULL, present, deadline);
            END IF;
        END IF;
    END IF;
    CALL held_leases(subscription, consumer);
    CALL end_call();
END;

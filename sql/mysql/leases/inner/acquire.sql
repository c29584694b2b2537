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

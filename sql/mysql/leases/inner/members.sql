-- name: require_member
-- Locks a live member of a subscription whose row the caller has locked; raises PS014.
CREATE PROCEDURE require_member(owner_id BIGINT, consumer VARCHAR(255), session CHAR(36))
BEGIN
    DECLARE member VARCHAR(255);
    SET member = (
        SELECT c.id FROM consumers AS c
        WHERE c.subscription_id = owner_id AND c.id = consumer AND c.session = UNHEX(REPLACE(session, '-', ''))
          AND c.deadline > UTC_TIMESTAMP(6)
        FOR UPDATE);
    IF member IS NULL THEN
        CALL refuse('PS014', CONCAT('consumer "', COALESCE(consumer, ''), '" is not a member, or not any more'));
    END IF;
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

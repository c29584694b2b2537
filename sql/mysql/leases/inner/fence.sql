-- name: hold_leases
-- The fence. Locks the lease rows, in key order, to the end of the caller's transaction; take-over needs the same
-- lock. A check without the lock would allow a write skew: a zombie that checks before the take-over and commits
-- after it would be accepted. Counts a refusal in an AUTO_INCREMENT, which the refusal cannot roll back. Without a
-- consumer (NULL) the leases are those of another store: nobody may hold them here, and mark_low_water must have told
-- of this lease_epoch and of no higher one. Raises PS010, PS018.
CREATE PROCEDURE hold_leases(owner_id BIGINT, consumer VARCHAR(255), partition_ids JSON, lease_epochs JSON)
BEGIN
    DECLARE part_id, given_epoch BIGINT;
    DECLARE left_seconds DOUBLE;
    DECLARE held, all_held BOOLEAN DEFAULT TRUE;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE given CURSOR FOR
        SELECT p.id, e.lease_epoch
        FROM JSON_TABLE(partition_ids, '$[*]' COLUMNS (place FOR ORDINALITY, id BIGINT PATH '$')) AS p
        LEFT JOIN (
            SELECT j.place, j.lease_epoch
            FROM JSON_TABLE(lease_epochs, '$[*]' COLUMNS (place FOR ORDINALITY, lease_epoch BIGINT PATH '$')) AS j
            LIMIT 1000000
        ) AS e ON e.place = p.place
        ORDER BY p.id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    CALL require_read_committed('a commit');
    OPEN given;
    lease: LOOP
        FETCH given INTO part_id, given_epoch;
        IF done OR NOT all_held THEN
            LEAVE lease;
        END IF;
        CALL hold_lease(owner_id, consumer, part_id, given_epoch, held);
        SET all_held = held;
    END LOOP;
    CLOSE given;
    IF consumer IS NULL THEN
        SELECT MAX(s.lease_seconds) INTO left_seconds FROM subscriptions AS s WHERE s.id = owner_id;
    ELSE
        SELECT MAX(TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), c.deadline)) / 1e6 INTO left_seconds
        FROM consumers AS c WHERE c.subscription_id = owner_id AND c.id = consumer;
    END IF;
    IF NOT all_held OR NOT COALESCE(left_seconds > 0, FALSE) THEN
        INSERT INTO rejected_commits () VALUES ();
        CALL refuse('PS010', CONCAT(COALESCE(CONCAT('consumer "', consumer, '"'), 'the holder in another store'),
                                    ' no longer holds these leases'));
    END IF;
    CALL limit_transaction(left_seconds);
END;

-- name: hold_lease
-- Locks one lease row; held says whether the consumer holds it under this lease_epoch (NULL: nobody does).
CREATE PROCEDURE hold_lease(
    owner_id BIGINT, consumer VARCHAR(255), part_id BIGINT, given_epoch BIGINT, OUT held BOOLEAN
)
BEGIN
    SELECT COUNT(*) INTO held
    FROM leases AS l
    WHERE l.subscription_id = owner_id AND l.partition_id = part_id AND l.lease_epoch = given_epoch
      AND l.holder <=> consumer
    FOR UPDATE;
END;

-- name: limit_transaction
-- Sets a limit that ends the session if the transaction that now locks a lease row is idle for longer than the lease.
-- Otherwise a paused consumer would make its successor wait without limit. It never raises a limit that the caller
-- has set. MariaDB has a limit for transactions; MySQL has only one for idle sessions, which lift_limit restores.
CREATE PROCEDURE limit_transaction(left_seconds DOUBLE)
NO SQL
BEGIN
    DECLARE allowed BIGINT DEFAULT GREATEST(FLOOR(left_seconds * 0.95), 1);
    CALL lift_limit();
    SET @penstock_own_limit = @@SESSION./*!80000 wait_timeout */ /*M! idle_transaction_timeout */;
    IF @penstock_own_limit = 0 OR @penstock_own_limit > allowed THEN
        SET SESSION /*!80000 wait_timeout */ /*M! idle_transaction_timeout */ = allowed;
        SET @penstock_limit = allowed;
    END IF;
END;

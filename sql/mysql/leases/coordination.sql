-- name: claim
-- Leases one partition that no live consumer holds, if lease_epoch is still the one that the caller has seen. Returns
-- the position, or NULL when another consumer was faster, a zombie's transaction still locks the lease, or the
-- subscription is paused. Raises PS013, PS014.
CREATE PROCEDURE claim(
    subscription LONGTEXT, consumer VARCHAR(255), session CHAR(36), partition_id BIGINT, lease_epoch BIGINT
)
BEGIN
    DECLARE owner_id, free_epoch, position BIGINT;
    DECLARE held_by, alive VARCHAR(255);
    DECLARE paused BOOLEAN;
    DECLARE present DATETIME(6);
    {{on error: CALL undo_call()}}
    CALL begin_call('claim()');
    CALL lock_subscription(subscription, owner_id);
    CALL require_member(owner_id, consumer, session);
    SET free_epoch = (
        SELECT l.lease_epoch FROM leases AS l
        WHERE l.subscription_id = owner_id AND l.partition_id = partition_id AND l.lease_epoch = lease_epoch
        FOR UPDATE SKIP LOCKED);
    CALL is_paused(owner_id, paused);
    IF free_epoch IS NOT NULL AND NOT paused THEN
        SET held_by = (
            SELECT l.holder FROM leases AS l
            WHERE l.subscription_id = owner_id AND l.partition_id = partition_id
            FOR UPDATE);
        SET present = UTC_TIMESTAMP(6);
        -- Locked, because a heartbeat that is under way may keep the holder alive.
        SET alive = (
            SELECT c.id FROM consumers AS c
            WHERE c.subscription_id = owner_id AND c.id = held_by AND c.deadline > present
            FOR UPDATE);
        IF alive IS NULL THEN
            IF held_by IS NOT NULL THEN
                CALL free_lease(owner_id, partition_id, free_epoch, held_by, 'expired', present);
            END IF;
            UPDATE leases AS l
            SET l.state = 'ACTIVE', l.holder = consumer, l.lease_epoch = free_epoch + 1, l.acquired_at = present,
                l.release_deadline = NULL
            WHERE l.subscription_id = owner_id AND l.partition_id = partition_id;
            INSERT INTO lease_history (subscription_id, partition_id, lease_epoch, holder, `change`, at)
            VALUES (owner_id, partition_id, free_epoch + 1, consumer, 'acquired', present);
            SELECT current_position(owner_id, partition_id) INTO position;
        END IF;
    END IF;
    SELECT position;
    CALL end_call();
END;

-- name: lease_states
-- Every partition of a subscription: which consumer claimed it last and has not given it back, whether that
-- consumer is alive, and how far the partition was read. Raises PS013.
CREATE PROCEDURE lease_states(subscription LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE owner_id BIGINT;
    CALL refuse_serializable('lease_states()');
    CALL require_subscription(subscription, owner_id);
    SELECT l.partition_id, l.holder, c.id IS NOT NULL AS live, l.lease_epoch,
           current_position(owner_id, l.partition_id) AS position
    FROM leases AS l
    LEFT JOIN consumers AS c
        ON c.subscription_id = l.subscription_id AND c.id = l.holder AND c.deadline > UTC_TIMESTAMP(6)
    WHERE l.subscription_id = owner_id
    ORDER BY l.partition_id;
END;

-- name: active_consumers
-- The live members of a subscription with their weights. Raises PS013.
CREATE PROCEDURE active_consumers(subscription LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE owner_id BIGINT;
    CALL refuse_serializable('active_consumers()');
    CALL require_subscription(subscription, owner_id);
    SELECT c.id AS consumer, c.weight FROM consumers AS c
    WHERE c.subscription_id = owner_id AND c.deadline > UTC_TIMESTAMP(6)
    ORDER BY c.id;
END;

-- name: lead_subscription
-- The term of this consumer as leader. It becomes the leader if no live consumer leads; NULL when another
-- consumer leads. Raises PS013, PS014.
CREATE PROCEDURE lead_subscription(subscription LONGTEXT, consumer VARCHAR(255), session CHAR(36))
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE term BIGINT DEFAULT 0;
    DECLARE leader BINARY(16);
    DECLARE alive VARCHAR(255);
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    {{on error: CALL undo_call()}}
    CALL begin_call('lead_subscription()');
    CALL lock_subscription(subscription, owner_id);
    CALL require_member(owner_id, consumer, session);
    SELECT l.term, l.session INTO term, leader FROM leaders AS l WHERE l.subscription_id = owner_id FOR UPDATE;
    SET alive = (
        SELECT c.id FROM consumers AS c
        WHERE c.subscription_id = owner_id AND c.session = leader AND c.deadline > UTC_TIMESTAMP(6)
        LIMIT 1
        FOR UPDATE);
    IF leader IS NULL THEN
        SET term = 1;
        INSERT INTO leaders (subscription_id, term, session, holders)
        VALUES (owner_id, term, UNHEX(REPLACE(session, '-', '')), '{}');
    ELSEIF alive IS NULL THEN
        SET term = term + 1;
        UPDATE leaders AS l SET l.term = term, l.session = UNHEX(REPLACE(session, '-', ''))
        WHERE l.subscription_id = owner_id;
    ELSEIF leader <> UNHEX(REPLACE(session, '-', '')) THEN
        SET term = NULL;
    END IF;
    SELECT term;
    CALL end_call();
END;

-- name: assign_partitions
-- Records a leader's decision (a JSON object: partition id to consumer), fenced by the leader's term. Raises
-- PS010, PS013, PS014.
CREATE PROCEDURE assign_partitions(
    subscription LONGTEXT, consumer VARCHAR(255), session CHAR(36), term BIGINT, holders LONGTEXT
)
BEGIN
    DECLARE owner_id, present_term BIGINT;
    {{on error: CALL undo_call()}}
    CALL begin_call('assign_partitions()');
    CALL lock_subscription(subscription, owner_id);
    CALL require_member(owner_id, consumer, session);
    SET present_term = (
        SELECT l.term FROM leaders AS l
        WHERE l.subscription_id = owner_id AND l.term = term AND l.session = UNHEX(REPLACE(session, '-', ''))
        FOR UPDATE);
    IF present_term IS NULL THEN
        CALL refuse('PS010', CONCAT('term ', COALESCE(term, 'NULL'), ' of leader "', consumer, '" is over'));
    END IF;
    UPDATE leaders AS l SET l.decided_in = term, l.holders = holders WHERE l.subscription_id = owner_id;
    CALL end_call();
END;

-- name: assignment_of
-- The last decision of a subscription's leader, and the term in which it was made; no row before the first
-- decision. Raises PS013.
CREATE PROCEDURE assignment_of(subscription LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE owner_id BIGINT;
    CALL refuse_serializable('assignment_of()');
    CALL require_subscription(subscription, owner_id);
    SELECT l.decided_in AS term, l.holders FROM leaders AS l WHERE l.subscription_id = owner_id;
END;

-- name: mark_low_water
-- Copies positions from a registry outside the database into the ledger, on which retention is based; all or none. A
-- position that the ledger has reached already is skipped. It is fenced by lease_epoch: one that is older than any
-- seen here is refused, here and where the calls of dead letters are made without a consumer. A lease that a live
-- consumer holds here is refused too; that of a dead one ends. The arrays are JSON (for the LIMIT see poll). Returns
-- how many positions moved. Raises PS006, PS010, PS012, PS013, PS018.
CREATE PROCEDURE mark_low_water(subscription LONGTEXT, partition_ids JSON, lease_epochs JSON, positions JSON)
BEGIN
    DECLARE owner_id, part_id, given_epoch, given_position BIGINT;
    DECLARE places INT DEFAULT COALESCE(JSON_LENGTH(partition_ids), 0);
    DECLARE marked INT DEFAULT 0;
    DECLARE moved BOOLEAN;
    DECLARE id_before BIGINT DEFAULT LAST_INSERT_ID();
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE given CURSOR FOR
        SELECT p.id, e.lease_epoch, w.position
        FROM JSON_TABLE(partition_ids, '$[*]' COLUMNS (place FOR ORDINALITY, id BIGINT PATH '$')) AS p
        JOIN (
            SELECT j.place, j.lease_epoch
            FROM JSON_TABLE(lease_epochs, '$[*]' COLUMNS (place FOR ORDINALITY, lease_epoch BIGINT PATH '$')) AS j
            LIMIT 1000000
        ) AS e ON e.place = p.place
        JOIN (
            SELECT j.place, j.position
            FROM JSON_TABLE(positions, '$[*]' COLUMNS (place FOR ORDINALITY, position BIGINT PATH '$')) AS j
            LIMIT 1000000
        ) AS w ON w.place = p.place
        ORDER BY p.id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    {{on error: CALL undo_call()}}
    CALL begin_call('mark_low_water()');
    CALL require_read_committed('mark_low_water()');
    CALL require_subscription(subscription, owner_id);
    CALL require_stream(owner_id);
    IF places <> COALESCE(JSON_LENGTH(lease_epochs), 0) OR places <> COALESCE(JSON_LENGTH(positions), 0) THEN
        CALL refuse('PS006', 'each partition needs one lease_epoch and one position');
    END IF;
    OPEN given;
    mark: LOOP
        FETCH given INTO part_id, given_epoch, given_position;
        IF done THEN
            LEAVE mark;
        END IF;
        CALL mark_one(owner_id, part_id, given_epoch, given_position, moved);
        SET marked = marked + moved;
    END LOOP;
    CLOSE given;
    DO LAST_INSERT_ID(id_before);
    SELECT marked;
    CALL end_call();
END;

-- name: note_archive_reads
-- Records that whoever holds these leases reads the archive, where the subscription stands below the low sequence. Then
-- retention does not wait for it there: what is dropped stays readable for it. That is good for these lease_epochs: the
-- next holder has to say so too, because he may have no targets. Until somebody says it, retention waits. An older
-- lease_epoch changes nothing. One of a registry outside the database counts once mark_low_water has told it here. The
-- arrays are JSON (for the LIMIT see poll). Raises PS013, PS018, PS042.
CREATE PROCEDURE note_archive_reads(subscription LONGTEXT, partition_ids JSON, lease_epochs JSON)
BEGIN
    DECLARE owner_id, part_id, given_epoch BIGINT;
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
    CALL begin_call('note_archive_reads()');
    CALL require_subscription(subscription, owner_id);
    CALL require_stream(owner_id);
    SET done = FALSE;
    OPEN given;
    lease: LOOP
        FETCH given INTO part_id, given_epoch;
        IF done THEN
            LEAVE lease;
        END IF;
        CALL note_archive_reader(owner_id, part_id, given_epoch);
    END LOOP;
    CLOSE given;
    CALL end_call();
END;

-- name: withdraw_archive_reads
-- Takes back what note_archive_reads has recorded: who reads these partitions from now on has no targets, and holds no
-- lease whose lease_epoch would say so. Then retention waits for the subscription again. The array is JSON. Raises
-- PS013, PS018, PS042.
CREATE PROCEDURE withdraw_archive_reads(subscription LONGTEXT, partition_ids JSON)
BEGIN
    DECLARE owner_id BIGINT;
    {{on error: CALL undo_call()}}
    CALL begin_call('withdraw_archive_reads()');
    CALL require_subscription(subscription, owner_id);
    CALL require_stream(owner_id);
    DELETE a FROM archive_readers AS a
    JOIN JSON_TABLE(partition_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS p ON p.id = a.partition_id
    WHERE a.subscription_id = owner_id;
    CALL end_call();
END;

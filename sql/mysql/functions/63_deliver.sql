-- name: poll
-- Events of leased partitions, each after its own read position, at most max_events together and max_each of a
-- partition (NULL: no such limit), in the order of the arrays (JSON): a caller that rotates the arrays starves no
-- partition. There is one result for each partition that has events. (LIMIT turns the second and third array into
-- tables that are joined by an index; without it, each row would parse them again.) A lease that is no longer held
-- returns no rows; the next heartbeat or check-in tells why. A paused subscription returns none. Raises PS013, PS016,
-- PS021.
CREATE PROCEDURE poll(
    subscription LONGTEXT, consumer VARCHAR(255), partition_ids JSON, lease_epochs JSON, after JSON, max_events INT,
    max_each INT
)
BEGIN
    DECLARE owner_id, source, from_sequence, watermark BIGINT;
    DECLARE wanted INT DEFAULT LEAST(GREATEST(COALESCE(max_events, 500), 1), 100000);
    DECLARE wanted_here, found INT;
    DECLARE is_below, done BOOLEAN DEFAULT FALSE;
    DECLARE held CURSOR FOR
        SELECT STRAIGHT_JOIN p.id, LEAST(a.sequence, 1000000000000000000) + 1
        FROM JSON_TABLE(partition_ids, '$[*]' COLUMNS (place FOR ORDINALITY, id BIGINT PATH '$')) AS p
        JOIN (
            SELECT j.place, j.lease_epoch
            FROM JSON_TABLE(lease_epochs, '$[*]' COLUMNS (place FOR ORDINALITY, lease_epoch BIGINT PATH '$')) AS j
            LIMIT 1000000
        ) AS e ON e.place = p.place
        JOIN (
            SELECT j.place, j.sequence
            FROM JSON_TABLE(after, '$[*]' COLUMNS (place FOR ORDINALITY, sequence BIGINT PATH '$')) AS j
            LIMIT 1000000
        ) AS a ON a.place = p.place
        JOIN leases AS l ON l.subscription_id = owner_id AND l.partition_id = p.id AND l.lease_epoch = e.lease_epoch
                        AND l.holder = consumer
        JOIN consumers AS c ON c.subscription_id = owner_id AND c.id = consumer AND c.deadline > UTC_TIMESTAMP(6)
        JOIN subscriptions AS s ON s.id = owner_id AND s.paused_at IS NULL
        ORDER BY p.place;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    CALL refuse_serializable('poll()');
    CALL find_subscription(subscription, owner_id);
    OPEN held;
    lease: LOOP
        FETCH held INTO source, from_sequence;
        IF done OR wanted = 0 THEN
            LEAVE lease;
        END IF;
        CALL require_readable(source, from_sequence, owner_id, is_below);
        SET watermark = high_watermark(source);
        IF watermark < from_sequence - 1 THEN
            -- A reader that waited for the log to reach its position would never see the events that the log
            -- then holds instead.
            CALL refuse('PS021', CONCAT('sequence ', from_sequence - 1, ' of partition ', source & 65535,
                                        ' was read, but the log ends at ', watermark));
        ELSEIF watermark >= from_sequence THEN
            SET wanted_here = LEAST(wanted, GREATEST(COALESCE(max_each, wanted), 1), watermark - from_sequence + 1);
            IF is_below THEN
                CALL read_rehydrated(source, from_sequence, wanted_here, TRUE, found);
            ELSE
                CALL read_log(source, from_sequence, wanted_here, TRUE, found);
                IF found < wanted_here THEN
                    CALL refuse('PS016', CONCAT('events from sequence ', from_sequence,
                                                ' on were dropped while this transaction was open'));
                END IF;
            END IF;
            SET wanted = wanted - found;
        END IF;
    END LOOP;
    CLOSE held;
END;

-- name: lift_limit
-- Restores the session's own time limit, if it still has the one that a call set for the transaction in which it had
-- locked a lease row. It is called after the end of that transaction on MySQL, where the limit belongs to the
-- session. The session may write anything into the variables, so a value that is not a time limit is ignored.
CREATE PROCEDURE lift_limit()
NO SQL
BEGIN
    IF CAST(@penstock_limit AS CHAR) = @@SESSION./*!80000 wait_timeout */ /*M! idle_transaction_timeout */
        AND CAST(@penstock_own_limit AS CHAR) REGEXP '^[0-9]{1,8}$' THEN
        SET SESSION /*!80000 wait_timeout */ /*M! idle_transaction_timeout */ = CAST(@penstock_own_limit AS UNSIGNED);
    END IF;
    SET @penstock_limit = NULL;
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

-- name: check_positions
-- Refuses what a commit may not do: move a position back or beyond the high watermark, or from another position than
-- the one after which the events were read. Raises PS011, PS012.
CREATE PROCEDURE check_positions(owner_id BIGINT, partition_ids JSON, positions JSON, after JSON)
READS SQL DATA
BEGIN
    DECLARE part_id, wanted, read_after, stands_at, watermark BIGINT;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE given CURSOR FOR
        SELECT p.id, w.position, a.position
        FROM JSON_TABLE(partition_ids, '$[*]' COLUMNS (place FOR ORDINALITY, id BIGINT PATH '$')) AS p
        LEFT JOIN (
            SELECT j.place, j.position
            FROM JSON_TABLE(positions, '$[*]' COLUMNS (place FOR ORDINALITY, position BIGINT PATH '$')) AS j
            LIMIT 1000000
        ) AS w ON w.place = p.place
        LEFT JOIN (
            SELECT j.place, j.position
            FROM JSON_TABLE(COALESCE(after, '[]'), '$[*]' COLUMNS (place FOR ORDINALITY, position BIGINT PATH '$')) AS j
            LIMIT 1000000
        ) AS a ON a.place = p.place
        ORDER BY p.id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    OPEN given;
    lease: LOOP
        FETCH given INTO part_id, wanted, read_after;
        IF done THEN
            LEAVE lease;
        END IF;
        SET stands_at = current_position(owner_id, part_id);
        IF wanted IS NULL OR wanted <= stands_at THEN
            CALL refuse('PS011', CONCAT('position ', COALESCE(wanted, 'NULL'), ' of partition ', part_id & 65535,
                                        ' is not after ', stands_at));
        ELSEIF read_after <> stands_at THEN
            CALL refuse('PS011', CONCAT('partition ', part_id & 65535, ' stands at ', stands_at,
                                        ', but the events were read after ', read_after));
        END IF;
        SET watermark = high_watermark(part_id);
        IF wanted > watermark THEN
            CALL refuse('PS012', CONCAT('position ', wanted, ' of partition ', part_id & 65535,
                                        ' is beyond the high watermark ', watermark));
        END IF;
    END LOOP;
    CLOSE given;
END;

-- name: move_positions
-- Does the work of commit, for procedures that have called begin_call themselves.
CREATE PROCEDURE move_positions(
    subscription LONGTEXT, consumer VARCHAR(255), partition_ids JSON, lease_epochs JSON, positions JSON, after JSON
)
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE places INT DEFAULT COALESCE(JSON_LENGTH(partition_ids), 0);
    CALL find_subscription(subscription, owner_id);
    IF places = 0 OR places <> COALESCE(JSON_LENGTH(lease_epochs), 0) OR places <> COALESCE(JSON_LENGTH(positions), 0)
        OR places <> COALESCE(JSON_LENGTH(after), places) THEN
        CALL refuse('PS006', 'a commit needs one lease_epoch and one position for each of its partitions');
    ELSEIF places <> (
            SELECT COUNT(DISTINCT p.id) FROM JSON_TABLE(partition_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS p) THEN
        -- It would be chance which of two positions came last, and a position could move back.
        CALL refuse('PS006', 'a commit names a partition twice, or a NULL');
    END IF;
    CALL hold_leases(owner_id, consumer, partition_ids, lease_epochs);
    CALL check_positions(owner_id, partition_ids, positions, after);
    INSERT INTO positions (subscription_id, partition_id, position, lease_epoch, reason)
    SELECT owner_id, p.id, w.position, e.lease_epoch, 'commit'
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
    ) AS w ON w.place = p.place;
END;

-- name: commit
-- Moves positions forward, all or none, in the caller's transaction: what else that transaction writes takes effect
-- exactly once. positions are the last sequences that were handled. after are the positions after which the events
-- were read (or NULL): a reader that lost its connection during the last COMMIT may read events again, but must not
-- handle them twice. The arrays are JSON. Raises PS006, PS010, PS011, PS012, PS013, PS018.
CREATE PROCEDURE `commit`(
    subscription LONGTEXT, consumer VARCHAR(255), partition_ids JSON, lease_epochs JSON, positions JSON, after JSON
)
BEGIN
    DECLARE id_before BIGINT DEFAULT LAST_INSERT_ID();
    {{on error: CALL undo_call()}}
    CALL begin_call('commit()');
    CALL move_positions(subscription, consumer, partition_ids, lease_epochs, positions, after);
    -- The caller may need LAST_INSERT_ID() for a row of its own.
    DO LAST_INSERT_ID(id_before);
    CALL end_call();
END;

-- name: position
-- The positions of a subscription on a topic.
CREATE PROCEDURE `position`(subscription LONGTEXT, topic LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE owner_id, source_id BIGINT;
    DECLARE history INT;
    CALL refuse_serializable('position()');
    SELECT MAX(h.history) INTO history FROM histories AS h;
    CALL find_subscription(subscription, owner_id);
    CALL find_topic(topic, source_id);
    SELECT p.number AS `partition`, current_position(owner_id, p.id) AS position, history AS history
    FROM partitions AS p
    WHERE p.topic_id = source_id
    ORDER BY p.number;
END;

-- name: move_position
-- Sets the position of a partition whose topic the caller has locked, raises lease_epoch and takes the lease from its
-- holder, whose later commits are refused as stale. Raises PS006, PS012, PS013, PS016.
CREATE PROCEDURE move_position(owner_id BIGINT, source_id BIGINT, start LONGTEXT, OUT wanted BIGINT)
BEGIN
    DECLARE held_epoch BIGINT;
    DECLARE held_by VARCHAR(255);
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    SELECT l.lease_epoch, l.holder INTO held_epoch, held_by
    FROM leases AS l WHERE l.subscription_id = owner_id AND l.partition_id = source_id FOR UPDATE;
    IF held_epoch IS NULL THEN
        CALL refuse('PS013', 'the subscription does not read the topic');
    END IF;
    CALL find_start(source_id, start, wanted);
    UPDATE leases AS l
    SET l.state = 'AVAILABLE', l.holder = NULL, l.lease_epoch = held_epoch + 1, l.acquired_at = NULL,
        l.release_deadline = NULL
    WHERE l.subscription_id = owner_id AND l.partition_id = source_id;
    INSERT INTO lease_history (subscription_id, partition_id, lease_epoch, holder, `change`, at)
    VALUES (owner_id, source_id, held_epoch + 1, COALESCE(held_by, ''), 'seek', UTC_TIMESTAMP(6));
    INSERT INTO positions (subscription_id, partition_id, position, lease_epoch, reason)
    VALUES (owner_id, source_id, wanted, held_epoch + 1, 'seek');
    -- A position that moves back gives its events new attempts.
    DELETE a FROM attempts AS a WHERE a.subscription_id = owner_id AND a.partition_id = source_id;
END;

-- name: seek
-- Sets the position of one partition ('earliest', 'latest', the sequence to read next, a time, 'bookmark:NAME' or
-- 'subscription:NAME'), raises lease_epoch and takes the lease from its holder, whose later commits are refused as
-- stale. Returns the new position. Raises PS002, PS005, PS006, PS012, PS013, PS016, PS018, PS019, PS021, PS029.
CREATE PROCEDURE seek(subscription LONGTEXT, topic LONGTEXT, `partition` INT, start LONGTEXT)
BEGIN
    DECLARE owner_id, topic_id, source_id, wanted BIGINT;
    DECLARE partitions INT;
    {{on error: CALL undo_call()}}
    CALL begin_call('seek()');
    CALL require_read_committed('seek()');
    CALL find_subscription(subscription, owner_id);
    CALL require_stream(owner_id);
    CALL lock_topic(topic, 'read', topic_id, partitions);
    CALL find_partition(topic, `partition`, source_id);
    CALL require_reader(owner_id, topic_id, subscription, topic);
    CALL move_position(owner_id, source_id, start, wanted);
    SELECT wanted AS position;
    CALL end_call();
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

-- name: reset_subscription
-- Does what seek does for every partition of a subscription, or of one of its topics (NULL: all topics), in one
-- transaction: all or none. Returns the new positions. Raises PS002, PS006, PS012, PS013, PS016, PS018, PS019, PS021,
-- PS029.
CREATE PROCEDURE reset_subscription(subscription LONGTEXT, start LONGTEXT, of_topic LONGTEXT)
BEGIN
    DECLARE owner_id, only_id, source_id, wanted BIGINT;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE sources CURSOR FOR
        SELECT l.partition_id
        FROM leases AS l JOIN partitions AS p ON p.id = l.partition_id
        WHERE l.subscription_id = owner_id AND (only_id IS NULL OR p.topic_id = only_id)
        ORDER BY l.partition_id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    {{on error: CALL undo_call()}}
    CALL begin_call('reset_subscription()');
    CALL require_read_committed('reset_subscription()');
    CALL find_subscription(subscription, owner_id);
    CALL require_stream(owner_id);
    IF of_topic IS NOT NULL THEN
        CALL find_topic_for(of_topic, 'consume', only_id);
        CALL require_reader(owner_id, only_id, subscription, of_topic);
    END IF;
    CALL lock_topics_read(owner_id, only_id);
    OPEN sources;
    source: LOOP
        FETCH sources INTO source_id;
        IF done THEN
            LEAVE source;
        END IF;
        CALL move_position(owner_id, source_id, start, wanted);
    END LOOP;
    CLOSE sources;
    SELECT t.address AS topic, p.number AS `partition`, current_position(owner_id, p.id) AS position
    FROM leases AS l
    JOIN partitions AS p ON p.id = l.partition_id
    JOIN topics AS t ON t.id = p.topic_id
    WHERE l.subscription_id = owner_id AND (only_id IS NULL OR t.id = only_id)
    ORDER BY p.id;
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
    CALL move_idle_floors(max_rows);
    SELECT expired_consumers, locked_leases;
    CALL end_call();
END;

-- name: find_rejected_commits
-- How often the AUTO_INCREMENT of rejected_commits was used: its next value, less one. MySQL's catalog would
-- show a value that can be a day old.
CREATE PROCEDURE find_rejected_commits(OUT rejected BIGINT)
READS SQL DATA
BEGIN
    DECLARE expiry BIGINT;
    /*!80000 SET expiry = @@SESSION.information_schema_stats_expiry, @@SESSION.information_schema_stats_expiry = 0; */
    SELECT COALESCE(MAX(t.AUTO_INCREMENT), 1) - 1 INTO rejected
    FROM information_schema.TABLES AS t
    WHERE t.TABLE_SCHEMA = DATABASE() AND t.TABLE_NAME = 'rejected_commits';
    /*!80000 SET @@SESSION.information_schema_stats_expiry = expiry; */
END;

-- name: rejected_commits
-- How many commits the fence has refused since the installation, for all subscriptions; NULL for a login that does
-- not pass the walls.
CREATE PROCEDURE rejected_commits()
READS SQL DATA
BEGIN
    DECLARE rejected BIGINT;
    CALL refuse_serializable('rejected_commits()');
    CALL find_rejected_commits(rejected);
    SET rejected = IF(sees_all(), rejected, NULL);
    SELECT rejected AS rejected_commits;
END;

-- name: take_overs
-- How often another consumer acquired a lease after its holder's time had run out.
CREATE PROCEDURE take_overs(subscription LONGTEXT)
READS SQL DATA
BEGIN
    CALL refuse_serializable('take_overs()');
    SELECT COUNT(*) AS take_overs
    FROM subscriptions AS s
    JOIN lease_history AS lost ON lost.subscription_id = s.id AND lost.`change` = 'expired'
    JOIN lease_history AS taken
        ON taken.subscription_id = lost.subscription_id AND taken.partition_id = lost.partition_id
        AND taken.`change` = 'acquired' AND taken.lease_epoch = lost.lease_epoch + 1 AND taken.holder <> lost.holder
    WHERE s.name_hash = UNHEX(SHA2(subscription, 256)) AND NOT reads_hidden(s.id);
END;

-- name: current_position
-- The newest position in the ledger; NULL when the subscription does not read the partition. Without a hint, MySQL
-- walks the primary key backwards to the first row that fits.
CREATE FUNCTION current_position(of_subscription BIGINT, of_partition BIGINT) RETURNS BIGINT
READS SQL DATA
BEGIN
    DECLARE newest BIGINT;
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    SELECT p.position INTO newest
    FROM positions AS p FORCE INDEX (positions_newest)
    WHERE p.subscription_id = of_subscription AND p.partition_id = of_partition
    ORDER BY p.id DESC
    LIMIT 1;
    RETURN newest;
END;

-- name: move_position
-- Sets the position of a partition whose topic the caller has locked, raises lease_epoch and takes the lease from its
-- holder, whose later commits are refused as stale. Raises PS006, PS012, PS013, PS016.
CREATE PROCEDURE move_position(owner_id BIGINT, source_id BIGINT, start LONGTEXT, OUT wanted BIGINT)
BEGIN
    DECLARE held_epoch, stood_at BIGINT;
    DECLARE held_by VARCHAR(255);
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    SELECT l.lease_epoch, l.holder INTO held_epoch, held_by
    FROM leases AS l WHERE l.subscription_id = owner_id AND l.partition_id = source_id FOR UPDATE;
    IF held_epoch IS NULL THEN
        CALL refuse('PS013', 'the subscription does not read the topic');
    END IF;
    SET stood_at = current_position(owner_id, source_id);
    CALL start_position(source_id, start, wanted);
    UPDATE leases AS l
    SET l.state = 'AVAILABLE', l.holder = NULL, l.lease_epoch = held_epoch + 1, l.acquired_at = NULL,
        l.release_deadline = NULL
    WHERE l.subscription_id = owner_id AND l.partition_id = source_id;
    INSERT INTO lease_history (subscription_id, partition_id, lease_epoch, holder, `change`, at)
    VALUES (owner_id, source_id, held_epoch + 1, COALESCE(held_by, ''), 'seek', UTC_TIMESTAMP(6));
    INSERT INTO positions (subscription_id, partition_id, position, lease_epoch, reason)
    VALUES (owner_id, source_id, wanted, held_epoch + 1, 'seek');
    CALL send_after(owner_id, source_id, wanted);
    IF wanted < stood_at THEN
        CALL keep_passed(owner_id, source_id, stood_at);
        CALL end_block(owner_id, source_id, wanted + 1);
    END IF;
    -- A position that moves back gives its events new attempts.
    DELETE a FROM attempts AS a WHERE a.subscription_id = owner_id AND a.partition_id = source_id;
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
    CALL require_subscription(subscription, owner_id);
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

-- name: mark_one
-- Copies the position of one partition, whose subscription is that of the row owner_id; see mark_low_water.
CREATE PROCEDURE mark_one(owner_id BIGINT, part_id BIGINT, given_epoch BIGINT, given_position BIGINT, OUT moved BOOLEAN)
BEGIN
    DECLARE known_epoch, present, watermark BIGINT;
    DECLARE held_by VARCHAR(255);
    DECLARE is_live BOOLEAN;
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    SET moved = FALSE;
    SELECT l.lease_epoch, l.holder INTO known_epoch, held_by
    FROM leases AS l WHERE l.subscription_id = owner_id AND l.partition_id = part_id FOR UPDATE;
    IF known_epoch IS NOT NULL THEN
        SELECT high_watermark(part_id), current_position(owner_id, part_id) INTO watermark, present;
        SELECT COUNT(*) INTO is_live
        FROM consumers AS c
        WHERE c.subscription_id = owner_id AND c.id = held_by AND c.deadline > UTC_TIMESTAMP(6);
        IF held_by IS NOT NULL AND given_epoch > known_epoch AND NOT is_live THEN
            CALL free_lease(owner_id, part_id, known_epoch, held_by, 'expired', UTC_TIMESTAMP(6));
            SET held_by = NULL;
        END IF;
        IF held_by IS NOT NULL OR given_epoch < known_epoch THEN
            CALL refuse('PS010', CONCAT('lease_epoch ', given_epoch, ' of partition ', part_id & 65535, ' is over'));
        ELSEIF given_position > watermark THEN
            CALL refuse('PS012', CONCAT('position ', given_position, ' of partition ', part_id & 65535,
                                        ' is beyond the high watermark'));
        END IF;
        UPDATE leases AS l SET l.lease_epoch = given_epoch
        WHERE l.subscription_id = owner_id AND l.partition_id = part_id AND l.lease_epoch < given_epoch;
        IF given_position > present THEN
            INSERT INTO positions (subscription_id, partition_id, position, lease_epoch, reason)
            VALUES (owner_id, part_id, given_position, given_epoch, 'commit');
            SET moved = TRUE;
        END IF;
    END IF;
END;

-- name: note_archive_reader
-- What note_archive_reads does for one lease, without its checks. The lease is read first: an INSERT that reads it
-- would wait for a commit that has it locked.
CREATE PROCEDURE note_archive_reader(owner_id BIGINT, part_id BIGINT, given_epoch BIGINT)
BEGIN
    DECLARE known_epoch BIGINT;
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    SELECT l.lease_epoch INTO known_epoch
    FROM leases AS l WHERE l.subscription_id = owner_id AND l.partition_id = part_id;
    IF known_epoch <= given_epoch THEN
        INSERT INTO archive_readers (subscription_id, partition_id, lease_epoch) VALUES (owner_id, part_id, given_epoch)
        ON DUPLICATE KEY UPDATE
            noted_at = IF(archive_readers.lease_epoch < given_epoch, UTC_TIMESTAMP(6), archive_readers.noted_at),
            lease_epoch = IF(
                known_epoch = given_epoch, given_epoch, GREATEST(archive_readers.lease_epoch, given_epoch));
    END IF;
END;

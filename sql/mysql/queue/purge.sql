-- name: purge
-- Throws away all that a queue has not finished, what waits included; dead letters stay. Receipts that are out are good
-- no longer. Records what was thrown away of each partition. Returns how many events that were. Raises PS013, PS018,
-- PS042.
CREATE PROCEDURE `purge`(subscription LONGTEXT)
BEGIN
    DECLARE owner_id, part_id, held_epoch, stands_at, watermark, ready, in_flight, waits, dead, locked BIGINT;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE id_before BIGINT DEFAULT LAST_INSERT_ID();
    DECLARE parts CURSOR FOR
        SELECT l.partition_id FROM leases AS l WHERE l.subscription_id = owner_id ORDER BY l.partition_id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    {{on error: CALL undo_call()}}
    CALL begin_call('purge()');
    CALL require_read_committed('purge()');
    CALL require_queue(subscription, 'operate', owner_id);
    SET owner_id = (SELECT q.subscription_id FROM queues AS q WHERE q.subscription_id = owner_id FOR UPDATE);
    CALL queue_counts(owner_id, ready, in_flight, waits, dead);
    DELETE r FROM queue_ranges AS r WHERE r.subscription_id = owner_id;
    -- What an erasure locks before it looks at copies, and workers after their claims.
    SELECT COUNT(*) INTO locked
    FROM subscription_topics AS r FORCE INDEX (PRIMARY) WHERE r.subscription_id = owner_id
    LOCK IN SHARE MODE;
    CALL record_copies(owner_id);
    DELETE w FROM queue_waiting AS w WHERE w.subscription_id = owner_id;
    DELETE k FROM queue_keys AS k WHERE k.subscription_id = owner_id;
    OPEN parts;
    each_part: LOOP
        FETCH parts INTO part_id;
        IF done THEN
            LEAVE each_part;
        END IF;
        SET held_epoch = (
            SELECT l.lease_epoch FROM leases AS l
            WHERE l.subscription_id = owner_id AND l.partition_id = part_id
            FOR UPDATE);
        SET stands_at = current_position(owner_id, part_id), watermark = high_watermark(part_id);
        IF held_epoch IS NOT NULL AND watermark > stands_at THEN
            INSERT INTO queue_purges (subscription_id, partition_id, first_sequence, last_sequence, purged_by)
            VALUES (owner_id, part_id, stands_at + 1, watermark, principal());
            INSERT INTO positions (subscription_id, partition_id, position, lease_epoch, reason, reached)
            VALUES (owner_id, part_id, watermark, held_epoch, 'queue', watermark);
        END IF;
    END LOOP;
    CLOSE parts;
    SELECT ready + in_flight + waits AS size;
    DO LAST_INSERT_ID(id_before);
    CALL end_call();
END;

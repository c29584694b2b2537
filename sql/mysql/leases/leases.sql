-- name: held_leases
-- The leases that a consumer holds, each with the position after which to read.
CREATE PROCEDURE held_leases(subscription LONGTEXT, consumer VARCHAR(255))
READS SQL DATA
BEGIN
    CALL refuse_serializable('held_leases()');
    CALL show_leases(subscription, consumer);
END;

-- name: release
-- Gives single leases back (two JSON arrays; for the LIMIT see poll), in response to RELEASING or because a consumer
-- has no use for them. A lease that is no longer held is skipped. Returns how many were freed.
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
    {{on error: CALL undo_call()}}
    CALL begin_call('release()');
    CALL require_subscription(subscription, owner_id);
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
    CALL end_call();
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

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
    CALL require_subscription(subscription, owner_id);
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

-- name: redrive
-- Makes dead letters deliverable again, to the consumer that holds their partition: the given ones (a JSON array of
-- ids), or all of the subscription (NULL). Of a parked key it redrives all events, in order. With keep_deliveries a
-- queue goes on counting how often it has handed them out. Returns how many were not redriven already. Raises PS013,
-- PS018.
CREATE PROCEDURE redrive(subscription LONGTEXT, letter_ids JSON, keep_deliveries BOOLEAN)
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE changed BIGINT DEFAULT 0;
    DECLARE id_before BIGINT DEFAULT LAST_INSERT_ID();
    {{on error: CALL undo_call()}}
    CALL begin_call('redrive()');
    CALL require_read_committed('redrive()');
    CALL require_subscription(subscription, owner_id);
    CALL redrive_letters(owner_id, letter_ids, COALESCE(keep_deliveries, FALSE), changed);
    SELECT changed AS redriven;
    DO LAST_INSERT_ID(id_before);
    CALL end_call();
END;

-- name: poll_redriven
-- Redriven dead letters of leased partitions (JSON arrays), in order. Each is counted as handed out; commit that
-- before a handler gets them. Of a parked key it returns only the first event. A letter that was handed out as often
-- as the subscription allows, and never finished, is dead again. Raises PS010, PS013, PS018.
CREATE PROCEDURE poll_redriven(
    subscription LONGTEXT, consumer VARCHAR(255), partition_ids JSON, lease_epochs JSON, max_events INT
)
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE most INT;
    DECLARE wanted INT DEFAULT LEAST(GREATEST(COALESCE(max_events, 100), 1), 10000);
    DECLARE held_ids, held_epochs, spent, heads LONGTEXT;
    DECLARE limit_before BIGINT UNSIGNED DEFAULT @@SESSION.group_concat_max_len;
    {{on error: SET SESSION group_concat_max_len = limit_before; CALL undo_call()}}
    CALL begin_call('poll_redriven()');
    CALL require_subscription(subscription, owner_id);
    -- A number that was cut off would name another row: a partition, or a dead letter, of another
    -- subscription.
    SET SESSION group_concat_max_len = 4294967295;
    SELECT JSON_ARRAYAGG(h.partition_id), JSON_ARRAYAGG(h.lease_epoch) INTO held_ids, held_epochs
    FROM (
        SELECT STRAIGHT_JOIN l.partition_id, l.lease_epoch
        FROM JSON_TABLE(partition_ids, '$[*]' COLUMNS (place FOR ORDINALITY, id BIGINT PATH '$')) AS g
        JOIN (
            SELECT j.place, j.lease_epoch
            FROM JSON_TABLE(lease_epochs, '$[*]' COLUMNS (place FOR ORDINALITY, lease_epoch BIGINT PATH '$')) AS j
            LIMIT 1000000
        ) AS e ON e.place = g.place
        JOIN leases AS l
            ON l.subscription_id = owner_id AND l.partition_id = g.id AND l.lease_epoch = e.lease_epoch
            AND l.holder <=> consumer
        WHERE EXISTS (
            SELECT d.id FROM dead_letters AS d FORCE INDEX (dead_letters_redriven)
            WHERE d.subscription_id = owner_id AND d.partition_id = l.partition_id AND d.redriven_at IS NOT NULL)
        LIMIT 1000000
    ) AS h;
    IF held_ids IS NOT NULL THEN
        CALL hold_leases(owner_id, consumer, held_ids, held_epochs);
        SELECT s.max_attempts INTO most FROM subscriptions AS s WHERE s.id = owner_id;
        SELECT JSON_ARRAYAGG(d.id) INTO spent
        FROM dead_letters AS d FORCE INDEX (dead_letters_redriven)
        WHERE d.subscription_id = owner_id AND d.redriven_at IS NOT NULL AND d.attempts - d.attempts_before >= most
          AND d.partition_id IN (SELECT g.id FROM JSON_TABLE(held_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS g);
        IF spent IS NOT NULL THEN
            CALL return_letters(owner_id, spent, 'was handed out as often as it may be, and never finished');
        END IF;
        SELECT JSON_ARRAYAGG(h.id) INTO heads
        FROM (
            SELECT d.id
            FROM dead_letters AS d FORCE INDEX (dead_letters_redriven)
            WHERE d.subscription_id = owner_id AND d.redriven_at IS NOT NULL
              AND d.partition_id IN (SELECT g.id FROM JSON_TABLE(held_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS g)
              AND NOT (d.parked AND EXISTS (
                  SELECT e.id FROM dead_letters AS e
                  WHERE e.subscription_id = owner_id AND e.parked = TRUE AND e.partition_id = d.partition_id
                    AND e.`key` = d.`key`
                    AND (e.history < d.history OR (e.history = d.history AND e.sequence < d.sequence))))
            ORDER BY d.partition_id, d.history, d.sequence
            LIMIT wanted
        ) AS h;
        UPDATE JSON_TABLE(COALESCE(heads, '[]'), '$[*]' COLUMNS (id BIGINT PATH '$')) AS h
        STRAIGHT_JOIN dead_letters AS d FORCE INDEX (dead_letters_id) ON d.id = h.id
        SET d.attempts = d.attempts + 1
        WHERE d.subscription_id = owner_id AND d.redriven_at IS NOT NULL;
        SELECT d.id AS letter_id, d.attempts, d.parked, d.history, d.partition_id, d.sequence,
               LOWER(INSERT(INSERT(INSERT(INSERT(HEX(d.event_id), 21, 0, '-'), 17, 0, '-'), 13, 0, '-'), 9, 0, '-'))
                   AS event_id,
               d.`key`, d.type, d.content_type, d.headers, d.payload, d.created_at
        FROM JSON_TABLE(COALESCE(heads, '[]'), '$[*]' COLUMNS (id BIGINT PATH '$')) AS h
        JOIN dead_letters AS d ON d.id = h.id AND d.subscription_id = owner_id AND d.redriven_at IS NOT NULL
        ORDER BY d.partition_id, d.history, d.sequence;
    END IF;
    SET SESSION group_concat_max_len = limit_before;
    CALL end_call();
END;

-- name: finish_redriven
-- Removes redriven dead letters (a JSON array of ids) of one partition that were handled, in the caller's
-- transaction: what else that transaction writes takes effect exactly once. This also redrives the next event of a
-- parked key. Refused when one of them no longer waits: it was finished already, dropped or given back. Raises PS010,
-- PS013, PS018, PS041.
CREATE PROCEDURE finish_redriven(
    subscription LONGTEXT, consumer VARCHAR(255), partition_id BIGINT, lease_epoch BIGINT, letter_ids JSON
)
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE finished INT;
    {{on error: CALL undo_call()}}
    CALL begin_call('finish_redriven()');
    CALL require_subscription(subscription, owner_id);
    CALL hold_leases(owner_id, consumer, JSON_ARRAY(partition_id), JSON_ARRAY(lease_epoch));
    UPDATE (
        SELECT DISTINCT d.`key`
        FROM JSON_TABLE(letter_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS g
        JOIN dead_letters AS d
            ON d.id = g.id AND d.subscription_id = owner_id AND d.partition_id = partition_id AND d.parked
            AND d.redriven_at IS NOT NULL
    ) AS done
    STRAIGHT_JOIN dead_letters AS w FORCE INDEX (dead_letters_parked)
        ON w.subscription_id = owner_id AND w.parked = TRUE AND w.partition_id = partition_id AND w.`key` = done.`key`
    SET w.redriven_at = UTC_TIMESTAMP(6), w.attempts_before = w.attempts
    WHERE w.redriven_at IS NULL;
    DELETE d
    FROM JSON_TABLE(letter_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS g
    STRAIGHT_JOIN dead_letters AS d FORCE INDEX (dead_letters_id) ON d.id = g.id
    WHERE d.subscription_id = owner_id AND d.partition_id = partition_id AND d.redriven_at IS NOT NULL;
    SET finished = ROW_COUNT();
    IF finished <> COALESCE(JSON_LENGTH(letter_ids), 0) THEN
        CALL refuse('PS041', CONCAT('of ', JSON_LENGTH(letter_ids), ' redriven dead letters, ',
                                    JSON_LENGTH(letter_ids) - finished, ' no longer wait'));
    END IF;
    CALL end_call();
END;

-- name: fail_redriven
-- Records that a redriven dead letter that was handed out has failed: it is dead again, with the new reason. If it
-- was parked, its whole key waits again. A second call changes nothing. Raises PS010, PS013, PS018.
CREATE PROCEDURE fail_redriven(
    subscription LONGTEXT, consumer VARCHAR(255), partition_id BIGINT, lease_epoch BIGINT, letter_id BIGINT, reason TEXT
)
BEGIN
    DECLARE owner_id BIGINT;
    {{on error: CALL undo_call()}}
    CALL begin_call('fail_redriven()');
    CALL require_subscription(subscription, owner_id);
    CALL hold_leases(owner_id, consumer, JSON_ARRAY(partition_id), JSON_ARRAY(lease_epoch));
    CALL return_letters(owner_id, JSON_ARRAY(letter_id), reason);
    CALL end_call();
END;

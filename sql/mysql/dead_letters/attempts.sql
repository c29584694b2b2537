-- name: suspects
-- Held leases whose next events may have broken a consumer. died: a holder has died since the position moved. sequence,
-- attempts, reason: of the next event, if begin_attempt handed it out; attempts is 0 where a group began. Raises PS013.
CREATE PROCEDURE suspects(subscription LONGTEXT, consumer VARCHAR(255), partition_ids JSON, lease_epochs JSON)
READS SQL DATA
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE present INT;
    CALL refuse_serializable('suspects()');
    CALL require_subscription(subscription, owner_id);
    SELECT MAX(h.history) INTO present FROM histories AS h;
    SELECT s.partition_id, s.died, s.sequence, s.attempts, s.reason
    FROM (
        SELECT STRAIGHT_JOIN n.partition_id, a.sequence, a.attempts, a.reason, EXISTS (
                   -- A seek or a new history writes a position under a new lease_epoch.
                   SELECT h.id FROM lease_history AS h FORCE INDEX (lease_history_partition)
                   WHERE h.subscription_id = owner_id AND h.partition_id = n.partition_id AND h.`change` = 'expired'
                     AND h.lease_epoch >= p.lease_epoch AND h.lease_epoch < n.lease_epoch) AS died
        FROM (
            SELECT STRAIGHT_JOIN l.partition_id, l.lease_epoch, (
                       SELECT q.id
                       FROM positions AS q FORCE INDEX (positions_newest)
                       WHERE q.subscription_id = l.subscription_id AND q.partition_id = l.partition_id
                       ORDER BY q.subscription_id DESC, q.partition_id DESC, q.id DESC
                       LIMIT 1) AS newest
            FROM JSON_TABLE(partition_ids, '$[*]' COLUMNS (place FOR ORDINALITY, id BIGINT PATH '$')) AS g
            JOIN (
                SELECT j.place, j.lease_epoch
                FROM JSON_TABLE(lease_epochs, '$[*]' COLUMNS (place FOR ORDINALITY, lease_epoch BIGINT PATH '$')) AS j
                LIMIT 1000000
            ) AS e ON e.place = g.place
            JOIN leases AS l
                ON l.subscription_id = owner_id AND l.partition_id = g.id AND l.lease_epoch = e.lease_epoch
                AND l.holder <=> consumer
            LIMIT 1000000
        ) AS n
        JOIN positions AS p ON p.id = n.newest
        LEFT JOIN attempts AS a
            ON a.subscription_id = owner_id AND a.partition_id = n.partition_id AND a.sequence = p.position + 1
            AND a.history = present
        LIMIT 1000000
    ) AS s
    WHERE s.died OR s.sequence IS NOT NULL
    ORDER BY s.partition_id;
END;

-- name: begin_attempt
-- Counts that the next event after the position is handed out. Returns the number of the attempt. Commit this before
-- the handler gets the event, so that an event that kills its consumer is counted too. uncounted is how many earlier
-- attempts were not counted here; reason says why the event is suspect. With uncounted = -1 it only records that a
-- group of suspects begins at this event, and counts for none of them. Raises PS010, PS011, PS013, PS018.
CREATE PROCEDURE begin_attempt(
    subscription LONGTEXT, consumer VARCHAR(255), partition_id BIGINT, lease_epoch BIGINT, sequence BIGINT,
    uncounted INT, reason TEXT
)
BEGIN
    DECLARE owner_id, stands_at BIGINT;
    DECLARE present, counted INT;
    DECLARE known TEXT;
    {{on error: CALL undo_call()}}
    CALL begin_call('begin_attempt()');
    CALL require_subscription(subscription, owner_id);
    CALL hold_leases(owner_id, consumer, JSON_ARRAY(partition_id), JSON_ARRAY(lease_epoch));
    SET stands_at = current_position(owner_id, partition_id);
    IF sequence IS NULL OR sequence <> stands_at + 1 THEN
        CALL refuse('PS011', CONCAT('sequence ', COALESCE(sequence, 'NULL'), ' of partition ', partition_id & 65535,
                                    ' is not the next one after the position ', stands_at));
    END IF;
    SELECT MAX(h.history) INTO present FROM histories AS h;
    SELECT MAX(a.attempts), MAX(a.reason) INTO counted, known
    FROM attempts AS a
    WHERE a.subscription_id = owner_id AND a.partition_id = partition_id AND a.sequence = sequence
      AND a.history = present;
    SET uncounted = GREATEST(COALESCE(uncounted, 0), -1);
    SET counted = GREATEST(COALESCE(counted, 0) + IF(uncounted < 0, 0, 1), uncounted + 1);
    REPLACE INTO attempts (subscription_id, partition_id, sequence, history, attempts, reason)
    VALUES (owner_id, partition_id, sequence, present, counted, COALESCE(NULLIF(LEFT(reason, 2000), ''), known, ''));
    SELECT counted AS attempts;
    CALL end_call();
END;

-- name: bring_letter
-- Stores an event that only the archive has, as a consumer has read it there. The give_up or commit_parking that
-- follows in the same transaction makes it a dead letter: of events that the log has, these copy it themselves.
-- Refused (PS006) for an event that the log has, or that the position has passed; a relay with an open block may send
-- what was passed once more. Raises PS006, PS010, PS013, PS018.
CREATE PROCEDURE bring_letter(
    subscription LONGTEXT, consumer VARCHAR(255), partition_id BIGINT, lease_epoch BIGINT, sequence BIGINT,
    event_id VARCHAR(36), `key` VARCHAR(255), type VARCHAR(255), content_type VARCHAR(255), headers MEDIUMTEXT,
    payload LONGBLOB, created_at DATETIME(6)
)
BEGIN
    DECLARE owner_id, low, stands_at, block BIGINT;
    DECLARE present INT;
    DECLARE erased_by CHAR(36);
    DECLARE is_replaced BOOLEAN;
    DECLARE id_before BIGINT DEFAULT LAST_INSERT_ID();
    {{on error: CALL undo_call()}}
    CALL begin_call('bring_letter()');
    CALL require_subscription(subscription, owner_id);
    CALL hold_leases(owner_id, consumer, JSON_ARRAY(partition_id), JSON_ARRAY(lease_epoch));
    SELECT MAX(p.low_sequence) INTO low FROM partitions AS p WHERE p.id = partition_id;
    SET stands_at = current_position(owner_id, partition_id);
    CALL find_open_block(owner_id, partition_id, stands_at + 1, block);
    IF NOT COALESCE(sequence < low AND (sequence > stands_at OR block IS NOT NULL), FALSE) THEN
        CALL refuse('PS006', CONCAT('sequence ', COALESCE(sequence, 'NULL'), ' of partition ', partition_id & 65535,
                                    ' is none that only the archive has'));
    END IF;
    SELECT MAX(h.history) INTO present FROM histories AS h;
    SELECT MAX(e.erasure), MAX(e.replace_key) INTO erased_by, is_replaced
    FROM erased_events AS z JOIN erasures AS e ON e.erasure = z.erasure
    WHERE z.partition_id = partition_id AND z.sequence = sequence;
    IF erased_by IS NOT NULL THEN  -- since the consumer has read it
        SET payload = '', headers = erasure_mark(erased_by), `key` = IF(is_replaced, NULL, `key`);
    END IF;
    INSERT INTO dead_letters (
        subscription_id, partition_id, sequence, history, event_id, `key`, type, content_type, headers, payload,
        created_at, reason, attempts, parked)
    VALUES (owner_id, partition_id, sequence, present, UNHEX(REPLACE(event_id, '-', '')), `key`, type, content_type,
            headers, payload, created_at, 'read from the archive', 0, FALSE)
    ON DUPLICATE KEY UPDATE attempts = dead_letters.attempts;
    DO LAST_INSERT_ID(id_before);
    CALL end_call();
END;

-- name: give_up
-- Makes the next event after the position a dead letter and moves the position past it, in one transaction: the event
-- is always either pending or dead. With park, if the event has a key, later events of that key have to wait behind
-- it (see commit_parking). Returns parked or dead. Raises PS006, PS010, PS011, PS012, PS013, PS016, PS018, PS040.
CREATE PROCEDURE give_up(
    subscription LONGTEXT, consumer VARCHAR(255), partition_id BIGINT, lease_epoch BIGINT, sequence BIGINT, reason TEXT,
    attempts INT, park BOOLEAN
)
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE id_before BIGINT DEFAULT LAST_INSERT_ID();
    {{on error: CALL undo_call()}}
    CALL begin_call('give_up()');
    CALL require_subscription(subscription, owner_id);
    CALL move_positions(subscription, consumer, JSON_ARRAY(partition_id), JSON_ARRAY(lease_epoch), JSON_ARRAY(sequence),
                        JSON_ARRAY(sequence - 1));
    CALL store_letters(owner_id, partition_id, JSON_ARRAY(sequence), COALESCE(reason, ''),
                       GREATEST(COALESCE(attempts, 1), 1), COALESCE(park, FALSE), FALSE);
    DELETE a FROM attempts AS a WHERE a.subscription_id = owner_id AND a.partition_id = partition_id;
    SELECT IF(MAX(d.parked), 'parked', 'dead') AS state
    FROM dead_letters AS d
    WHERE d.subscription_id = owner_id AND d.partition_id = partition_id AND d.sequence = sequence
      AND d.history = (SELECT MAX(h.history) FROM histories AS h);
    DO LAST_INSERT_ID(id_before);
    CALL end_call();
END;

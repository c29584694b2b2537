-- name: suspects
-- Held leases whose next events may have broken a consumer. died: a holder has died since the position moved. sequence, attempts,
-- reason: of the next event, if begin_attempt handed it out; attempts is 0 where a group began. Raises PS013.
CREATE PROCEDURE suspects(subscription LONGTEXT, consumer VARCHAR(255), partition_ids JSON, lease_epochs JSON)
READS SQL DATA
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE present INT;
    CALL refuse_serializable('suspects()');
    CALL find_subscription(subscription, owner_id);
    SELECT MAX(h.history) INTO present FROM histories AS h;
    SELECT s.partition_id, s.died, s.sequence, s.attempts, s.reason
    FROM (
        SELECT STRAIGHT_JOIN n.partition_id, a.sequence, a.attempts, a.reason, EXISTS (
                   -- Whoever seeks or opens a history writes a position under a lease_epoch of its own.
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
                AND l.holder = consumer
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
-- Counts that the event behind the position is handed out, and answers for which time. To be committed before the handler gets the
-- event, so that an event that kills its consumer is counted too. uncounted are the times that were not counted here; reason is
-- why it is suspect. With uncounted = -1 a group of suspects begins at the event, which is on record, and counts for none of them.
-- Raises PS010, PS011, PS013, PS018.
CREATE PROCEDURE begin_attempt(
    subscription LONGTEXT, consumer VARCHAR(255), partition_id BIGINT, lease_epoch BIGINT, sequence BIGINT, uncounted INT,
    reason TEXT
)
BEGIN
    DECLARE owner_id, stands_at BIGINT;
    DECLARE present, counted INT;
    DECLARE known TEXT;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION
    BEGIN
        CALL undo_call();
        RESIGNAL;
    END;
    CALL begin_call('begin_attempt()');
    CALL find_subscription(subscription, owner_id);
    CALL hold_leases(owner_id, consumer, JSON_ARRAY(partition_id), JSON_ARRAY(lease_epoch));
    SET stands_at = current_position(owner_id, partition_id);
    IF sequence IS NULL OR sequence <> stands_at + 1 THEN
        CALL refuse('PS011', CONCAT('sequence ', COALESCE(sequence, 'NULL'), ' of partition ', partition_id & 65535,
                                    ' is not the one behind the position ', stands_at));
    END IF;
    SELECT MAX(h.history) INTO present FROM histories AS h;
    SELECT MAX(a.attempts), MAX(a.reason) INTO counted, known
    FROM attempts AS a
    WHERE a.subscription_id = owner_id AND a.partition_id = partition_id AND a.sequence = sequence AND a.history = present;
    SET uncounted = GREATEST(COALESCE(uncounted, 0), -1);
    SET counted = GREATEST(COALESCE(counted, 0) + IF(uncounted < 0, 0, 1), uncounted + 1);
    REPLACE INTO attempts (subscription_id, partition_id, sequence, history, attempts, reason)
    VALUES (owner_id, partition_id, sequence, present, counted, COALESCE(NULLIF(LEFT(reason, 2000), ''), known, ''));
    SELECT counted AS attempts;
    CALL end_call();
END;

-- name: store_letters
-- Copies events of a partition (a JSON array of sequences) to the dead letters of a subscription; a copy that is there already is as
-- good as new. What is parked behind its key waits for the operator as the key does: if that was redriven, so is it. The caller
-- holds the lease. Raises PS016, PS040.
CREATE PROCEDURE store_letters(
    owner_id BIGINT, part_id BIGINT, sequences JSON, why TEXT, tried INT, is_parked BOOLEAN, behind BOOLEAN
)
BEGIN
    DECLARE lowest, highest BIGINT;
    DECLARE copied, present INT;
    DECLARE most INT DEFAULT 10000;
    DECLARE now DATETIME(6) DEFAULT UTC_TIMESTAMP(6);
    SELECT MAX(h.history) INTO present FROM histories AS h;
    SELECT MIN(s.sequence), MAX(s.sequence) INTO lowest, highest
    FROM JSON_TABLE(sequences, '$[*]' COLUMNS (sequence BIGINT PATH '$')) AS s;
    INSERT INTO dead_letters (
        subscription_id, partition_id, sequence, history, event_id, `key`, type, content_type, headers, payload, created_at,
        reason, attempts, parked, redriven_at, died_at)
    SELECT owner_id, e.partition_id, e.sequence, present, e.event_id, e.`key`, e.type, e.content_type, e.headers, e.payload,
           e.created_at, LEFT(why, 2000), tried, is_parked AND e.`key` IS NOT NULL,
           IF(behind AND NOT EXISTS (
               SELECT w.id FROM dead_letters AS w
               WHERE w.subscription_id = owner_id AND w.parked = TRUE AND w.partition_id = part_id AND w.`key` = e.`key`
                 AND w.redriven_at IS NULL), now, NULL), now
    FROM logged_events AS e
    WHERE e.partition_id = part_id AND e.first_sequence >= (
          SELECT MAX(f.first_sequence) FROM chunks AS f
          WHERE f.partition_id = part_id AND f.first_sequence <= lowest)
      AND e.first_sequence <= highest AND e.sequence BETWEEN lowest AND highest
      AND e.sequence IN (SELECT s.sequence FROM JSON_TABLE(sequences, '$[*]' COLUMNS (sequence BIGINT PATH '$')) AS s)
    -- In this order: each assignment sees those before it.
    ON DUPLICATE KEY UPDATE
        attempts_before = dead_letters.attempts, attempts = GREATEST(dead_letters.attempts, tried), reason = LEFT(why, 2000),
        died_at = now, parked = dead_letters.parked OR VALUES(parked), redriven_at = VALUES(redriven_at);
    SELECT COUNT(*) INTO copied
    FROM dead_letters AS d
    WHERE d.subscription_id = owner_id AND d.partition_id = part_id AND d.history = present AND d.sequence IN (
        SELECT s.sequence FROM JSON_TABLE(sequences, '$[*]' COLUMNS (sequence BIGINT PATH '$')) AS s);
    IF copied <> JSON_LENGTH(sequences) THEN
        CALL refuse('PS016', CONCAT('of the sequences ', lowest, ' to ', highest, ' the log does not hold all'));
    END IF;
    IF is_parked THEN
        SELECT COUNT(*) INTO copied
        FROM (SELECT w.id FROM dead_letters AS w WHERE w.subscription_id = owner_id AND w.parked = TRUE LIMIT 10001) AS waiting;
        IF copied > most THEN
            CALL refuse('PS040', CONCAT('more than ', most, ' events would be parked'));
        END IF;
    END IF;
END;

-- name: give_up
-- Makes the event behind the position a dead letter and moves the position over it, in one: it is pending or dead, never both and
-- never neither. With park, and where the event has a key, later events of that key have to wait behind it (see commit_parking).
-- Answers parked or dead. Raises PS006, PS010, PS011, PS012, PS013, PS016, PS018, PS040.
CREATE PROCEDURE give_up(
    subscription LONGTEXT, consumer VARCHAR(255), partition_id BIGINT, lease_epoch BIGINT, sequence BIGINT, reason TEXT,
    attempts INT, park BOOLEAN
)
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE id_before BIGINT DEFAULT LAST_INSERT_ID();
    DECLARE EXIT HANDLER FOR SQLEXCEPTION
    BEGIN
        CALL undo_call();
        RESIGNAL;
    END;
    CALL begin_call('give_up()');
    CALL find_subscription(subscription, owner_id);
    CALL move_positions(subscription, consumer, JSON_ARRAY(partition_id), JSON_ARRAY(lease_epoch), JSON_ARRAY(sequence),
                        JSON_ARRAY(sequence - 1));
    CALL store_letters(owner_id, partition_id, JSON_ARRAY(sequence), COALESCE(reason, ''), GREATEST(COALESCE(attempts, 1), 1),
                       COALESCE(park, FALSE), FALSE);
    DELETE a FROM attempts AS a WHERE a.subscription_id = owner_id AND a.partition_id = partition_id;
    SELECT IF(MAX(d.parked), 'parked', 'dead') AS state
    FROM dead_letters AS d
    WHERE d.subscription_id = owner_id AND d.partition_id = partition_id AND d.sequence = sequence
      AND d.history = (SELECT MAX(h.history) FROM histories AS h);
    DO LAST_INSERT_ID(id_before);
    CALL end_call();
END;

-- name: parked_keys
-- The keys whose events wait, in partitions (a JSON array) that the subscription reads: later events of such a key are not for the
-- handler. Raises PS013.
CREATE PROCEDURE parked_keys(subscription LONGTEXT, partition_ids JSON)
READS SQL DATA
BEGIN
    DECLARE owner_id BIGINT;
    CALL refuse_serializable('parked_keys()');
    CALL find_subscription(subscription, owner_id);
    SELECT DISTINCT d.partition_id, d.`key`
    FROM dead_letters AS d FORCE INDEX (dead_letters_parked)
    WHERE d.subscription_id = owner_id AND d.parked = TRUE AND d.partition_id IN (
        SELECT g.id FROM JSON_TABLE(partition_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS g)
    ORDER BY d.partition_id, d.`key`;
END;

-- name: commit_parking
-- A commit of one partition that parks some of the events it passes (a JSON array), because their keys wait. after is the position
-- behind which the events were read. Raises PS006, PS010, PS011, PS012, PS013, PS016, PS018, PS040.
CREATE PROCEDURE commit_parking(
    subscription LONGTEXT, consumer VARCHAR(255), partition_id BIGINT, lease_epoch BIGINT, position BIGINT, after BIGINT,
    sequences JSON
)
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE places, good INT DEFAULT 0;
    DECLARE id_before BIGINT DEFAULT LAST_INSERT_ID();
    DECLARE EXIT HANDLER FOR SQLEXCEPTION
    BEGIN
        CALL undo_call();
        RESIGNAL;
    END;
    CALL begin_call('commit_parking()');
    CALL find_subscription(subscription, owner_id);
    SET places = COALESCE(JSON_LENGTH(sequences), 0);
    SELECT COUNT(DISTINCT s.sequence) INTO good
    FROM JSON_TABLE(sequences, '$[*]' COLUMNS (sequence BIGINT PATH '$')) AS s
    WHERE s.sequence > after AND s.sequence <= position;
    IF after IS NULL OR places = 0 OR good <> places THEN
        CALL refuse('PS006', 'events are parked by the commit that passes them, each once');
    END IF;
    CALL move_positions(subscription, consumer, JSON_ARRAY(partition_id), JSON_ARRAY(lease_epoch), JSON_ARRAY(position),
                        JSON_ARRAY(after));
    CALL store_letters(owner_id, partition_id, sequences, 'waits behind an earlier event of its key', 0, TRUE, TRUE);
    DO LAST_INSERT_ID(id_before);
    CALL end_call();
END;

-- name: return_letters
-- Redriven letters (a JSON array of ids) are dead again; of a parked one the whole key waits again. An empty reason leaves the old
-- one.
CREATE PROCEDURE return_letters(owner_id BIGINT, letter_ids JSON, why TEXT)
BEGIN
    UPDATE (
        SELECT DISTINCT d.partition_id, d.`key`
        FROM JSON_TABLE(letter_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS g
        JOIN dead_letters AS d ON d.id = g.id AND d.subscription_id = owner_id AND d.parked AND d.redriven_at IS NOT NULL
    ) AS failed
    STRAIGHT_JOIN dead_letters AS w FORCE INDEX (dead_letters_parked)
        ON w.subscription_id = owner_id AND w.parked = TRUE AND w.partition_id = failed.partition_id AND w.`key` = failed.`key`
    LEFT JOIN JSON_TABLE(letter_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS own ON own.id = w.id
    SET w.redriven_at = NULL
    WHERE w.redriven_at IS NOT NULL AND own.id IS NULL;
    UPDATE JSON_TABLE(letter_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS g
    STRAIGHT_JOIN dead_letters AS d FORCE INDEX (dead_letters_id) ON d.id = g.id
    SET d.redriven_at = NULL, d.died_at = UTC_TIMESTAMP(6), d.reason = COALESCE(NULLIF(LEFT(why, 2000), ''), d.reason)
    WHERE d.subscription_id = owner_id AND d.redriven_at IS NOT NULL;
END;

-- name: poll_redriven
-- Redriven letters of leased partitions (JSON arrays), in order, each counted as handed out, which is to be committed before a
-- handler gets them. Of a key that is parked only the first event. What was handed out as often as the subscription allows, and
-- never finished, is dead again. Raises PS010, PS013, PS018.
CREATE PROCEDURE poll_redriven(
    subscription LONGTEXT, consumer VARCHAR(255), partition_ids JSON, lease_epochs JSON, max_events INT
)
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE most INT;
    DECLARE wanted INT DEFAULT LEAST(GREATEST(COALESCE(max_events, 100), 1), 10000);
    DECLARE held_ids, held_epochs, spent, heads LONGTEXT;
    DECLARE limit_before BIGINT UNSIGNED DEFAULT @@SESSION.group_concat_max_len;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION
    BEGIN
        SET SESSION group_concat_max_len = limit_before;
        CALL undo_call();
        RESIGNAL;
    END;
    CALL begin_call('poll_redriven()');
    CALL find_subscription(subscription, owner_id);
    -- A cut number would be another's: the partition, or the letter, of another subscription.
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
            ON l.subscription_id = owner_id AND l.partition_id = g.id AND l.lease_epoch = e.lease_epoch AND l.holder = consumer
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
                  WHERE e.subscription_id = owner_id AND e.parked = TRUE AND e.partition_id = d.partition_id AND e.`key` = d.`key`
                    AND (e.history < d.history OR (e.history = d.history AND e.sequence < d.sequence))))
            ORDER BY d.partition_id, d.history, d.sequence
            LIMIT wanted
        ) AS h;
        UPDATE JSON_TABLE(COALESCE(heads, '[]'), '$[*]' COLUMNS (id BIGINT PATH '$')) AS h
        STRAIGHT_JOIN dead_letters AS d FORCE INDEX (dead_letters_id) ON d.id = h.id
        SET d.attempts = d.attempts + 1
        WHERE d.subscription_id = owner_id AND d.redriven_at IS NOT NULL;
        SELECT d.id AS letter_id, d.attempts, d.parked, d.history, d.partition_id, d.sequence,
               LOWER(INSERT(INSERT(INSERT(INSERT(HEX(d.event_id), 21, 0, '-'), 17, 0, '-'), 13, 0, '-'), 9, 0, '-')) AS event_id,
               d.`key`, d.type, d.content_type, d.headers, d.payload, d.created_at
        FROM JSON_TABLE(COALESCE(heads, '[]'), '$[*]' COLUMNS (id BIGINT PATH '$')) AS h
        JOIN dead_letters AS d ON d.id = h.id AND d.subscription_id = owner_id AND d.redriven_at IS NOT NULL
        ORDER BY d.partition_id, d.history, d.sequence;
    END IF;
    SET SESSION group_concat_max_len = limit_before;
    CALL end_call();
END;

-- name: finish_redriven
-- Removes redriven letters (a JSON array of ids) of one partition that were handled, in the caller's transaction: what else that
-- writes takes effect exactly once. The next event of a parked key is redriven with that. Refused when one of them is not
-- waiting any more: it was finished already, dropped or given back. Raises PS010, PS013, PS018, PS041.
CREATE PROCEDURE finish_redriven(
    subscription LONGTEXT, consumer VARCHAR(255), partition_id BIGINT, lease_epoch BIGINT, letter_ids JSON
)
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE finished INT;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION
    BEGIN
        CALL undo_call();
        RESIGNAL;
    END;
    CALL begin_call('finish_redriven()');
    CALL find_subscription(subscription, owner_id);
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
        CALL refuse('PS041', CONCAT('of ', JSON_LENGTH(letter_ids), ' redriven dead letters ', JSON_LENGTH(letter_ids) - finished,
                                    ' are not waiting any more'));
    END IF;
    CALL end_call();
END;

-- name: fail_redriven
-- A redriven letter that was handed out has failed: it is dead again, with the new reason; of a parked one the whole key waits
-- again. Doing it twice changes nothing. Raises PS010, PS013, PS018.
CREATE PROCEDURE fail_redriven(
    subscription LONGTEXT, consumer VARCHAR(255), partition_id BIGINT, lease_epoch BIGINT, letter_id BIGINT, reason TEXT
)
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION
    BEGIN
        CALL undo_call();
        RESIGNAL;
    END;
    CALL begin_call('fail_redriven()');
    CALL find_subscription(subscription, owner_id);
    CALL hold_leases(owner_id, consumer, JSON_ARRAY(partition_id), JSON_ARRAY(lease_epoch));
    CALL return_letters(owner_id, JSON_ARRAY(letter_id), reason);
    CALL end_call();
END;

-- name: redrive
-- Makes dead letters deliverable again, to whoever holds their partition: these (a JSON array of ids), or all of the subscription
-- (NULL). Of a parked key all events, in order. Answers how many were not so already. Raises PS013, PS018.
CREATE PROCEDURE redrive(subscription LONGTEXT, letter_ids JSON)
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE changed BIGINT DEFAULT 0;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION
    BEGIN
        CALL undo_call();
        RESIGNAL;
    END;
    CALL begin_call('redrive()');
    CALL require_read_committed('redrive()');
    CALL find_subscription(subscription, owner_id);
    IF letter_ids IS NULL THEN
        UPDATE dead_letters AS d
        SET d.redriven_at = UTC_TIMESTAMP(6), d.attempts_before = d.attempts
        WHERE d.subscription_id = owner_id AND d.redriven_at IS NULL;
        SET changed = ROW_COUNT();
    ELSE
        UPDATE (
            SELECT DISTINCT d.partition_id, d.`key`
            FROM JSON_TABLE(letter_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS g
            JOIN dead_letters AS d ON d.id = g.id AND d.subscription_id = owner_id AND d.parked
        ) AS chosen
        STRAIGHT_JOIN dead_letters AS w FORCE INDEX (dead_letters_parked)
            ON w.subscription_id = owner_id AND w.parked = TRUE AND w.partition_id = chosen.partition_id
            AND w.`key` = chosen.`key`
        SET w.redriven_at = UTC_TIMESTAMP(6), w.attempts_before = w.attempts
        WHERE w.redriven_at IS NULL;
        SET changed = ROW_COUNT();
        UPDATE JSON_TABLE(letter_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS g
        STRAIGHT_JOIN dead_letters AS d FORCE INDEX (dead_letters_id) ON d.id = g.id
        SET d.redriven_at = UTC_TIMESTAMP(6), d.attempts_before = d.attempts
        WHERE d.subscription_id = owner_id AND d.redriven_at IS NULL;
        SET changed = changed + ROW_COUNT();
    END IF;
    SELECT changed AS redriven;
    CALL end_call();
END;

-- name: drop_dead_letters
-- Throws dead letters (a JSON array of ids) away, whatever they wait for, and keeps a record of each without its payload; answers how
-- many. Events that are parked behind one stay. Raises PS006, PS013, PS018.
CREATE PROCEDURE drop_dead_letters(subscription LONGTEXT, letter_ids JSON)
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE gone BIGINT;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION
    BEGIN
        CALL undo_call();
        RESIGNAL;
    END;
    CALL begin_call('drop_dead_letters()');
    CALL require_read_committed('drop_dead_letters()');
    CALL find_subscription(subscription, owner_id);
    IF letter_ids IS NULL THEN
        CALL refuse('PS006', 'no dead letter is named');
    END IF;
    -- Locked first: a consumer may be finishing one of them.
    SELECT COUNT(d.id) INTO gone
    FROM dead_letters AS d FORCE INDEX (dead_letters_id)
    WHERE d.subscription_id = owner_id
      AND d.id IN (SELECT g.id FROM JSON_TABLE(letter_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS g)
    FOR UPDATE;
    INSERT INTO dropped_letters (
        subscription_id, id, partition_id, sequence, history, event_id, `key`, type, reason, attempts, died_at, dropped_by)
    SELECT DISTINCT d.subscription_id, d.id, d.partition_id, d.sequence, d.history, d.event_id, d.`key`, d.type, d.reason,
           d.attempts, d.died_at, USER()
    FROM JSON_TABLE(letter_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS g
    JOIN dead_letters AS d ON d.id = g.id
    WHERE d.subscription_id = owner_id;
    DELETE d
    FROM JSON_TABLE(letter_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS g
    STRAIGHT_JOIN dead_letters AS d FORCE INDEX (dead_letters_id) ON d.id = g.id
    WHERE d.subscription_id = owner_id;
    SELECT gone AS dropped;
    CALL end_call();
END;

-- name: dead_letters_of
-- The dead letters of a subscription without their payloads, newest first, before one if one is named: of a topic, a key, a type, a
-- state (dead, parked or redriven), or all.
CREATE PROCEDURE dead_letters_of(
    subscription LONGTEXT, max_rows INT, of_topic LONGTEXT, of_key LONGTEXT, of_type LONGTEXT, of_state LONGTEXT,
    before_id BIGINT
)
READS SQL DATA
BEGIN
    CALL refuse_serializable('dead_letters_of()');
    SELECT d.id, t.address AS topic, p.number AS `partition`, d.sequence, d.history,
           LOWER(INSERT(INSERT(INSERT(INSERT(HEX(d.event_id), 21, 0, '-'), 17, 0, '-'), 13, 0, '-'), 9, 0, '-')) AS event_id,
           d.`key`, d.type, d.content_type, LENGTH(d.payload) AS payload_bytes,
           IF(d.redriven_at IS NOT NULL, 'redriven', IF(d.parked, 'parked', 'dead')) AS state, d.attempts, d.reason,
           d.created_at, d.died_at
    FROM dead_letters AS d
    JOIN subscriptions AS s ON s.id = d.subscription_id
    JOIN partitions AS p ON p.id = d.partition_id
    JOIN topics AS t ON t.id = p.topic_id
    WHERE s.name_hash = UNHEX(SHA2(subscription, 256)) AND (NOT t.restricted OR has_right(t.namespace_id, 'consume'))
      AND (of_topic IS NULL OR t.address_hash = UNHEX(SHA2(of_topic, 256)))
      AND (of_key IS NULL OR d.`key` = of_key)
      AND (of_type IS NULL OR d.type = of_type)
      AND (of_state IS NULL OR of_state = IF(d.redriven_at IS NOT NULL, 'redriven', IF(d.parked, 'parked', 'dead')))
      AND (before_id IS NULL OR d.id < before_id)
    ORDER BY d.id DESC
    LIMIT max_rows;
END;

-- name: dead_letter_of
-- One dead letter of a subscription with everything it holds; no row when there is none of that id.
CREATE PROCEDURE dead_letter_of(subscription LONGTEXT, letter_id BIGINT)
READS SQL DATA
BEGIN
    CALL refuse_serializable('dead_letter_of()');
    SELECT d.id, t.address AS topic, p.number AS `partition`, d.sequence, d.history,
           LOWER(INSERT(INSERT(INSERT(INSERT(HEX(d.event_id), 21, 0, '-'), 17, 0, '-'), 13, 0, '-'), 9, 0, '-')) AS event_id,
           d.`key`, d.type, d.content_type, LENGTH(d.payload) AS payload_bytes,
           IF(d.redriven_at IS NOT NULL, 'redriven', IF(d.parked, 'parked', 'dead')) AS state, d.attempts, d.reason,
           d.created_at, d.died_at, d.headers, d.payload
    FROM dead_letters AS d
    JOIN subscriptions AS s ON s.id = d.subscription_id
    JOIN partitions AS p ON p.id = d.partition_id
    JOIN topics AS t ON t.id = p.topic_id
    WHERE d.id = letter_id AND s.name_hash = UNHEX(SHA2(subscription, 256))
      AND (NOT t.restricted OR has_right(t.namespace_id, 'consume'));
END;

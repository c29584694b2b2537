-- name: suspects
-- Held leases whose next events may have broken a consumer. died: a holder has died since the position moved. sequence,
-- attempts, reason: of the next event, if begin_attempt handed it out; attempts is 0 where a group began. Raises PS013.
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
    CALL find_subscription(subscription, owner_id);
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

-- name: store_letters
-- Copies events of a partition (a JSON array of sequences) to the dead letters of a subscription; a copy that exists
-- already is kept. An event that is parked waits for the operator together with its key: if the key was redriven, so
-- is the event. What was erased since the caller has read it takes no reason, which may quote it. The caller holds the
-- lease. Raises PS016, PS040.
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
        subscription_id, partition_id, sequence, history, event_id, `key`, type, content_type, headers, payload,
        created_at, reason, attempts, parked, redriven_at, died_at)
    SELECT owner_id, e.partition_id, e.sequence, present, e.event_id, e.`key`, e.type, e.content_type, e.headers,
           e.payload, e.created_at, IF(is_tombstone(LENGTH(e.payload), e.headers), '', LEFT(why, 2000)), tried,
           is_parked AND e.`key` IS NOT NULL,
           IF(behind AND NOT EXISTS (
               SELECT w.id FROM dead_letters AS w
               WHERE w.subscription_id = owner_id AND w.parked = TRUE AND w.partition_id = part_id AND w.`key` = e.`key`
                 AND w.redriven_at IS NULL), now, NULL), now
    FROM (
        SELECT l.partition_id, l.sequence, l.event_id, l.`key`, l.type, l.content_type, l.headers, l.payload,
               l.created_at
        FROM logged_events AS l
        WHERE l.partition_id = part_id AND l.first_sequence >= (
              SELECT MAX(f.first_sequence) FROM chunks AS f
              WHERE f.partition_id = part_id AND f.first_sequence <= lowest)
          AND l.first_sequence <= highest AND l.sequence BETWEEN lowest AND highest
        UNION ALL
        SELECT b.partition_id, b.sequence, b.event_id, b.`key`, b.type, b.content_type, b.headers, b.payload,
               b.created_at
        FROM rehydrated_events AS b JOIN partitions AS p ON p.id = b.partition_id
        WHERE b.partition_id = part_id AND b.sequence BETWEEN lowest AND highest AND b.sequence < p.low_sequence
          AND is_rehydrated(part_id, b.sequence)
    ) AS e
    WHERE e.sequence IN (SELECT s.sequence FROM JSON_TABLE(sequences, '$[*]' COLUMNS (sequence BIGINT PATH '$')) AS s)
    -- In this order: each assignment sees those before it.
    ON DUPLICATE KEY UPDATE
        attempts_before = dead_letters.attempts, attempts = GREATEST(dead_letters.attempts, tried),
        reason = IF(is_tombstone(LENGTH(dead_letters.payload), dead_letters.headers), dead_letters.reason,
                    VALUES(reason)),
        died_at = now, parked = dead_letters.parked OR VALUES(parked),
        redriven_at = VALUES(redriven_at);
    CALL settle_brought(owner_id, part_id, sequences, why, tried, is_parked, behind, present);
    SELECT COUNT(*) INTO copied
    FROM dead_letters AS d
    WHERE d.subscription_id = owner_id AND d.partition_id = part_id AND d.history = present AND d.sequence IN (
        SELECT s.sequence FROM JSON_TABLE(sequences, '$[*]' COLUMNS (sequence BIGINT PATH '$')) AS s);
    IF copied <> JSON_LENGTH(sequences) THEN
        CALL refuse('PS016', CONCAT('the log does not hold all of the sequences ', lowest, ' to ', highest));
    END IF;
    IF is_parked THEN
        SELECT COUNT(*) INTO copied
        FROM (
            SELECT w.id FROM dead_letters AS w WHERE w.subscription_id = owner_id AND w.parked = TRUE LIMIT 10001
        ) AS waiting;
        IF copied > most THEN
            CALL refuse('PS040', CONCAT('more than ', most, ' events would be parked'));
        END IF;
    END IF;
END;

-- name: settle_brought
-- What store_letters does, for events below the low sequence: the caller's transaction has brought them (bring_letter).
-- Where there is none, no row is locked: a redrive does not wait for who parks.
CREATE PROCEDURE settle_brought(
    owner_id BIGINT, part_id BIGINT, sequences JSON, why TEXT, tried INT, is_parked BOOLEAN, behind BOOLEAN, present INT
)
BEGIN
    DECLARE now DATETIME(6) DEFAULT UTC_TIMESTAMP(6);
    DECLARE low BIGINT;
    SELECT MAX(p.low_sequence) INTO low FROM partitions AS p WHERE p.id = part_id;
    IF EXISTS (
        SELECT * FROM JSON_TABLE(sequences, '$[*]' COLUMNS (sequence BIGINT PATH '$')) AS s WHERE s.sequence < low
    ) THEN
        UPDATE dead_letters AS d
        JOIN (
            SELECT s.sequence FROM JSON_TABLE(sequences, '$[*]' COLUMNS (sequence BIGINT PATH '$')) AS s
            WHERE s.sequence < low
            LIMIT 1000000
        ) AS g ON g.sequence = d.sequence
        LEFT JOIN (
            SELECT DISTINCT w.`key`
            FROM dead_letters AS w
            WHERE w.subscription_id = owner_id AND w.parked = TRUE AND w.partition_id = part_id
              AND w.redriven_at IS NULL
            LIMIT 1000000
        ) AS waiting ON waiting.`key` = d.`key`
        -- In this order: each assignment sees those before it.
        SET d.attempts_before = d.attempts, d.attempts = GREATEST(d.attempts, tried),
            d.reason = IF(is_tombstone(LENGTH(d.payload), d.headers), d.reason, LEFT(why, 2000)),
            d.died_at = now, d.parked = d.parked OR (is_parked AND d.`key` IS NOT NULL),
            d.redriven_at = IF(behind AND waiting.`key` IS NULL, now, NULL)
        WHERE d.subscription_id = owner_id AND d.partition_id = part_id AND d.history = present
          AND NOT is_rehydrated(part_id, d.sequence);
    END IF;
END;

-- name: bring_letter
-- Stores an event that only the archive has, as a consumer has read it there. The give_up or commit_parking that
-- follows in the same transaction makes it a dead letter: of events that the log has, these copy it themselves.
-- Refused (PS006) for an event that the log has, or that the position has passed. Raises PS006, PS010, PS013, PS018.
CREATE PROCEDURE bring_letter(
    subscription LONGTEXT, consumer VARCHAR(255), partition_id BIGINT, lease_epoch BIGINT, sequence BIGINT,
    event_id VARCHAR(36), `key` VARCHAR(255), type VARCHAR(255), content_type VARCHAR(255), headers MEDIUMTEXT,
    payload LONGBLOB, created_at DATETIME(6)
)
BEGIN
    DECLARE owner_id, low, stands_at BIGINT;
    DECLARE present INT;
    DECLARE erased_by CHAR(36);
    DECLARE is_replaced BOOLEAN;
    DECLARE id_before BIGINT DEFAULT LAST_INSERT_ID();
    {{on error: CALL undo_call()}}
    CALL begin_call('bring_letter()');
    CALL find_subscription(subscription, owner_id);
    CALL hold_leases(owner_id, consumer, JSON_ARRAY(partition_id), JSON_ARRAY(lease_epoch));
    SELECT MAX(p.low_sequence) INTO low FROM partitions AS p WHERE p.id = partition_id;
    SET stands_at = current_position(owner_id, partition_id);
    IF NOT COALESCE(sequence < low AND sequence > stands_at, FALSE) THEN
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
    CALL find_subscription(subscription, owner_id);
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

-- name: parked_keys
-- The keys whose events wait, in partitions (a JSON array) that the subscription reads: later events of such a key
-- must not go to the handler. Raises PS013.
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
-- A commit of one partition that parks some of the events it passes (a JSON array), because their keys wait. after is
-- the position after which the events were read. Raises PS006, PS010, PS011, PS012, PS013, PS016, PS018, PS040.
CREATE PROCEDURE commit_parking(
    subscription LONGTEXT, consumer VARCHAR(255), partition_id BIGINT, lease_epoch BIGINT, position BIGINT,
    after BIGINT, sequences JSON
)
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE places, good INT DEFAULT 0;
    DECLARE id_before BIGINT DEFAULT LAST_INSERT_ID();
    {{on error: CALL undo_call()}}
    CALL begin_call('commit_parking()');
    CALL find_subscription(subscription, owner_id);
    SET places = COALESCE(JSON_LENGTH(sequences), 0);
    SELECT COUNT(DISTINCT s.sequence) INTO good
    FROM JSON_TABLE(sequences, '$[*]' COLUMNS (sequence BIGINT PATH '$')) AS s
    WHERE s.sequence > after AND s.sequence <= position;
    IF after IS NULL OR places = 0 OR good <> places THEN
        CALL refuse('PS006', 'a commit parks only events that it passes, each once');
    END IF;
    CALL move_positions(subscription, consumer, JSON_ARRAY(partition_id), JSON_ARRAY(lease_epoch), JSON_ARRAY(position),
                        JSON_ARRAY(after));
    CALL store_letters(owner_id, partition_id, sequences, 'waits behind an earlier event of its key', 0, TRUE, TRUE);
    DO LAST_INSERT_ID(id_before);
    CALL end_call();
END;

-- name: drop_dead_letters
-- Deletes dead letters (a JSON array of ids), whatever they wait for, and keeps a record of each without its payload.
-- Returns how many it deleted. Events that are parked behind one of them stay. Raises PS006, PS013, PS018.
CREATE PROCEDURE drop_dead_letters(subscription LONGTEXT, letter_ids JSON)
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE gone BIGINT;
    {{on error: CALL undo_call()}}
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
        subscription_id, id, partition_id, sequence, history, event_id, `key`, type, reason, attempts, died_at,
        dropped_by)
    SELECT DISTINCT d.subscription_id, d.id, d.partition_id, d.sequence, d.history, d.event_id, d.`key`, d.type,
           d.reason, d.attempts, d.died_at, USER()
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
-- The dead letters of a subscription without their payloads, newest first. They can be limited to those before a
-- given one, and to a topic, a key, a type and a state (dead, parked or redriven).
CREATE PROCEDURE dead_letters_of(
    subscription LONGTEXT, max_rows INT, of_topic LONGTEXT, of_key LONGTEXT, of_type LONGTEXT, of_state LONGTEXT,
    before_id BIGINT
)
READS SQL DATA
BEGIN
    CALL refuse_serializable('dead_letters_of()');
    SELECT d.id, t.address AS topic, p.number AS `partition`, d.sequence, d.history,
           LOWER(INSERT(INSERT(INSERT(INSERT(HEX(d.event_id), 21, 0, '-'), 17, 0, '-'), 13, 0, '-'), 9, 0, '-'))
               AS event_id,
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
-- One dead letter of a subscription with all its columns; no row when there is none with that id.
CREATE PROCEDURE dead_letter_of(subscription LONGTEXT, letter_id BIGINT)
READS SQL DATA
BEGIN
    CALL refuse_serializable('dead_letter_of()');
    SELECT d.id, t.address AS topic, p.number AS `partition`, d.sequence, d.history,
           LOWER(INSERT(INSERT(INSERT(INSERT(HEX(d.event_id), 21, 0, '-'), 17, 0, '-'), 13, 0, '-'), 9, 0, '-'))
               AS event_id,
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

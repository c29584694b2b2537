-- name: dead_letters_of
-- The dead letters of a subscription without their payloads, newest first. They can be limited to those before a
-- given one, and to a topic, a key, a type and a state (dead, parked or redriven). forwarded_to and forwarded_as are
-- topic and id of the copy of one whose subscription names a topic (set_dead_letters_to); not_forwarded says why there
-- is none.
CREATE PROCEDURE dead_letters_of(
    subscription LONGTEXT, max_rows INT, of_topic LONGTEXT, of_key LONGTEXT, of_type LONGTEXT, of_state LONGTEXT,
    before_id BIGINT
)
READS SQL DATA
BEGIN
    CALL refuse_serializable('dead_letters_of()');
    -- In this order, by this index, the limit ends the reading.
    SELECT STRAIGHT_JOIN d.id, t.address AS topic, p.number AS `partition`, d.sequence, d.history,
           LOWER(INSERT(INSERT(INSERT(INSERT(HEX(d.event_id), 21, 0, '-'), 17, 0, '-'), 13, 0, '-'), 9, 0, '-'))
               AS event_id,
           d.`key`, d.type, d.content_type, LENGTH(d.payload) AS payload_bytes,
           IF(d.redriven_at IS NOT NULL, 'redriven', IF(d.parked, 'parked', 'dead')) AS state, d.attempts, d.reason,
           d.created_at, d.died_at,
           IF(NOT f.restricted AND @penstock_acting IS NULL OR has_right(f.namespace_id, 'any'), f.address, NULL)
               AS forwarded_to,
           LOWER(INSERT(INSERT(INSERT(INSERT(HEX(d.forwarded_as), 21, 0, '-'), 17, 0, '-'), 13, 0, '-'), 9, 0, '-'))
               AS forwarded_as,
           IF(d.forwarded_as IS NOT NULL AND f.id IS NULL, 'the topic was deleted', d.not_forwarded) AS not_forwarded
    FROM subscriptions AS s
    JOIN dead_letters AS d FORCE INDEX (dead_letters_subscription) ON d.subscription_id = s.id
    JOIN partitions AS p ON p.id = d.partition_id
    JOIN topics AS t ON t.id = p.topic_id
    LEFT JOIN topics AS f ON f.id = d.forwarded_to
    WHERE s.name_hash = UNHEX(SHA2(subscription, 256))
      AND (NOT t.restricted AND @penstock_acting IS NULL OR has_right(t.namespace_id, 'consume'))
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
           d.created_at, d.died_at,
           IF(NOT f.restricted AND @penstock_acting IS NULL OR has_right(f.namespace_id, 'any'), f.address, NULL)
               AS forwarded_to,
           LOWER(INSERT(INSERT(INSERT(INSERT(HEX(d.forwarded_as), 21, 0, '-'), 17, 0, '-'), 13, 0, '-'), 9, 0, '-'))
               AS forwarded_as,
           IF(d.forwarded_as IS NOT NULL AND f.id IS NULL, 'the topic was deleted', d.not_forwarded) AS not_forwarded,
           d.headers, d.payload
    FROM dead_letters AS d
    JOIN subscriptions AS s ON s.id = d.subscription_id
    JOIN partitions AS p ON p.id = d.partition_id
    JOIN topics AS t ON t.id = p.topic_id
    LEFT JOIN topics AS f ON f.id = d.forwarded_to
    WHERE d.id = letter_id AND s.name_hash = UNHEX(SHA2(subscription, 256))
      AND (NOT t.restricted AND @penstock_acting IS NULL OR has_right(t.namespace_id, 'consume'));
END;

-- name: dead_letter_counts
-- How many dead letters one subscription has, or each subscription (NULL), by state, and for how long the oldest has
-- been there. Of those that are not redriven, forwarded have a copy in the topic that the subscription names, and
-- not_forwarded were not taken by it. Of each subscription 10,000 are looked at: 10,000 means that many or more.
CREATE PROCEDURE dead_letter_counts(subscription LONGTEXT)
READS SQL DATA
BEGIN
    CALL refuse_serializable('dead_letter_counts()');
    SELECT c.name AS subscription, CAST(SUBSTRING_INDEX(c.counts, ',', 1) AS SIGNED) AS dead,
           CAST(SUBSTRING_INDEX(SUBSTRING_INDEX(c.counts, ',', 2), ',', -1) AS SIGNED) AS parked,
           CAST(SUBSTRING_INDEX(SUBSTRING_INDEX(c.counts, ',', 3), ',', -1) AS SIGNED) AS redriven,
           SUBSTRING_INDEX(SUBSTRING_INDEX(c.counts, ',', 4), ',', -1) + 0e0 AS oldest_seconds,
           CAST(SUBSTRING_INDEX(SUBSTRING_INDEX(c.counts, ',', 5), ',', -1) AS SIGNED) AS forwarded,
           CAST(SUBSTRING_INDEX(c.counts, ',', -1) AS SIGNED) AS not_forwarded
    FROM (
        SELECT s.name, count_dead_letters(s.id) AS counts
        FROM subscriptions AS s
        WHERE (subscription IS NULL OR s.name_hash = UNHEX(SHA2(subscription, 256))) AND NOT reads_hidden(s.id)
        ORDER BY s.name
        -- The limit keeps the server from merging the two queries: then each column would count again.
        LIMIT 1000000
    ) AS c
    ORDER BY c.name;
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
    CALL require_subscription(subscription, owner_id);
    IF letter_ids IS NULL THEN
        CALL refuse('PS006', 'no dead letter is named');
    END IF;
    -- Locked first, in the order of lock_letters: a consumer may be finishing one of them.
    SELECT COUNT(d.id) INTO gone
    FROM (
        SELECT DISTINCT w.id, w.partition_id, w.sequence, w.history
        FROM JSON_TABLE(letter_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS g
        STRAIGHT_JOIN dead_letters AS w FORCE INDEX (dead_letters_id) ON w.id = g.id
        WHERE w.subscription_id = owner_id
        ORDER BY w.partition_id, w.sequence, w.history
        LIMIT 1000000  -- keeps the order, and MariaDB from merging the two queries
    ) AS n
    STRAIGHT_JOIN dead_letters AS d FORCE INDEX (dead_letters_id) ON d.id = n.id
    FOR UPDATE;
    INSERT INTO dropped_letters (
        subscription_id, id, partition_id, sequence, history, event_id, `key`, type, reason, attempts, died_at,
        dropped_by)
    SELECT DISTINCT d.subscription_id, d.id, d.partition_id, d.sequence, d.history, d.event_id, d.`key`, d.type,
           d.reason, d.attempts, d.died_at, principal()
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

-- name: expire_dead_letters
-- Deletes dead letters that are older than their subscription's policy dead_letter_seconds, at most max_rows of them,
-- and keeps a record of each without its payload, as drop_dead_letters does. Letters that are parked, redriven or under
-- a legal hold stay, and so do those that somebody works on now. Returns how many it deleted. Raises PS006, PS018.
CREATE PROCEDURE expire_dead_letters(max_rows INT)
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE seconds DOUBLE;
    DECLARE gone INT DEFAULT 0;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE owners CURSOR FOR
        SELECT s.id, s.dead_letter_seconds FROM subscriptions AS s WHERE s.dead_letter_seconds > 0 ORDER BY s.id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    {{on error: CALL undo_call()}}
    CALL begin_call('expire_dead_letters()');
    CALL require_read_committed('expire_dead_letters()');
    IF NOT COALESCE(max_rows BETWEEN 1 AND 100000, FALSE) THEN
        CALL refuse('PS006', CONCAT('a look at ', COALESCE(max_rows, 'NULL'), ' dead letters: use 1 to 100,000'));
    END IF;
    CREATE TEMPORARY TABLE IF NOT EXISTS expired_letters (id BIGINT NOT NULL PRIMARY KEY) ENGINE = InnoDB;
    DELETE FROM expired_letters;
    SET done = FALSE;
    OPEN owners;
    each_owner: LOOP
        FETCH owners INTO owner_id, seconds;
        IF done OR gone >= max_rows THEN
            LEAVE each_owner;
        END IF;
        CALL find_expired_letters(owner_id, UTC_TIMESTAMP(6) - INTERVAL seconds SECOND, max_rows - gone);
        SELECT COUNT(o.id) INTO gone FROM expired_letters AS o;
    END LOOP;
    CLOSE owners;
    INSERT INTO dropped_letters (
        subscription_id, id, partition_id, sequence, history, event_id, `key`, type, reason, attempts, died_at,
        dropped_by)
    SELECT d.subscription_id, d.id, d.partition_id, d.sequence, d.history, d.event_id, d.`key`, d.type, d.reason,
           d.attempts, d.died_at, 'the policy dead_letter_seconds'
    FROM expired_letters AS o JOIN dead_letters AS d ON d.id = o.id;
    DELETE d FROM expired_letters AS o STRAIGHT_JOIN dead_letters AS d FORCE INDEX (dead_letters_id) ON d.id = o.id;
    DELETE FROM expired_letters;
    SELECT gone AS expired;
    CALL end_call();
END;

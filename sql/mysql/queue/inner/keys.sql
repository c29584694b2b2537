-- name: key_digest
-- What queue_keys keeps of a key.
CREATE FUNCTION key_digest(`key` VARCHAR(255)) RETURNS BINARY(16)
DETERMINISTIC NO SQL
BEGIN
    RETURN UNHEX(LEFT(SHA2(`key`, 256), 32));
END;

-- name: keeps_order
-- Whether a queue keeps the order of keys.
CREATE FUNCTION keeps_order(owner_id BIGINT) RETURNS BOOLEAN
READS SQL DATA
BEGIN
    DECLARE kept INT DEFAULT 0;
    SELECT COUNT(*) INTO kept FROM queues AS q WHERE q.subscription_id = owner_id AND q.`order` = 'key';
    RETURN kept > 0;
END;

-- name: read_keys
-- The events of a partition after a sequence and up to another one, as an array of [sequence, digest of the key] in
-- fresh; without a key the digest is empty.
CREATE PROCEDURE read_keys(part_id BIGINT, after BIGINT, until BIGINT, OUT fresh LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE limit_before BIGINT UNSIGNED DEFAULT @@SESSION.group_concat_max_len;
    {{on error: SET SESSION group_concat_max_len = limit_before}}
    SET SESSION group_concat_max_len = 4294967295;
    SELECT CONCAT('[', GROUP_CONCAT(
               JSON_ARRAY(i.sequence, COALESCE(HEX(key_digest(e.`key`)), '')) ORDER BY i.sequence), ']')
    INTO fresh
    FROM (
        SELECT n.sequence, n.id
        FROM logged_ids AS n
        WHERE n.partition_id = part_id
          AND n.first_sequence >= (
              SELECT MAX(f.first_sequence) FROM chunks AS f
              WHERE f.partition_id = part_id AND f.first_sequence <= after + 1)
          AND n.first_sequence <= until AND n.sequence BETWEEN after + 1 AND until
        LIMIT 1000000
    ) AS i
    STRAIGHT_JOIN events AS e FORCE INDEX (PRIMARY) ON e.id = i.id;
    SET fresh = COALESCE(fresh, '[]');
    SET SESSION group_concat_max_len = limit_before;
END;

-- name: deal_in_order
-- Deals the partitions of a plan (see undealt_parts) for a queue that keeps the order of keys: each event comes alone,
-- and of a key only the first one comes into the window.
CREATE PROCEDURE deal_in_order(owner_id BIGINT, plan LONGTEXT, INOUT last_id BIGINT)
BEGIN
    DECLARE part_id, after, until BIGINT;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE parts CURSOR FOR
        SELECT j.partition_id, j.after, j.until
        FROM JSON_TABLE(plan, '$[*]' COLUMNS (
            partition_id BIGINT PATH '$[0]', after BIGINT PATH '$[3]', until BIGINT PATH '$[4]')) AS j
        ORDER BY j.partition_id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    OPEN parts;
    each_part: LOOP
        FETCH parts INTO part_id, after, until;
        IF done THEN
            LEAVE each_part;
        END IF;
        CALL deal_keys(owner_id, part_id, after, until, last_id);
    END LOOP;
    CLOSE parts;
END;

-- name: deal_keys
-- Deals the next events of a partition in the order of their keys. An event waits behind the first one of its key. The
-- lock on that one holds whoever is about to finish it, who then sees what waits. When it is locked already, its
-- holder may not see what is dealt now, so the dealer looks again at its next turn.
CREATE PROCEDURE deal_keys(owner_id BIGINT, part_id BIGINT, after BIGINT, until BIGINT, INOUT last_id BIGINT)
BEGIN
    DECLARE fresh, present, held LONGTEXT;
    DECLARE dealt INT;
    DECLARE limit_before BIGINT UNSIGNED DEFAULT @@SESSION.group_concat_max_len;
    {{on error: SET SESSION group_concat_max_len = limit_before}}
    SET SESSION group_concat_max_len = 4294967295;
    CALL read_keys(part_id, after, until, fresh);
    SELECT CONCAT('[', GROUP_CONCAT(JSON_ARRAY(part_id, HEX(n.key_digest))), ']') INTO present
    FROM (
        SELECT DISTINCT k.key_digest
        FROM JSON_TABLE(fresh, '$[*]' COLUMNS (digest CHAR(32) PATH '$[1]')) AS f
        STRAIGHT_JOIN queue_keys AS k FORCE INDEX (queue_keys_key)
            ON k.subscription_id = owner_id AND k.partition_id = part_id AND k.key_digest = UNHEX(f.digest)
        LIMIT 1000000
    ) AS n;
    CALL hold_first(owner_id, present, held);
    SELECT CONCAT('[', GROUP_CONCAT(JSON_ARRAY(p.sequence, p.digest, p.state) ORDER BY p.sequence), ']') INTO fresh
    FROM (
        SELECT f.sequence, f.digest, CASE
                   WHEN f.digest = '' THEN 'first'
                   WHEN h.digest IS NOT NULL THEN 'behind'
                   WHEN p.digest IS NOT NULL THEN 'unsure'
                   WHEN ROW_NUMBER() OVER (PARTITION BY f.digest ORDER BY f.sequence) = 1 THEN 'first'
                   ELSE 'behind' END AS state
        FROM JSON_TABLE(fresh, '$[*]' COLUMNS (sequence BIGINT PATH '$[0]', digest CHAR(32) PATH '$[1]')) AS f
        LEFT JOIN (
            SELECT j.digest FROM JSON_TABLE(COALESCE(present, '[]'), '$[*]' COLUMNS (digest CHAR(32) PATH '$[1]')) AS j
            LIMIT 1000000
        ) AS p ON p.digest = f.digest
        LEFT JOIN (
            SELECT j.digest FROM JSON_TABLE(COALESCE(held, '[]'), '$[*]' COLUMNS (digest CHAR(32) PATH '$[1]')) AS j
            LIMIT 1000000
        ) AS h ON h.digest = f.digest
    ) AS p;
    INSERT INTO queue_keys (subscription_id, partition_id, sequence, key_digest, state)
    SELECT owner_id, part_id, f.sequence, UNHEX(f.digest), f.state
    FROM JSON_TABLE(COALESCE(fresh, '[]'), '$[*]' COLUMNS (
        sequence BIGINT PATH '$[0]', digest CHAR(32) PATH '$[1]', state VARCHAR(10) PATH '$[2]')) AS f
    WHERE f.digest <> '';
    INSERT INTO queue_ranges (subscription_id, partition_id, first_sequence, last_sequence)
    SELECT owner_id, part_id, f.sequence, f.sequence
    FROM JSON_TABLE(COALESCE(fresh, '[]'), '$[*]' COLUMNS (
        sequence BIGINT PATH '$[0]', state VARCHAR(10) PATH '$[2]')) AS f
    WHERE f.state = 'first'
    ORDER BY f.sequence;
    SET dealt = ROW_COUNT();
    CALL note_range_ids(owner_id, dealt, last_id);
    SET SESSION group_concat_max_len = limit_before;
END;

-- name: events_behind
-- How many events of a queue wait behind another one of their key.
CREATE FUNCTION events_behind(owner_id BIGINT) RETURNS BIGINT
READS SQL DATA
BEGIN
    DECLARE counted BIGINT DEFAULT 0;
    SELECT COUNT(*) INTO counted
    FROM queue_keys AS k FORCE INDEX (queue_keys_state)
    WHERE k.subscription_id = owner_id AND k.state IN ('behind', 'unsure');
    RETURN counted;
END;

-- name: has_unsure
-- Whether the dealer has to look again at events that wait for their key.
CREATE FUNCTION has_unsure(owner_id BIGINT) RETURNS BOOLEAN
READS SQL DATA
BEGIN
    DECLARE found BIGINT;
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    SELECT k.sequence INTO found
    FROM queue_keys AS k FORCE INDEX (queue_keys_state)
    WHERE k.subscription_id = owner_id AND k.state = 'unsure'
    LIMIT 1;
    RETURN found IS NOT NULL;
END;

-- name: settle_keys
-- Looks again at events of which it was not sure whether whoever finishes the first one of their key sees them. Of a
-- key that has no first one any more, the next one comes into the window. Where the first one is locked still, they
-- are left to the next turn. The limit is over keys, or one with many events would keep back all the others. has_more:
-- whether there may be more.
CREATE PROCEDURE settle_keys(owner_id BIGINT, OUT has_more BOOLEAN)
BEGIN
    DECLARE wanted, held, ended, sure LONGTEXT;
    DECLARE ended_keys, sure_rows INT DEFAULT 0;
    DECLARE limit_before BIGINT UNSIGNED DEFAULT @@SESSION.group_concat_max_len;
    {{on error: SET SESSION group_concat_max_len = limit_before}}
    SET SESSION group_concat_max_len = 4294967295;
    SELECT CONCAT('[', GROUP_CONCAT(IF(n.has_first, NULL, JSON_ARRAY(n.partition_id, HEX(n.key_digest)))), ']'),
           CONCAT('[', GROUP_CONCAT(IF(n.has_first, JSON_ARRAY(n.partition_id, HEX(n.key_digest)), NULL)), ']'),
           COALESCE(SUM(NOT n.has_first), 0)
    INTO ended, wanted, ended_keys
    FROM (
        SELECT h.partition_id, h.key_digest, h.has_first, ROW_NUMBER() OVER (PARTITION BY h.has_first) AS place
        FROM (
            SELECT u.partition_id, u.key_digest, EXISTS (
                       SELECT * FROM queue_keys AS f FORCE INDEX (queue_keys_key)
                       WHERE f.subscription_id = owner_id AND f.partition_id = u.partition_id
                         AND f.key_digest = u.key_digest AND f.state = 'first') AS has_first
            FROM (
                SELECT DISTINCT k.partition_id, k.key_digest
                FROM queue_keys AS k FORCE INDEX (queue_keys_state)
                WHERE k.subscription_id = owner_id AND k.state = 'unsure'
                LIMIT 1000000
            ) AS u
            LIMIT 1000000
        ) AS h
    ) AS n
    WHERE n.place <= IF(n.has_first, 10000, 1000);
    IF wanted IS NOT NULL THEN
        CALL hold_first(owner_id, wanted, held);
    END IF;
    SELECT CONCAT('[', GROUP_CONCAT(JSON_ARRAY(n.partition_id, n.sequence, n.waiting_id)), ']'), COUNT(*)
    INTO sure, sure_rows
    FROM (
        SELECT STRAIGHT_JOIN k.partition_id, k.sequence, k.waiting_id
        FROM (
            SELECT h.partition_id, h.digest
            FROM JSON_TABLE(COALESCE(held, '[]'), '$[*]' COLUMNS (
                partition_id BIGINT PATH '$[0]', digest CHAR(32) PATH '$[1]')) AS h
            UNION
            SELECT e.partition_id, e.digest
            FROM JSON_TABLE(COALESCE(ended, '[]'), '$[*]' COLUMNS (
                partition_id BIGINT PATH '$[0]', digest CHAR(32) PATH '$[1]')) AS e
        ) AS s
        JOIN queue_keys AS k FORCE INDEX (queue_keys_key)
            ON k.subscription_id = owner_id AND k.partition_id = s.partition_id AND k.key_digest = UNHEX(s.digest)
        WHERE k.state = 'unsure'
        LIMIT 10000
    ) AS n;
    IF sure IS NOT NULL THEN
        UPDATE JSON_TABLE(sure, '$[*]' COLUMNS (
            partition_id BIGINT PATH '$[0]', sequence BIGINT PATH '$[1]', waiting_id BIGINT PATH '$[2]')) AS s
        STRAIGHT_JOIN queue_keys AS k FORCE INDEX (PRIMARY)
            ON k.subscription_id = owner_id AND k.partition_id = s.partition_id AND k.sequence = s.sequence
            AND k.waiting_id = s.waiting_id
        SET k.state = 'behind'
        WHERE k.state = 'unsure';
        CALL bring_next(owner_id, ended);
    END IF;
    SET has_more = ended_keys >= 1000 OR sure_rows >= 10000;
    SET SESSION group_concat_max_len = limit_before;
END;

-- name: hold_first
-- Locks the first events of some keys (an array of [partition, digest]), but for those that are locked already. They
-- are found before they are locked: a locking query would lock what it passes over. held is their keys.
CREATE PROCEDURE hold_first(owner_id BIGINT, wanted LONGTEXT, OUT held LONGTEXT)
BEGIN
    DECLARE rows_of_them LONGTEXT;
    DECLARE limit_before BIGINT UNSIGNED DEFAULT @@SESSION.group_concat_max_len;
    {{on error: SET SESSION group_concat_max_len = limit_before}}
    SET SESSION group_concat_max_len = 4294967295;
    SELECT CONCAT('[', GROUP_CONCAT(JSON_ARRAY(k.partition_id, k.sequence, k.waiting_id)), ']') INTO rows_of_them
    FROM JSON_TABLE(COALESCE(wanted, '[]'), '$[*]' COLUMNS (
        partition_id BIGINT PATH '$[0]', digest CHAR(32) PATH '$[1]')) AS g
    STRAIGHT_JOIN queue_keys AS k FORCE INDEX (queue_keys_key)
        ON k.subscription_id = owner_id AND k.partition_id = g.partition_id AND k.key_digest = UNHEX(g.digest)
    WHERE k.state = 'first';
    SELECT CONCAT('[', GROUP_CONCAT(JSON_ARRAY(k.partition_id, HEX(k.key_digest))), ']') INTO held
    FROM (
        SELECT j.partition_id, j.sequence, j.waiting_id
        FROM JSON_TABLE(COALESCE(rows_of_them, '[]'), '$[*]' COLUMNS (
            partition_id BIGINT PATH '$[0]', sequence BIGINT PATH '$[1]', waiting_id BIGINT PATH '$[2]')) AS j
        LIMIT 1000000
    ) AS g
    STRAIGHT_JOIN queue_keys AS k FORCE INDEX (PRIMARY)
        ON k.subscription_id = owner_id AND k.partition_id = g.partition_id AND k.sequence = g.sequence
        AND k.waiting_id = g.waiting_id
    WHERE k.state = 'first'
    FOR UPDATE SKIP LOCKED;
    SET SESSION group_concat_max_len = limit_before;
END;

-- name: bring_next
-- Brings the next event of each key (an array of [partition, digest]) into the window, when its first one has gone.
CREATE PROCEDURE bring_next(owner_id BIGINT, wanted LONGTEXT)
BEGIN
    DECLARE next LONGTEXT;
    DECLARE limit_before BIGINT UNSIGNED DEFAULT @@SESSION.group_concat_max_len;
    {{on error: SET SESSION group_concat_max_len = limit_before}}
    SET SESSION group_concat_max_len = 4294967295;
    SELECT CONCAT('[', GROUP_CONCAT(JSON_ARRAY(k.partition_id, k.sequence, k.waiting_id)), ']') INTO next
    FROM (
        SELECT g.partition_id, (
                   SELECT MIN(w.sequence) FROM queue_keys AS w FORCE INDEX (queue_keys_key)
                   WHERE w.subscription_id = owner_id AND w.partition_id = g.partition_id
                     AND w.key_digest = UNHEX(g.digest)) AS sequence, g.digest
        FROM JSON_TABLE(COALESCE(wanted, '[]'), '$[*]' COLUMNS (
            partition_id BIGINT PATH '$[0]', digest CHAR(32) PATH '$[1]')) AS g
        LIMIT 1000000
    ) AS n
    STRAIGHT_JOIN queue_keys AS k FORCE INDEX (PRIMARY)
        ON k.subscription_id = owner_id AND k.partition_id = n.partition_id AND k.sequence = n.sequence
        AND k.key_digest = UNHEX(n.digest)
    WHERE k.state <> 'first' AND k.waiting_id = (
        SELECT MIN(w.waiting_id) FROM queue_keys AS w FORCE INDEX (queue_keys_key)
        WHERE w.subscription_id = owner_id AND w.partition_id = n.partition_id AND w.sequence = n.sequence
          AND w.key_digest = UNHEX(n.digest));
    IF next IS NOT NULL THEN
        UPDATE JSON_TABLE(next, '$[*]' COLUMNS (
            partition_id BIGINT PATH '$[0]', sequence BIGINT PATH '$[1]', waiting_id BIGINT PATH '$[2]')) AS n
        STRAIGHT_JOIN queue_keys AS k FORCE INDEX (PRIMARY)
            ON k.subscription_id = owner_id AND k.partition_id = n.partition_id AND k.sequence = n.sequence
            AND k.waiting_id = n.waiting_id
        SET k.state = 'first';
        INSERT INTO queue_ranges (subscription_id, partition_id, first_sequence, last_sequence, waiting_id)
        SELECT owner_id, n.partition_id, n.sequence, n.sequence, NULLIF(n.waiting_id, 0)
        FROM JSON_TABLE(next, '$[*]' COLUMNS (
            partition_id BIGINT PATH '$[0]', sequence BIGINT PATH '$[1]', waiting_id BIGINT PATH '$[2]')) AS n
        ORDER BY n.partition_id, n.sequence;
    END IF;
    SET SESSION group_concat_max_len = limit_before;
END;

-- name: finish_keys
-- Ends the turn of events that are finished or dead, where the queue keeps the order of keys: the next one of each key
-- comes into the window.
CREATE PROCEDURE finish_keys(owner_id BIGINT, pieces LONGTEXT)
BEGIN
    DECLARE ended LONGTEXT;
    DECLARE limit_before BIGINT UNSIGNED DEFAULT @@SESSION.group_concat_max_len;
    {{on error: SET SESSION group_concat_max_len = limit_before}}
    SET SESSION group_concat_max_len = 4294967295;
    SELECT CONCAT('[', GROUP_CONCAT(JSON_ARRAY(k.partition_id, HEX(k.key_digest))), ']') INTO ended
    FROM JSON_TABLE(COALESCE(pieces, '[]'), '$[*]' COLUMNS (
        partition_id BIGINT PATH '$[3]', sequence BIGINT PATH '$[4]', waiting_id BIGINT PATH '$[7]')) AS p
    STRAIGHT_JOIN queue_keys AS k FORCE INDEX (PRIMARY)
        ON k.subscription_id = owner_id AND k.partition_id = p.partition_id AND k.sequence = p.sequence
        AND k.waiting_id = p.waiting_id;
    IF ended IS NOT NULL THEN
        DELETE k
        FROM JSON_TABLE(pieces, '$[*]' COLUMNS (
            partition_id BIGINT PATH '$[3]', sequence BIGINT PATH '$[4]', waiting_id BIGINT PATH '$[7]')) AS p
        STRAIGHT_JOIN queue_keys AS k FORCE INDEX (PRIMARY)
            ON k.subscription_id = owner_id AND k.partition_id = p.partition_id AND k.sequence = p.sequence
            AND k.waiting_id = p.waiting_id;
        -- A statement of its own: it sees what the dealer has put behind them while the row was locked.
        CALL bring_next(owner_id, ended);
    END IF;
    SET SESSION group_concat_max_len = limit_before;
END;

-- name: carry_keys
-- Notes the copies of events that copy_out has made: given are the pieces before it, copied those after it. Of what is
-- in the log no more, the turn ends.
CREATE PROCEDURE carry_keys(owner_id BIGINT, given LONGTEXT, copied LONGTEXT)
BEGIN
    DECLARE gone LONGTEXT;
    DECLARE limit_before BIGINT UNSIGNED DEFAULT @@SESSION.group_concat_max_len;
    {{on error: SET SESSION group_concat_max_len = limit_before}}
    SET SESSION group_concat_max_len = 4294967295;
    UPDATE JSON_TABLE(COALESCE(copied, '[]'), '$[*]' COLUMNS (
        partition_id BIGINT PATH '$[3]', sequence BIGINT PATH '$[4]', waiting_id BIGINT PATH '$[7]')) AS c
    STRAIGHT_JOIN JSON_TABLE(given, '$[*]' COLUMNS (
        partition_id BIGINT PATH '$[3]', sequence BIGINT PATH '$[4]', waiting_id BIGINT PATH '$[7]')) AS g
        ON g.partition_id = c.partition_id AND g.sequence = c.sequence AND g.waiting_id = 0
    STRAIGHT_JOIN queue_keys AS k FORCE INDEX (PRIMARY)
        ON k.subscription_id = owner_id AND k.partition_id = c.partition_id AND k.sequence = c.sequence
        AND k.waiting_id = 0
    SET k.waiting_id = c.waiting_id;
    SELECT CONCAT('[', GROUP_CONCAT(g.piece), ']') INTO gone
    FROM JSON_TABLE(given, '$[*]' COLUMNS (
        partition_id BIGINT PATH '$[3]', sequence BIGINT PATH '$[4]', waiting_id BIGINT PATH '$[7]',
        piece JSON PATH '$')) AS g
    LEFT JOIN (
        SELECT j.partition_id, j.sequence
        FROM JSON_TABLE(COALESCE(copied, '[]'), '$[*]' COLUMNS (
            partition_id BIGINT PATH '$[3]', sequence BIGINT PATH '$[4]')) AS j
        LIMIT 1000000
    ) AS c ON c.partition_id = g.partition_id AND c.sequence = g.sequence
    WHERE g.waiting_id = 0 AND c.sequence IS NULL;
    IF gone IS NOT NULL THEN
        CALL finish_keys(owner_id, gone);
    END IF;
    SET SESSION group_concat_max_len = limit_before;
END;

-- name: cut_back_keys
-- What cut_back does, for what waits behind a key. What may have waited for an event that is gone is looked at again.
CREATE PROCEDURE cut_back_keys(owner_id BIGINT, part_id BIGINT, watermark BIGINT)
BEGIN
    DELETE k FROM queue_keys AS k
    WHERE k.subscription_id = owner_id AND k.partition_id = part_id AND k.sequence > watermark AND k.waiting_id = 0;
    UPDATE queue_keys AS k SET k.state = 'unsure'
    WHERE k.subscription_id = owner_id AND k.partition_id = part_id AND k.state = 'behind';
END;

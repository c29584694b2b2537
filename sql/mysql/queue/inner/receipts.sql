-- name: require_receipts
-- The receipts of a call as one array of [entry, claim, first sequence, last sequence, token] in entries. Refuses those
-- that cannot be read (PS043): arrays that differ in length, NULLs, and events that are named twice.
CREATE PROCEDURE require_receipts(
    claims JSON, first_sequences JSON, last_sequences JSON, tokens JSON, OUT entries LONGTEXT
)
NO SQL
BEGIN
    DECLARE bad INT DEFAULT 1;
    DECLARE places INT DEFAULT COALESCE(JSON_LENGTH(claims), 0);
    DECLARE limit_before BIGINT UNSIGNED DEFAULT @@SESSION.group_concat_max_len;
    {{on error: SET SESSION group_concat_max_len = limit_before}}
    SET SESSION group_concat_max_len = 4294967295;
    IF places BETWEEN 1 AND 10000 AND JSON_LENGTH(first_sequences) <=> places AND JSON_LENGTH(last_sequences) <=> places
        AND JSON_LENGTH(tokens) <=> places THEN
        SELECT CONCAT('[', GROUP_CONCAT(JSON_ARRAY(
                   c.place, c.claim, f.sequence, l.sequence, REPLACE(t.token, '-', ''))), ']'), COUNT(*) <> places
        INTO entries, bad
        FROM JSON_TABLE(claims, '$[*]' COLUMNS (place FOR ORDINALITY, claim BIGINT PATH '$')) AS c
        JOIN (
            SELECT j.place, j.sequence
            FROM JSON_TABLE(first_sequences, '$[*]' COLUMNS (place FOR ORDINALITY, sequence BIGINT PATH '$')) AS j
            LIMIT 1000000
        ) AS f ON f.place = c.place
        JOIN (
            SELECT j.place, j.sequence
            FROM JSON_TABLE(last_sequences, '$[*]' COLUMNS (place FOR ORDINALITY, sequence BIGINT PATH '$')) AS j
            LIMIT 1000000
        ) AS l ON l.place = c.place
        JOIN (
            SELECT j.place, j.token
            FROM JSON_TABLE(tokens, '$[*]' COLUMNS (place FOR ORDINALITY, token VARCHAR(36) PATH '$')) AS j
            LIMIT 1000000
        ) AS t ON t.place = c.place
        WHERE c.claim >= 1
          AND IF(f.sequence >= 1 AND l.sequence >= f.sequence, l.sequence - f.sequence <= 999, FALSE)
          AND REPLACE(t.token, '-', '') REGEXP '^[0-9a-fA-F]{32}$';
    END IF;
    IF NOT bad THEN
        SELECT COUNT(*) INTO bad
        FROM (
            SELECT g.first_sequence <= LAG(g.last_sequence) OVER (
                       PARTITION BY g.claim ORDER BY g.first_sequence) AS is_twice
            FROM JSON_TABLE(entries, '$[*]' COLUMNS (
                claim BIGINT PATH '$[1]', first_sequence BIGINT PATH '$[2]', last_sequence BIGINT PATH '$[3]')) AS g
        ) AS n
        WHERE n.is_twice;
    END IF;
    IF bad THEN
        CALL refuse('PS043', 'a receipt is malformed, or an event is named twice');
    END IF;
    SET SESSION group_concat_max_len = limit_before;
END;

-- name: lock_receipts
-- Locks the ranges that receipts are good for, in their order, to the end of the transaction: that is the fence. They
-- are found before they are locked, so that no wrong receipt waits for a row of others, and again after: what was
-- locked may have been replaced meanwhile.
CREATE PROCEDURE lock_receipts(owner_id BIGINT, entries LONGTEXT, OUT ids LONGTEXT)
BEGIN
    DECLARE wanted LONGTEXT;
    DECLARE locked, tries INT DEFAULT 0;
    CALL find_claimed(owner_id, entries, ids);
    REPEAT
        SET wanted = ids, tries = tries + 1;
        IF wanted IS NOT NULL THEN
            SELECT COUNT(*) INTO locked
            FROM (
                SELECT j.id FROM JSON_TABLE(CONCAT('[', wanted, ']'), '$[*]' COLUMNS (id BIGINT PATH '$')) AS j
                LIMIT 1000000
            ) AS g
            STRAIGHT_JOIN queue_ranges AS r FORCE INDEX (PRIMARY) ON r.subscription_id = owner_id AND r.id = g.id
            FOR UPDATE;
        END IF;
        CALL find_claimed(owner_id, entries, ids);
    UNTIL ids <=> wanted OR tries >= 10 END REPEAT;
    IF NOT ids <=> wanted THEN
        SET ids = NULL;
    END IF;
END;

-- name: take_out
-- Takes events out of their claims, in the caller's transaction: the one call behind all that receipts are for. pieces
-- are what was taken out. Of an entry whose receipt is not good for all of its events nothing is taken, and settled is
-- false; without partly that refuses the whole call. Raises PS018, PS043, PS044.
CREATE PROCEDURE take_out(
    owner_id BIGINT, claims JSON, first_sequences JSON, last_sequences JSON, tokens JSON, partly BOOLEAN,
    OUT pieces LONGTEXT, OUT settled LONGTEXT
)
BEGIN
    DECLARE entries, ids LONGTEXT;
    DECLARE first_deadline DATETIME(6);
    CALL require_receipts(claims, first_sequences, last_sequences, tokens, entries);
    CALL lock_receipts(owner_id, entries, ids);
    CALL match_receipts(owner_id, entries, COALESCE(ids, ''), pieces, settled, first_deadline);
    IF partly IS NOT TRUE AND INSTR(settled, 'false') > 0 THEN
        CALL refuse('PS044', 'a receipt is not good, or no longer');
    END IF;
    IF pieces IS NOT NULL THEN
        CALL limit_claim(first_deadline);
        CALL cut_out(owner_id, pieces);
    END IF;
END;

-- name: cut_out
-- Deletes the ranges of pieces, and writes what is left of them anew.
CREATE PROCEDURE cut_out(owner_id BIGINT, pieces LONGTEXT)
BEGIN
    INSERT INTO queue_ranges (
        subscription_id, partition_id, first_sequence, last_sequence, deliveries, token, deadline, waiting_id, former,
        former_token)
    WITH piece AS (
        SELECT j.range_id, j.first_sequence, j.last_sequence
        FROM JSON_TABLE(pieces, '$[*]' COLUMNS (
            range_id BIGINT PATH '$[2]', first_sequence BIGINT PATH '$[4]', last_sequence BIGINT PATH '$[5]')) AS j
        LIMIT 1000000
    ), gap AS (
        SELECT p.range_id, LAG(p.last_sequence) OVER (PARTITION BY p.range_id ORDER BY p.first_sequence) + 1 AS begins,
               p.first_sequence - 1 AS ends
        FROM piece AS p
        UNION ALL
        SELECT p.range_id, MAX(p.last_sequence) + 1, NULL FROM piece AS p GROUP BY p.range_id
    )
    SELECT STRAIGHT_JOIN r.subscription_id, r.partition_id, COALESCE(g.begins, r.first_sequence),
           COALESCE(g.ends, r.last_sequence), r.deliveries, r.token, r.deadline, r.waiting_id,
           COALESCE(r.former, r.id), r.former_token
    FROM gap AS g
    JOIN queue_ranges AS r FORCE INDEX (PRIMARY) ON r.subscription_id = owner_id AND r.id = g.range_id
    WHERE COALESCE(g.begins, r.first_sequence) <= COALESCE(g.ends, r.last_sequence)
    ORDER BY r.id, 3;
    DELETE r
    FROM (
        SELECT DISTINCT j.range_id
        FROM JSON_TABLE(pieces, '$[*]' COLUMNS (range_id BIGINT PATH '$[2]')) AS j
        LIMIT 1000000
    ) AS p
    STRAIGHT_JOIN queue_ranges AS r FORCE INDEX (PRIMARY) ON r.subscription_id = owner_id AND r.id = p.range_id;
END;

-- name: limit_claim
-- Bounds a transaction that has locked a claim: a paused worker would keep its events from everybody.
CREATE PROCEDURE limit_claim(deadline DATETIME(6))
NO SQL
BEGIN
    CALL limit_transaction(
        GREATEST(COALESCE(TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), deadline) / 1e6, 0), 10) / 0.95 + 0.01);
END;

-- name: find_claimed
-- The ranges that receipts are good for, as ids with commas between them: the claim itself, and what replaced it when
-- its time was over or it was cut or moved. A receipt is good as long as its event was not handed out again.
CREATE PROCEDURE find_claimed(owner_id BIGINT, entries LONGTEXT, OUT ids LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE limit_before BIGINT UNSIGNED DEFAULT @@SESSION.group_concat_max_len;
    {{on error: SET SESSION group_concat_max_len = limit_before}}
    SET SESSION group_concat_max_len = 4294967295;
    WITH given AS (
        SELECT DISTINCT j.claim, UNHEX(j.token) AS token
        FROM JSON_TABLE(entries, '$[*]' COLUMNS (claim BIGINT PATH '$[1]', token CHAR(32) PATH '$[4]')) AS j
        LIMIT 1000000
    )
    SELECT GROUP_CONCAT(n.id ORDER BY n.id) INTO ids
    FROM (
        SELECT STRAIGHT_JOIN r.id
        FROM given AS g
        JOIN queue_ranges AS r FORCE INDEX (PRIMARY) ON r.subscription_id = owner_id AND r.id = g.claim
        WHERE r.token = g.token
        UNION
        SELECT STRAIGHT_JOIN r.id
        FROM given AS g
        JOIN queue_ranges AS r FORCE INDEX (queue_ranges_former) ON r.former = g.claim
        WHERE r.subscription_id = owner_id AND COALESCE(r.token, r.former_token) = g.token
    ) AS n;
    SET SESSION group_concat_max_len = limit_before;
END;

-- name: match_receipts
-- The parts of locked ranges that receipts name, as an array of [entry, claim, range, partition, first sequence, last
-- sequence, deliveries, waiting_id (0: none)] in pieces, without those of entries that are not good as a whole. settled
-- tells which are, as an array.
CREATE PROCEDURE match_receipts(
    owner_id BIGINT, entries LONGTEXT, ids LONGTEXT, OUT pieces LONGTEXT, OUT settled LONGTEXT,
    OUT first_deadline DATETIME(6)
)
READS SQL DATA
BEGIN
    DECLARE limit_before BIGINT UNSIGNED DEFAULT @@SESSION.group_concat_max_len;
    {{on error: SET SESSION group_concat_max_len = limit_before}}
    SET SESSION group_concat_max_len = 4294967295;
    WITH given AS (
        SELECT j.entry, j.claim, j.first_sequence, j.last_sequence, UNHEX(j.token) AS token
        FROM JSON_TABLE(entries, '$[*]' COLUMNS (
            entry INT PATH '$[0]', claim BIGINT PATH '$[1]', first_sequence BIGINT PATH '$[2]',
            last_sequence BIGINT PATH '$[3]', token CHAR(32) PATH '$[4]')) AS j
        LIMIT 1000000
    ), locked AS (
        SELECT STRAIGHT_JOIN r.id, COALESCE(r.former, r.id) AS claim, COALESCE(r.token, r.former_token) AS token,
               r.partition_id, r.first_sequence, r.last_sequence, r.deliveries, r.deadline, r.waiting_id
        FROM JSON_TABLE(CONCAT('[', ids, ']'), '$[*]' COLUMNS (id BIGINT PATH '$')) AS g
        JOIN queue_ranges AS r FORCE INDEX (PRIMARY) ON r.subscription_id = owner_id AND r.id = g.id
        LIMIT 1000000
    ), matched AS (
        SELECT g.entry, g.claim, r.id, r.partition_id, GREATEST(g.first_sequence, r.first_sequence) AS first_sequence,
               LEAST(g.last_sequence, r.last_sequence) AS last_sequence, r.deliveries, r.deadline, r.waiting_id,
               SUM(LEAST(g.last_sequence, r.last_sequence) - GREATEST(g.first_sequence, r.first_sequence) + 1) OVER (
                   PARTITION BY g.entry) = g.last_sequence - g.first_sequence + 1 AS is_whole
        FROM given AS g
        JOIN locked AS r
            ON r.claim = g.claim AND r.token = g.token
            AND r.first_sequence <= g.last_sequence AND r.last_sequence >= g.first_sequence
    )
    SELECT CONCAT('[', GROUP_CONCAT(JSON_ARRAY(
               m.entry, m.claim, m.id, m.partition_id, m.first_sequence, m.last_sequence, m.deliveries,
               COALESCE(m.waiting_id, 0))), ']'), MIN(m.deadline)
    INTO pieces, first_deadline
    FROM matched AS m
    WHERE m.is_whole;
    SELECT CONCAT('[', GROUP_CONCAT(IF(p.entry IS NULL, 'false', 'true') ORDER BY g.entry), ']') INTO settled
    FROM JSON_TABLE(entries, '$[*]' COLUMNS (entry INT PATH '$[0]')) AS g
    LEFT JOIN (
        SELECT DISTINCT j.entry
        FROM JSON_TABLE(COALESCE(pieces, '[]'), '$[*]' COLUMNS (entry INT PATH '$[0]')) AS j
        LIMIT 1000000
    ) AS p ON p.entry = g.entry;
    SET SESSION group_concat_max_len = limit_before;
END;

-- name: finish_plain
-- The plain case: what was received together is finished together, by one row. The row is read first, so that a wrong
-- receipt does not wait for it.
CREATE PROCEDURE finish_plain(
    owner_id BIGINT, claim BIGINT, first_sequence BIGINT, last_sequence BIGINT, token VARCHAR(64), OUT is_plain BOOLEAN
)
BEGIN
    DECLARE ends DATETIME(6);
    DECLARE given BINARY(16);
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    SET is_plain = FALSE;
    IF REPLACE(token, '-', '') REGEXP '^[0-9a-fA-F]{32}$' THEN
        SET given = UNHEX(REPLACE(token, '-', ''));
        SELECT r.deadline INTO ends
        FROM queue_ranges AS r
        WHERE r.subscription_id = owner_id AND r.id = claim AND r.token = given AND r.first_sequence = first_sequence
          AND r.last_sequence = last_sequence AND r.waiting_id IS NULL;
        IF ends IS NOT NULL THEN
            DELETE r FROM queue_ranges AS r
            WHERE r.subscription_id = owner_id AND r.id = claim AND r.token = given
              AND r.first_sequence = first_sequence AND r.last_sequence = last_sequence AND r.waiting_id IS NULL;
            SET is_plain = ROW_COUNT() = 1;
        END IF;
        IF is_plain THEN
            CALL limit_claim(ends);
        END IF;
    END IF;
END;

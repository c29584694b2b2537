-- name: free_pieces
-- Puts pieces back into the window, at its end: nothing that is dealt later is handed out before them.
CREATE PROCEDURE free_pieces(owner_id BIGINT, pieces LONGTEXT, uncounted INT)
BEGIN
    IF pieces IS NOT NULL THEN
        INSERT INTO queue_ranges (
            subscription_id, partition_id, first_sequence, last_sequence, deliveries, waiting_id)
        SELECT owner_id, p.partition_id, p.first_sequence, p.last_sequence, GREATEST(p.deliveries - uncounted, 0),
               NULLIF(p.waiting_id, 0)
        FROM JSON_TABLE(pieces, '$[*]' COLUMNS (
            entry INT PATH '$[0]', partition_id BIGINT PATH '$[3]', first_sequence BIGINT PATH '$[4]',
            last_sequence BIGINT PATH '$[5]', deliveries INT PATH '$[6]', waiting_id BIGINT PATH '$[7]')) AS p
        ORDER BY p.entry, p.first_sequence;
    END IF;
END;

-- name: bury_pieces
-- Makes events dead letters. An event that is in the log no longer has nothing to bury.
CREATE PROCEDURE bury_pieces(owner_id BIGINT, pieces LONGTEXT, why TEXT)
BEGIN
    DECLARE is_forwarded BOOLEAN;
    DECLARE now DATETIME(6) DEFAULT UTC_TIMESTAMP(6);
    IF pieces IS NOT NULL THEN
        IF keeps_order(owner_id) THEN
            CALL finish_keys(owner_id, pieces);
        END IF;
        CALL copy_out(owner_id, pieces);
        INSERT INTO dead_letters (
            subscription_id, partition_id, sequence, history, event_id, `key`, type, content_type, headers, payload,
            created_at, reason, attempts, attempts_before, died_at)
        SELECT STRAIGHT_JOIN w.subscription_id, w.partition_id, w.sequence, w.history, w.event_id, w.`key`, w.type,
               w.content_type, w.headers, COALESCE(w.body, w.payload), w.created_at,
               IF(is_tombstone(LENGTH(w.payload), w.headers), w.reason, LEFT(why, 2000)),
               w.deliveries_before + GREATEST(p.deliveries, 1), w.deliveries_before, now
        FROM JSON_TABLE(COALESCE(pieces, '[]'), '$[*]' COLUMNS (
            deliveries INT PATH '$[6]', waiting_id BIGINT PATH '$[7]')) AS p
        JOIN queue_waiting AS w FORCE INDEX (PRIMARY) ON w.id = p.waiting_id
        ON DUPLICATE KEY UPDATE
            reason = VALUES(reason), attempts = GREATEST(dead_letters.attempts, VALUES(attempts)),
            died_at = VALUES(died_at), redriven_at = NULL, forwarded_to = NULL, forwarded_as = NULL,
            not_forwarded = NULL;
        SELECT COUNT(s.dead_letters_to) INTO is_forwarded FROM subscriptions AS s WHERE s.id = owner_id;
        IF is_forwarded THEN
            CALL forward_buried(owner_id, pieces);
        END IF;
        CALL drop_copies(pieces);
    END IF;
END;

-- name: forward_buried
-- Forwards the dead letters that were made of pieces.
CREATE PROCEDURE forward_buried(owner_id BIGINT, pieces LONGTEXT)
BEGIN
    DECLARE letters LONGTEXT;
    DECLARE limit_before BIGINT UNSIGNED DEFAULT @@SESSION.group_concat_max_len;
    {{on error: SET SESSION group_concat_max_len = limit_before}}
    SET SESSION group_concat_max_len = 4294967295;
    SELECT STRAIGHT_JOIN CONCAT('[', GROUP_CONCAT(d.id), ']') INTO letters
    FROM JSON_TABLE(pieces, '$[*]' COLUMNS (waiting_id BIGINT PATH '$[7]')) AS p
    JOIN queue_waiting AS w FORCE INDEX (PRIMARY) ON w.id = p.waiting_id
    JOIN dead_letters AS d FORCE INDEX (PRIMARY)
        ON d.subscription_id = owner_id AND d.partition_id = w.partition_id AND d.sequence = w.sequence
        AND d.history = w.history;
    SET SESSION group_concat_max_len = limit_before;
    CALL forward_letters(owner_id, letters);
END;

-- name: put_back
-- Puts pieces back whose delivery counts: those that were handed out as often as they may be become dead letters.
CREATE PROCEDURE put_back(owner_id BIGINT, pieces LONGTEXT)
BEGIN
    DECLARE spent, free LONGTEXT;
    DECLARE most INT;
    DECLARE limit_before BIGINT UNSIGNED DEFAULT @@SESSION.group_concat_max_len;
    {{on error: SET SESSION group_concat_max_len = limit_before}}
    SET SESSION group_concat_max_len = 4294967295;
    IF pieces IS NOT NULL THEN
        SELECT MAX(q.max_deliveries) INTO most FROM queues AS q WHERE q.subscription_id = owner_id;
        SELECT CONCAT('[', GROUP_CONCAT(IF(p.deliveries >= most, p.piece, NULL)), ']'),
               CONCAT('[', GROUP_CONCAT(IF(p.deliveries < most, p.piece, NULL)), ']')
        INTO spent, free
        FROM JSON_TABLE(pieces, '$[*]' COLUMNS (deliveries INT PATH '$[6]', piece JSON PATH '$')) AS p;
        CALL bury_pieces(owner_id, spent, 'was handed out as often as it may be, and put back each time');
        CALL free_pieces(owner_id, free, 0);
    END IF;
    SET SESSION group_concat_max_len = limit_before;
END;

-- name: claim_pieces
-- Makes new claims of pieces, and returns them.
CREATE PROCEDURE claim_pieces(owner_id BIGINT, pieces LONGTEXT, visibility_seconds DOUBLE)
BEGIN
    DECLARE own_token BINARY(16) DEFAULT RANDOM_BYTES(16);
    DECLARE ends DATETIME(6) DEFAULT UTC_TIMESTAMP(6) + INTERVAL ROUND(visibility_seconds * 1e6) MICROSECOND;
    DECLARE first_id BIGINT;
    INSERT INTO queue_ranges (
        subscription_id, partition_id, first_sequence, last_sequence, deliveries, token, deadline, waiting_id)
    SELECT owner_id, p.partition_id, p.first_sequence, p.last_sequence, p.deliveries, own_token, ends,
           NULLIF(p.waiting_id, 0)
    FROM JSON_TABLE(COALESCE(pieces, '[]'), '$[*]' COLUMNS (
        entry INT PATH '$[0]', partition_id BIGINT PATH '$[3]', first_sequence BIGINT PATH '$[4]',
        last_sequence BIGINT PATH '$[5]', deliveries INT PATH '$[6]', waiting_id BIGINT PATH '$[7]')) AS p
    ORDER BY p.entry, p.first_sequence;
    SET first_id = LAST_INSERT_ID();
    SELECT p.entry, n.first_sequence, n.last_sequence, n.id AS claim, n.token, n.deadline
    FROM (
        SELECT r.id, r.partition_id, r.first_sequence, r.last_sequence, r.token, r.deadline,
               COALESCE(r.waiting_id, 0) AS waiting_id
        FROM queue_ranges AS r FORCE INDEX (PRIMARY)
        WHERE r.subscription_id = owner_id AND r.id >= first_id AND r.token = own_token
        LIMIT 1000000
    ) AS n
    JOIN JSON_TABLE(COALESCE(pieces, '[]'), '$[*]' COLUMNS (
        entry INT PATH '$[0]', partition_id BIGINT PATH '$[3]', first_sequence BIGINT PATH '$[4]',
        waiting_id BIGINT PATH '$[7]')) AS p
        ON p.partition_id = n.partition_id AND p.first_sequence = n.first_sequence AND p.waiting_id = n.waiting_id
    ORDER BY p.entry, n.first_sequence;
END;

-- name: keep_pieces
-- Gives pieces more time, and leaves their receipts as they are: what was taken out of a claim stands for it.
CREATE PROCEDURE keep_pieces(owner_id BIGINT, pieces LONGTEXT, tokens JSON, visibility_seconds DOUBLE)
BEGIN
    DECLARE ends DATETIME(6) DEFAULT UTC_TIMESTAMP(6) + INTERVAL ROUND(visibility_seconds * 1e6) MICROSECOND;
    INSERT INTO queue_ranges (
        subscription_id, partition_id, first_sequence, last_sequence, deliveries, token, deadline, waiting_id, former)
    SELECT owner_id, p.partition_id, p.first_sequence, p.last_sequence, p.deliveries, UNHEX(REPLACE(t.token, '-', '')),
           ends, NULLIF(p.waiting_id, 0), p.claim
    FROM JSON_TABLE(COALESCE(pieces, '[]'), '$[*]' COLUMNS (
        entry INT PATH '$[0]', claim BIGINT PATH '$[1]', partition_id BIGINT PATH '$[3]',
        first_sequence BIGINT PATH '$[4]', last_sequence BIGINT PATH '$[5]', deliveries INT PATH '$[6]',
        waiting_id BIGINT PATH '$[7]')) AS p
    JOIN JSON_TABLE(tokens, '$[*]' COLUMNS (place FOR ORDINALITY, token VARCHAR(36) PATH '$')) AS t
        ON t.place = p.entry
    ORDER BY p.entry, p.first_sequence;
END;

-- name: fail_pieces
-- Counts a failure of pieces that were copied out of the log: each waits, or becomes a dead letter.
CREATE PROCEDURE fail_pieces(owner_id BIGINT, pieces LONGTEXT, why TEXT, delay_seconds DOUBLE)
BEGIN
    DECLARE present DATETIME(6) DEFAULT UTC_TIMESTAMP(6);
    DECLARE spent LONGTEXT;
    DECLARE shortest, longest, share DOUBLE;
    DECLARE most_deliveries, most_failures INT;
    DECLARE limit_before BIGINT UNSIGNED DEFAULT @@SESSION.group_concat_max_len;
    {{on error: SET SESSION group_concat_max_len = limit_before}}
    SET SESSION group_concat_max_len = 4294967295;
    SELECT q.first_backoff_seconds, q.longest_backoff_seconds, q.jitter, q.max_deliveries, q.max_failures
    INTO shortest, longest, share, most_deliveries, most_failures
    FROM queues AS q WHERE q.subscription_id = owner_id;
    UPDATE JSON_TABLE(COALESCE(pieces, '[]'), '$[*]' COLUMNS (
        deliveries INT PATH '$[6]', waiting_id BIGINT PATH '$[7]')) AS p
    STRAIGHT_JOIN queue_waiting AS w FORCE INDEX (PRIMARY) ON w.id = p.waiting_id
    SET w.failures = w.failures + 1, w.deliveries = p.deliveries, w.failed_at = present,
        w.reason = IF(is_tombstone(LENGTH(w.payload), w.headers), w.reason, why);
    -- In a statement of its own: an UPDATE with a join has no order of its assignments.
    UPDATE JSON_TABLE(COALESCE(pieces, '[]'), '$[*]' COLUMNS (waiting_id BIGINT PATH '$[7]')) AS p
    STRAIGHT_JOIN queue_waiting AS w FORCE INDEX (PRIMARY) ON w.id = p.waiting_id
    SET w.due_at = present + INTERVAL ROUND(1e6 * COALESCE(
        delay_seconds, backoff_seconds(shortest, longest, share, w.failures))) MICROSECOND;
    SELECT CONCAT('[', GROUP_CONCAT(p.piece), ']') INTO spent
    FROM JSON_TABLE(COALESCE(pieces, '[]'), '$[*]' COLUMNS (waiting_id BIGINT PATH '$[7]', piece JSON PATH '$')) AS p
    STRAIGHT_JOIN queue_waiting AS w FORCE INDEX (PRIMARY) ON w.id = p.waiting_id
    WHERE w.failures >= most_failures OR w.deliveries >= most_deliveries;
    CALL bury_pieces(owner_id, spent, COALESCE(NULLIF(why, ''), 'was rejected as often as it may be'));
    SET SESSION group_concat_max_len = limit_before;
END;

-- name: backoff_seconds
-- How long an event waits after so many failures: twice as long each time, up to the longest, less a random share.
CREATE FUNCTION backoff_seconds(shortest DOUBLE, longest DOUBLE, jitter DOUBLE, failures INT) RETURNS DOUBLE
NO SQL
BEGIN
    RETURN LEAST(shortest * POW(2, LEAST(failures - 1, 40)), longest) * (1 - jitter * RAND());
END;

-- name: require_body
-- Checks the length of a body that an event gets in place of its payload: the topic's limit holds. Raises PS004.
CREATE PROCEDURE require_body(part_id BIGINT, body_bytes BIGINT)
READS SQL DATA
BEGIN
    DECLARE longest INT;
    SELECT MAX(t.max_payload_bytes) INTO longest FROM topics AS t WHERE t.id = part_id >> 16;
    IF body_bytes > longest THEN
        CALL refuse('PS004', CONCAT('the body has ', body_bytes, ' bytes, the limit of the topic is ', longest));
    END IF;
END;

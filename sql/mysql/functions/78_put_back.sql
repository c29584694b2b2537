-- name: extend
-- Gives events more time from now on, and new receipts; the old ones are spent. 0 seconds put them back, behind what
-- is dealt already (at most 20,000 events), and the delivery counts. A body, for one event, goes with all later
-- hand-outs in place of the payload; the log keeps what was published, and an erased event takes none. Returns a row
-- for each range of a new claim. Raises PS004, PS006, PS013, PS018, PS042, PS043, PS044.
CREATE PROCEDURE extend(
    subscription LONGTEXT, claims JSON, first_sequences JSON, last_sequences JSON, tokens JSON,
    visibility_seconds DOUBLE, body LONGBLOB
)
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE pieces, settled LONGTEXT;
    DECLARE id_before BIGINT DEFAULT LAST_INSERT_ID();
    {{on error: CALL undo_call(); DO LAST_INSERT_ID(id_before)}}
    CALL begin_call('extend()');
    CALL require_read_committed('extend()');
    CALL require_queue(subscription, 'acknowledge', owner_id);
    IF NOT COALESCE(visibility_seconds BETWEEN 0 AND 43200, FALSE) THEN
        CALL refuse('PS006', CONCAT('a claim cannot be extended by ', COALESCE(visibility_seconds, 'NULL'),
                                    ' seconds: use 0 to 43,200'));
    ELSEIF body IS NOT NULL AND NOT COALESCE(
        JSON_LENGTH(claims) = 1
        AND JSON_EXTRACT(first_sequences, '$[0]') + 0 = JSON_EXTRACT(last_sequences, '$[0]') + 0, FALSE) THEN
        CALL refuse('PS006', 'a body was given for several events');
    END IF;
    CALL take_out(owner_id, claims, first_sequences, last_sequences, tokens, FALSE, pieces, settled);
    IF body IS NOT NULL THEN
        CALL require_body(JSON_EXTRACT(pieces, '$[0][3]') + 0, LENGTH(body));
        CALL copy_out(owner_id, pieces);
        UPDATE JSON_TABLE(COALESCE(pieces, '[]'), '$[*]' COLUMNS (waiting_id BIGINT PATH '$[7]')) AS p
        STRAIGHT_JOIN queue_waiting AS w FORCE INDEX (PRIMARY) ON w.id = p.waiting_id
        SET w.body = body
        WHERE NOT is_tombstone(LENGTH(w.payload), w.headers);
    END IF;
    IF visibility_seconds = 0 THEN
        CALL put_back(owner_id, pieces);
    ELSE
        CALL claim_pieces(owner_id, pieces, visibility_seconds);
    END IF;
    DO LAST_INSERT_ID(id_before);
    CALL end_call();
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

-- name: release_claims
-- Puts events back that nobody has begun, behind what is dealt already (at most 20,000 events); the delivery does not
-- count. Returns for each entry whether it was put back, as acknowledge does. Raises PS013, PS018, PS042, PS043, PS044.
CREATE PROCEDURE release_claims(
    subscription LONGTEXT, claims JSON, first_sequences JSON, last_sequences JSON, tokens JSON, partly BOOLEAN
)
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE pieces, settled LONGTEXT;
    DECLARE id_before BIGINT DEFAULT LAST_INSERT_ID();
    {{on error: CALL undo_call(); DO LAST_INSERT_ID(id_before)}}
    CALL begin_call('release_claims()');
    CALL require_read_committed('release_claims()');
    CALL require_queue(subscription, 'acknowledge', owner_id);
    CALL take_out(owner_id, claims, first_sequences, last_sequences, tokens, partly, pieces, settled);
    CALL free_pieces(owner_id, pieces, 1);
    SELECT settled AS settled;
    DO LAST_INSERT_ID(id_before);
    CALL end_call();
END;

-- name: reject
-- Records that events have failed: each waits for delay_seconds (NULL: the backoff of the queue, longer with each
-- failure) outside the window, where it hides nothing. One that has failed or was handed out as often as the queue
-- allows becomes a dead letter. Returns for each entry whether it was recorded, as acknowledge does. Raises PS006,
-- PS013, PS018, PS042, PS043, PS044.
CREATE PROCEDURE reject(
    subscription LONGTEXT, claims JSON, first_sequences JSON, last_sequences JSON, tokens JSON, reason LONGTEXT,
    delay_seconds DOUBLE, partly BOOLEAN
)
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE pieces, settled LONGTEXT;
    DECLARE id_before BIGINT DEFAULT LAST_INSERT_ID();
    {{on error: CALL undo_call(); DO LAST_INSERT_ID(id_before)}}
    CALL begin_call('reject()');
    CALL require_read_committed('reject()');
    CALL require_queue(subscription, 'acknowledge', owner_id);
    IF NOT COALESCE(delay_seconds, 0) BETWEEN 0 AND 31536000 THEN
        CALL refuse('PS006', CONCAT('an event cannot be delayed by ', delay_seconds, ' seconds'));
    END IF;
    CALL take_out(owner_id, claims, first_sequences, last_sequences, tokens, partly, pieces, settled);
    IF pieces IS NOT NULL THEN
        CALL copy_out(owner_id, pieces);
        CALL fail_pieces(owner_id, pieces, LEFT(COALESCE(reason, ''), 2000), delay_seconds);
    END IF;
    SELECT settled AS settled;
    DO LAST_INSERT_ID(id_before);
    CALL end_call();
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
    SET w.failures = w.failures + 1, w.deliveries = p.deliveries,
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

-- name: redrive_queue
-- What redrive does for a queue: dead letters (a JSON array of ids, or NULL: all) become events again that wait outside
-- the window, with new deliveries and failures, in the order of history and sequence. Where keys have an order, they
-- wait for their key instead: the dealer brings each when no other event of its key is out, the lowest sequence first.
-- changed is how many.
CREATE PROCEDURE redrive_queue(owner_id BIGINT, letter_ids JSON, OUT changed BIGINT)
BEGIN
    DECLARE present DATETIME(6) DEFAULT UTC_TIMESTAMP(6);
    DECLARE letter, locked BIGINT;
    DECLARE inserted INT;
    DECLARE done, ordered BOOLEAN DEFAULT FALSE;
    DECLARE letters CURSOR FOR
        SELECT d.id FROM dead_letters AS d
        WHERE d.subscription_id = owner_id AND (letter_ids IS NULL OR d.id IN (
            SELECT j.id FROM JSON_TABLE(letter_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS j))
        ORDER BY d.partition_id, d.history, d.sequence;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    SET changed = 0;
    -- Who sets the order locks this row too, and counts what is in hand.
    SELECT MAX(s.id) INTO locked FROM subscriptions AS s WHERE s.id = owner_id LOCK IN SHARE MODE;
    SET ordered = keeps_order(owner_id);
    OPEN letters;
    each_letter: LOOP
        FETCH letters INTO letter;
        IF done THEN
            LEAVE each_letter;
        END IF;
        -- Locked, because another session may have redriven or dropped it.
        SET letter = (SELECT d.id FROM dead_letters AS d WHERE d.id = letter FOR UPDATE);
        INSERT INTO queue_waiting (
            subscription_id, partition_id, sequence, history, due_at, deliveries, failures, reason, event_id, `key`,
            type, content_type, headers, payload, created_at, sequenced_at)
        SELECT d.subscription_id, d.partition_id, d.sequence, d.history,
               IF(ordered AND d.`key` IS NOT NULL, NULL, present + INTERVAL changed MICROSECOND), 0, 0,
               d.reason, d.event_id, d.`key`, d.type, d.content_type, d.headers, d.payload, d.created_at, d.created_at
        FROM dead_letters AS d
        WHERE d.id = letter;
        SET inserted = ROW_COUNT();
        IF ordered AND inserted > 0 THEN
            INSERT INTO queue_keys (subscription_id, partition_id, sequence, waiting_id, key_digest, state)
            SELECT owner_id, w.partition_id, w.sequence, w.id, key_digest(w.`key`), 'unsure'
            FROM queue_waiting AS w
            WHERE w.id = LAST_INSERT_ID() AND w.`key` IS NOT NULL;
        END IF;
        SET changed = changed + inserted;
        DELETE d FROM dead_letters AS d WHERE d.id = letter;
    END LOOP;
    CLOSE letters;
END;

-- name: purge
-- Throws away all that a queue has not finished, what waits included; dead letters stay. Receipts that are out are good
-- no longer. Records what was thrown away of each partition. Returns how many events that were. Raises PS013, PS018,
-- PS042.
CREATE PROCEDURE `purge`(subscription LONGTEXT)
BEGIN
    DECLARE owner_id, part_id, held_epoch, stands_at, watermark, ready, in_flight, waits, dead, locked BIGINT;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE id_before BIGINT DEFAULT LAST_INSERT_ID();
    DECLARE parts CURSOR FOR
        SELECT l.partition_id FROM leases AS l WHERE l.subscription_id = owner_id ORDER BY l.partition_id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    {{on error: CALL undo_call()}}
    CALL begin_call('purge()');
    CALL require_read_committed('purge()');
    CALL require_queue(subscription, 'operate', owner_id);
    SET owner_id = (SELECT q.subscription_id FROM queues AS q WHERE q.subscription_id = owner_id FOR UPDATE);
    CALL queue_counts(owner_id, ready, in_flight, waits, dead);
    DELETE r FROM queue_ranges AS r WHERE r.subscription_id = owner_id;
    -- What an erasure locks before it looks at copies, and workers after their claims.
    SELECT COUNT(*) INTO locked
    FROM subscription_topics AS r FORCE INDEX (PRIMARY) WHERE r.subscription_id = owner_id
    LOCK IN SHARE MODE;
    CALL record_copies(owner_id);
    DELETE w FROM queue_waiting AS w WHERE w.subscription_id = owner_id;
    DELETE k FROM queue_keys AS k WHERE k.subscription_id = owner_id;
    OPEN parts;
    each_part: LOOP
        FETCH parts INTO part_id;
        IF done THEN
            LEAVE each_part;
        END IF;
        SET held_epoch = (
            SELECT l.lease_epoch FROM leases AS l
            WHERE l.subscription_id = owner_id AND l.partition_id = part_id
            FOR UPDATE);
        SET stands_at = current_position(owner_id, part_id), watermark = high_watermark(part_id);
        IF held_epoch IS NOT NULL AND watermark > stands_at THEN
            INSERT INTO queue_purges (subscription_id, partition_id, first_sequence, last_sequence, purged_by)
            VALUES (owner_id, part_id, stands_at + 1, watermark, user_part(USER()));
            INSERT INTO positions (subscription_id, partition_id, position, lease_epoch, reason, reached)
            VALUES (owner_id, part_id, watermark, held_epoch, 'queue', watermark);
        END IF;
    END LOOP;
    CLOSE parts;
    SELECT ready + in_flight + waits AS size;
    DO LAST_INSERT_ID(id_before);
    CALL end_call();
END;

-- name: record_copies
-- Records the events out of the window that a purge is about to throw away and that its record of the log would not
-- have: the position has passed them.
CREATE PROCEDURE record_copies(owner_id BIGINT)
BEGIN
    INSERT INTO queue_purges (subscription_id, partition_id, first_sequence, last_sequence, purged_by)
    SELECT owner_id, n.partition_id, MIN(n.sequence), MAX(n.sequence), user_part(USER())
    FROM (
        SELECT w.partition_id, w.sequence, w.sequence - CAST(DENSE_RANK() OVER (
                   PARTITION BY w.partition_id ORDER BY w.sequence) AS SIGNED) AS island
        FROM (
            SELECT l.partition_id, current_position(owner_id, l.partition_id) AS position
            FROM leases AS l
            WHERE l.subscription_id = owner_id
            LIMIT 1000000
        ) AS s
        STRAIGHT_JOIN queue_waiting AS w FORCE INDEX (queue_waiting_place)
            ON w.subscription_id = owner_id AND w.partition_id = s.partition_id AND w.sequence <= s.position
    ) AS n
    GROUP BY n.partition_id, n.island;
END;

-- name: erase_copies
-- What erase_letters does, for the copies that queues have of events that wait or have a body of their own. erased is
-- how many. Raises PS027.
CREATE PROCEDURE erase_copies(
    held CHAR(36), source_id BIGINT, is_replaced BOOLEAN, `key` LONGTEXT, max_rows INT, OUT erased BIGINT
)
BEGIN
    DECLARE copy_id BIGINT;
    DECLARE held_by VARCHAR(200);
    DECLARE is_over BOOLEAN DEFAULT FALSE;
    DECLARE copies CURSOR FOR
        SELECT w.id,
               (SELECT MAX(h.name)
                FROM partitions AS p
                JOIN legal_holds AS h ON h.topic_id = p.topic_id AND h.released_at IS NULL
                                         AND COALESCE(h.number, p.number) = p.number
                WHERE p.id = w.partition_id AND w.sequence >= h.first_sequence
                  AND w.sequence <= COALESCE(h.last_sequence, w.sequence))
        FROM queue_waiting AS w JOIN erasures AS e ON e.erasure = held
        WHERE w.partition_id BETWEEN source_id << 16 AND (source_id << 16) + 65535
          AND (w.event_id = e.event_id OR CAST(w.`key` AS BINARY) = CAST(`key` AS BINARY))
          AND NOT EXISTS (
              SELECT * FROM erasures AS z
              WHERE z.topic_id = source_id AND w.payload = '' AND w.body IS NULL
                AND w.headers = erasure_mark(z.erasure) AND w.reason IN ('', erased_reason(z.erasure)))
        ORDER BY w.id
        LIMIT 10000;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET is_over = TRUE;
    SET erased = 0;
    OPEN copies;
    each_copy: LOOP
        FETCH copies INTO copy_id, held_by;
        IF is_over OR erased >= max_rows THEN
            LEAVE each_copy;
        ELSEIF held_by IS NOT NULL THEN
            CALL refuse('PS027', CONCAT('legal hold "', LEFT(held_by, 60), '" covers a copy in a queue'));
        END IF;
        UPDATE queue_waiting AS w
        SET w.payload = '', w.body = NULL, w.headers = erasure_mark(held), w.reason = erased_reason(held),
            w.`key` = IF(is_replaced, NULL, w.`key`)
        WHERE w.id = copy_id;
        SET erased = erased + 1;
    END LOOP;
    CLOSE copies;
END;

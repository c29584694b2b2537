-- name: copy_out
-- Copies the events of pieces out of the log, so that they can leave the window; pieces are then single events, each
-- with its copy. An event that is in the log no longer is left out: retention has recorded that it was skipped.
CREATE PROCEDURE copy_out(owner_id BIGINT, INOUT pieces LONGTEXT)
BEGIN
    DECLARE present INT;
    DECLARE given LONGTEXT DEFAULT pieces;
    DECLARE first_id BIGINT DEFAULT 9223372036854775807;
    DECLARE limit_before BIGINT UNSIGNED DEFAULT @@SESSION.group_concat_max_len;
    {{on error: SET SESSION group_concat_max_len = limit_before}}
    SET SESSION group_concat_max_len = 4294967295;
    CALL await_erasures(owner_id, pieces);
    SELECT MAX(h.history) INTO present FROM histories AS h;
    INSERT INTO queue_waiting (
        subscription_id, partition_id, sequence, history, deliveries, failures, reason, event_id, `key`, type,
        content_type, headers, payload, created_at, sequenced_at)
    SELECT STRAIGHT_JOIN owner_id, s.partition_id, s.sequence, present, s.deliveries, 0, '', e.event_id, e.`key`,
           e.type, e.content_type, e.headers, e.payload, e.created_at, s.sequenced_at
    FROM (
        SELECT STRAIGHT_JOIN n.partition_id, n.sequence, n.deliveries,
               CAST(CONV(HEX(SUBSTR(c.event_ids, 8 * (n.sequence - c.first_sequence) + 1, 8)), 16, 10) AS SIGNED) AS id,
               IF(c.sequenced_ats IS NULL, c.sequenced_at, TIMESTAMP'1970-01-01 00:00:00' + INTERVAL CAST(CONV(HEX(
                   SUBSTR(c.sequenced_ats, 8 * (n.sequence - c.first_sequence) + 1, 8)), 16, 10) AS SIGNED) MICROSECOND
               ) AS sequenced_at
        FROM (
            SELECT STRAIGHT_JOIN p.partition_id, p.first_sequence + l.n AS sequence, p.deliveries, (
                       SELECT f.first_sequence FROM chunks AS f
                       WHERE f.partition_id = p.partition_id AND f.first_sequence <= p.first_sequence + l.n
                       ORDER BY f.partition_id DESC, f.first_sequence DESC
                       LIMIT 1) AS chunk
            FROM JSON_TABLE(pieces, '$[*]' COLUMNS (
                partition_id BIGINT PATH '$[3]', first_sequence BIGINT PATH '$[4]', last_sequence BIGINT PATH '$[5]',
                deliveries INT PATH '$[6]', waiting_id BIGINT PATH '$[7]')) AS p
            JOIN places AS l
                ON l.size = 1 << CAST(CEIL(LOG2(p.last_sequence - p.first_sequence + 1)) AS UNSIGNED)
                AND l.n <= p.last_sequence - p.first_sequence
            WHERE p.waiting_id = 0
            LIMIT 1000000
        ) AS n
        JOIN chunks AS c ON c.partition_id = n.partition_id AND c.first_sequence = n.chunk
        WHERE n.sequence < c.first_sequence + c.event_count
        LIMIT 1000000
    ) AS s
    JOIN events AS e FORCE INDEX (PRIMARY) ON e.id = s.id;
    IF ROW_COUNT() > 0 THEN
        SET first_id = LAST_INSERT_ID();
    END IF;
    SELECT CONCAT('[', GROUP_CONCAT(JSON_ARRAY(
               p.entry, p.claim, p.range_id, p.partition_id, COALESCE(w.sequence, p.first_sequence),
               COALESCE(w.sequence, p.last_sequence), p.deliveries, COALESCE(w.id, p.waiting_id))), ']')
    INTO pieces
    FROM JSON_TABLE(pieces, '$[*]' COLUMNS (
        entry INT PATH '$[0]', claim BIGINT PATH '$[1]', range_id BIGINT PATH '$[2]', partition_id BIGINT PATH '$[3]',
        first_sequence BIGINT PATH '$[4]', last_sequence BIGINT PATH '$[5]', deliveries INT PATH '$[6]',
        waiting_id BIGINT PATH '$[7]')) AS p
    LEFT JOIN (
        SELECT c.id, c.partition_id, c.sequence FROM queue_waiting AS c
        WHERE c.id >= first_id AND c.subscription_id = owner_id
        LIMIT 1000000
    ) AS w
        ON p.waiting_id = 0 AND w.partition_id = p.partition_id
        AND w.sequence BETWEEN p.first_sequence AND p.last_sequence
    WHERE p.waiting_id > 0 OR w.id IS NOT NULL;
    IF keeps_order(owner_id) THEN
        CALL carry_keys(owner_id, given, pieces);
    END IF;
    SET SESSION group_concat_max_len = limit_before;
END;

-- name: drop_copies
-- Deletes the copies of events that are finished.
CREATE PROCEDURE drop_copies(pieces LONGTEXT)
BEGIN
    IF pieces IS NOT NULL THEN
        DELETE w
        FROM JSON_TABLE(pieces, '$[*]' COLUMNS (waiting_id BIGINT PATH '$[7]')) AS p
        STRAIGHT_JOIN queue_waiting AS w FORCE INDEX (PRIMARY) ON w.id = p.waiting_id;
    END IF;
END;

-- name: record_copies
-- Records the events out of the window that a purge is about to throw away and that its record of the log would not
-- have: the position has passed them.
CREATE PROCEDURE record_copies(owner_id BIGINT)
BEGIN
    INSERT INTO queue_purges (subscription_id, partition_id, first_sequence, last_sequence, purged_by)
    SELECT owner_id, n.partition_id, MIN(n.sequence), MAX(n.sequence), principal()
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

-- name: read_claims
-- The events of claims (ids with commas between them). A long range takes its chunks apart as a whole; of a short one
-- that would take longer than to find each event.
CREATE PROCEDURE read_claims(owner_id BIGINT, claimed LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE part_id, lowest, highest BIGINT;
    DECLARE present INT;
    IF INSTR(claimed, ',') = 0 THEN
        SELECT r.partition_id, r.first_sequence, r.last_sequence INTO part_id, lowest, highest
        FROM queue_ranges AS r
        WHERE r.subscription_id = owner_id AND r.id = claimed + 0 AND r.waiting_id IS NULL
          AND r.last_sequence - r.first_sequence >= 50;
    END IF;
    SELECT MAX(h.history) INTO present FROM histories AS h;
    IF part_id IS NOT NULL THEN
        SELECT STRAIGHT_JOIN r.id AS claim, r.token, r.deadline, r.deliveries, 0 AS failures, t.address AS topic,
               part_id & 65535 AS `partition`, i.sequence,
               LOWER(INSERT(INSERT(INSERT(INSERT(HEX(e.event_id), 21, 0, '-'), 17, 0, '-'), 13, 0, '-'), 9, 0, '-'))
                   AS event_id,
               e.`key`, e.type, e.content_type, e.headers, e.payload, e.created_at, i.sequenced_at, present AS history
        FROM (
            SELECT n.sequence, n.id, n.sequenced_at
            FROM logged_ids AS n
            WHERE n.partition_id = part_id
              AND n.first_sequence >= (
                  SELECT MAX(f.first_sequence) FROM chunks AS f
                  WHERE f.partition_id = part_id AND f.first_sequence <= lowest)
              AND n.first_sequence <= highest AND n.sequence BETWEEN lowest AND highest
            LIMIT 100000
        ) AS i
        JOIN events AS e FORCE INDEX (PRIMARY) ON e.id = i.id
        JOIN queue_ranges AS r FORCE INDEX (PRIMARY) ON r.subscription_id = owner_id AND r.id = claimed + 0
        JOIN topics AS t ON t.id = part_id >> 16
        ORDER BY i.sequence;
    ELSE
        CALL read_several(owner_id, claimed, present);
    END IF;
END;

-- name: claim_events
-- Claims free ranges, and takes the turn of the dealer when it is due or nothing is free. While another session deals,
-- this waits for it only when there is nothing else to do.
CREATE PROCEDURE claim_events(
    owner_id BIGINT, kept_order VARCHAR(10), max_events INT, own_token BINARY(16), ends DATETIME(6),
    OUT claimed LONGTEXT
)
BEGIN
    DECLARE present DATETIME(6) DEFAULT UTC_TIMESTAMP(6);
    DECLARE floor_id, free_id, last_id, highest BIGINT;
    DECLARE tries INT DEFAULT 0;
    DECLARE is_due, turned BOOLEAN DEFAULT FALSE;
    SELECT t.floor_id, t.free_id, t.last_id, t.rest_until NOT BETWEEN present AND present + INTERVAL 5 SECOND
    INTO floor_id, free_id, last_id, is_due
    FROM queue_turns AS t WHERE t.subscription_id = owner_id;
    IF is_due AND (floor_id <= last_id OR has_due(owner_id, present)
                   OR (kept_order = 'key' AND has_unsure(owner_id))) THEN
        CALL turn_queue(owner_id, max_events, turned);
        SELECT t.free_id, t.last_id INTO free_id, last_id FROM queue_turns AS t WHERE t.subscription_id = owner_id;
    END IF;
    CALL claim_ranges(owner_id, free_id, max_events, own_token, ends, claimed, highest);
    IF claimed <> '' THEN
        -- Dealt ahead, so that receivers hardly ever wait for the dealer: by one range in eight, because all others
        -- would only find the dealer at work. A short window has all that there was.
        IF highest BETWEEN (free_id + last_id) DIV 2 AND last_id AND highest % 8 = 0
            AND last_id - free_id >= LEAST(200, 10000 DIV max_events) AND has_undealt(owner_id) THEN
            CALL turn_queue(owner_id, max_events, turned);
        END IF;
    ELSE
        WHILE claimed = '' AND tries < 50 AND has_undealt(owner_id) DO
            CALL turn_queue(owner_id, max_events, turned);
            -- An InnoDB lock is held to the end of the transaction: a wait by a lock would keep the next dealer away.
            IF NOT turned THEN
                DO SLEEP(0.002);
            END IF;
            SELECT t.free_id INTO free_id FROM queue_turns AS t WHERE t.subscription_id = owner_id;
            CALL claim_ranges(owner_id, free_id, max_events, own_token, ends, claimed, highest);
            SET tries = IF(turned, 50, tries + 1);
        END WHILE;
    END IF;
END;

-- name: claim_ranges
-- Claims free ranges with together at most max_events events, the first ones that nobody else is just claiming. The
-- last one is cut when it is too long. A suspect, which was handed out twice and never finished, is claimed only alone.
CREATE PROCEDURE claim_ranges(
    owner_id BIGINT, free_id BIGINT, max_events INT, own_token BINARY(16), ends DATETIME(6), OUT claimed LONGTEXT,
    OUT highest BIGINT
)
BEGIN
    DECLARE missing INT DEFAULT max_events;
    DECLARE found, events, part_id, first BIGINT;
    DECLARE given INT;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET found = NULL;
    SET claimed = '', highest = free_id - 1;
    claim: WHILE missing > 0 DO
        SELECT r.id, r.last_sequence - r.first_sequence + 1, r.deliveries, r.partition_id, r.first_sequence
        INTO found, events, given, part_id, first
        FROM queue_ranges AS r FORCE INDEX (PRIMARY)
        WHERE r.subscription_id = owner_id AND r.id > highest AND r.token IS NULL
        ORDER BY r.id
        LIMIT 1
        FOR UPDATE SKIP LOCKED;
        IF found IS NULL OR (given >= 2 AND claimed <> '') THEN
            LEAVE claim;
        END IF;
        SET highest = found;
        IF events <= missing THEN
            UPDATE queue_ranges AS r
            SET r.token = own_token, r.deadline = ends, r.deliveries = r.deliveries + 1, r.former = NULL,
                r.former_token = NULL
            WHERE r.subscription_id = owner_id AND r.id = found;
        ELSE
            UPDATE queue_ranges AS r SET r.first_sequence = r.first_sequence + missing
            WHERE r.subscription_id = owner_id AND r.id = found;
            INSERT INTO queue_ranges (
                subscription_id, partition_id, first_sequence, last_sequence, deliveries, token, deadline)
            VALUES (owner_id, part_id, first, first + missing - 1, given + 1, own_token, ends);
            SET found = LAST_INSERT_ID();
        END IF;
        SET claimed = CONCAT_WS(',', NULLIF(claimed, ''), found), missing = IF(given >= 2, 0, missing - events);
    END WHILE;
END;

-- name: read_several
-- The events of several claims, and of those whose events came back out of the window.
CREATE PROCEDURE read_several(owner_id BIGINT, claimed LONGTEXT, present INT)
READS SQL DATA
BEGIN
    SELECT STRAIGHT_JOIN r.id AS claim, r.token, r.deadline, r.deliveries, 0 AS failures, t.address AS topic,
           s.partition_id & 65535 AS `partition`, s.sequence,
           LOWER(INSERT(INSERT(INSERT(INSERT(HEX(e.event_id), 21, 0, '-'), 17, 0, '-'), 13, 0, '-'), 9, 0, '-'))
               AS event_id,
           e.`key`, e.type, e.content_type, e.headers, e.payload, e.created_at, s.sequenced_at, present AS history
    FROM (
        SELECT STRAIGHT_JOIN n.id AS claim, n.partition_id, n.sequence,
               CAST(CONV(HEX(SUBSTR(c.event_ids, 8 * (n.sequence - c.first_sequence) + 1, 8)), 16, 10) AS SIGNED) AS id,
               IF(c.sequenced_ats IS NULL, c.sequenced_at, TIMESTAMP'1970-01-01 00:00:00' + INTERVAL CAST(CONV(HEX(
                   SUBSTR(c.sequenced_ats, 8 * (n.sequence - c.first_sequence) + 1, 8)), 16, 10) AS SIGNED) MICROSECOND
               ) AS sequenced_at
        FROM (
            SELECT STRAIGHT_JOIN r.id, r.partition_id, r.first_sequence + l.n AS sequence, (
                       SELECT f.first_sequence FROM chunks AS f
                       WHERE f.partition_id = r.partition_id AND f.first_sequence <= r.first_sequence + l.n
                       ORDER BY f.partition_id DESC, f.first_sequence DESC
                       LIMIT 1) AS chunk
            FROM JSON_TABLE(CONCAT('[', claimed, ']'), '$[*]' COLUMNS (id BIGINT PATH '$')) AS g
            JOIN queue_ranges AS r FORCE INDEX (PRIMARY) ON r.subscription_id = owner_id AND r.id = g.id
            JOIN places AS l
                ON l.size = 1 << CAST(CEIL(LOG2(r.last_sequence - r.first_sequence + 1)) AS UNSIGNED)
                AND l.n <= r.last_sequence - r.first_sequence
            WHERE r.waiting_id IS NULL
            LIMIT 1000000
        ) AS n
        JOIN chunks AS c ON c.partition_id = n.partition_id AND c.first_sequence = n.chunk
        WHERE n.sequence < c.first_sequence + c.event_count
        LIMIT 1000000
    ) AS s
    JOIN events AS e FORCE INDEX (PRIMARY) ON e.id = s.id
    JOIN queue_ranges AS r FORCE INDEX (PRIMARY) ON r.subscription_id = owner_id AND r.id = s.claim
    JOIN topics AS t ON t.id = s.partition_id >> 16
    UNION ALL
    SELECT STRAIGHT_JOIN r.id, r.token, r.deadline, r.deliveries + w.deliveries_before, w.failures, t.address,
           w.partition_id & 65535, w.sequence,
           LOWER(INSERT(INSERT(INSERT(INSERT(HEX(w.event_id), 21, 0, '-'), 17, 0, '-'), 13, 0, '-'), 9, 0, '-')),
           w.`key`, w.type, w.content_type, w.headers, COALESCE(w.body, w.payload), w.created_at, w.sequenced_at,
           w.history
    FROM JSON_TABLE(CONCAT('[', claimed, ']'), '$[*]' COLUMNS (id BIGINT PATH '$')) AS g
    JOIN queue_ranges AS r FORCE INDEX (PRIMARY) ON r.subscription_id = owner_id AND r.id = g.id
    JOIN queue_waiting AS w FORCE INDEX (PRIMARY) ON w.id = r.waiting_id
    JOIN topics AS t ON t.id = w.partition_id >> 16
    ORDER BY claim, sequence;
END;

-- name: store_letters
-- Copies events of a partition (a JSON array of sequences) to the dead letters of a subscription; a copy that exists
-- already is kept. An event that is parked waits for the operator together with its key: if the key was redriven, so
-- is the event. What was erased since the caller has read it takes no reason, which may quote it. The caller holds the
-- lease. Raises PS016, PS040.
CREATE PROCEDURE store_letters(
    owner_id BIGINT, part_id BIGINT, sequences JSON, why TEXT, tried INT, is_parked BOOLEAN, behind BOOLEAN
)
BEGIN
    DECLARE lowest, highest, letter BIGINT;
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
        redriven_at = VALUES(redriven_at), forwarded_to = NULL, forwarded_as = NULL, not_forwarded = NULL;
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
    -- What only waits behind its key has not died. Then it is one event.
    IF NOT behind THEN
        SELECT MAX(d.id) INTO letter
        FROM dead_letters AS d
        WHERE d.subscription_id = owner_id AND d.partition_id = part_id AND d.history = present AND d.sequence = lowest;
        CALL forward_letters(owner_id, JSON_ARRAY(letter));
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
            d.died_at = now, d.forwarded_to = NULL, d.forwarded_as = NULL, d.not_forwarded = NULL,
            d.parked = d.parked OR (is_parked AND d.`key` IS NOT NULL),
            d.redriven_at = IF(behind AND waiting.`key` IS NULL, now, NULL)
        WHERE d.subscription_id = owner_id AND d.partition_id = part_id AND d.history = present
          AND NOT is_rehydrated(part_id, d.sequence);
    END IF;
END;

-- name: redrive_queue
-- What redrive does for a queue: dead letters (a JSON array of ids), which lock_letters has locked, become events again
-- that wait outside the window, with new deliveries and failures, in the order of history and sequence. Where keys have
-- an order, they wait for their key instead: the dealer brings each when no other event of its key is out, the lowest
-- sequence first. With keep_deliveries those of before are reported too; they count for no limit. changed is how many.
CREATE PROCEDURE redrive_queue(owner_id BIGINT, letter_ids JSON, keep_deliveries BOOLEAN, OUT changed BIGINT)
BEGIN
    DECLARE present DATETIME(6) DEFAULT UTC_TIMESTAMP(6);
    DECLARE letter BIGINT;
    DECLARE inserted INT;
    DECLARE done, ordered BOOLEAN DEFAULT FALSE;
    DECLARE letters CURSOR FOR
        SELECT d.id
        FROM JSON_TABLE(letter_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS g
        STRAIGHT_JOIN dead_letters AS d FORCE INDEX (dead_letters_id) ON d.id = g.id
        ORDER BY d.partition_id, d.history, d.sequence;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    SET changed = 0;
    SET ordered = keeps_order(owner_id);
    OPEN letters;
    each_letter: LOOP
        FETCH letters INTO letter;
        IF done THEN
            LEAVE each_letter;
        END IF;
        INSERT INTO queue_waiting (
            subscription_id, partition_id, sequence, history, due_at, deliveries, deliveries_before, failures, reason,
            event_id, `key`, type, content_type, headers, payload, created_at, sequenced_at)
        SELECT d.subscription_id, d.partition_id, d.sequence, d.history,
               IF(ordered AND d.`key` IS NOT NULL, NULL, present + INTERVAL changed MICROSECOND), 0,
               IF(keep_deliveries, d.attempts, 0), 0,
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

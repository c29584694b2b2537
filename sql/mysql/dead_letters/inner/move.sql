-- name: publish_copy
-- Publishes a received event, which was copied out of the log (waiting), to another topic, under a new id and with its
-- headers. Its letter is marked with where its copy is now. Raises PS004, PS005, PS006, PS022.
CREATE PROCEDURE publish_copy(waiting BIGINT, old_id BINARY(16), target_id BIGINT)
BEGIN
    DECLARE new_id BINARY(16);
    DECLARE topic_partitions, max_bytes INT;
    DECLARE topic_strategy, event_type, event_content_type VARCHAR(255);
    DECLARE event_key, headers LONGTEXT;
    DECLARE payload_bytes, turn BIGINT;
    DECLARE is_limited BOOLEAN;
    DECLARE problem VARCHAR(300);
    DECLARE blocks LONGBLOB;
    SELECT t.partitions, t.max_payload_bytes, t.strategy,
           COALESCE(t.max_unsequenced_events, t.max_unsequenced_bytes) IS NOT NULL
    INTO topic_partitions, max_bytes, topic_strategy, is_limited
    FROM topics AS t WHERE t.id = target_id;
    SELECT w.`key`, w.type, w.content_type, w.headers, LENGTH(COALESCE(w.body, w.payload))
    INTO event_key, event_type, event_content_type, headers, payload_bytes
    FROM queue_waiting AS w WHERE w.id = waiting;
    CALL event_problem(topic_partitions, max_bytes, topic_strategy, payload_bytes, event_key, event_type,
                       event_content_type, headers, NULL, NULL, NULL, 0, NULL, problem);
    IF problem IS NOT NULL THEN
        CALL refuse(LEFT(problem, 5), CONCAT('an event that is to be moved: ', SUBSTR(problem, 7)));
    ELSEIF is_limited THEN
        CALL refuse_under_pressure(JSON_ARRAY(target_id));
    END IF;
    IF event_key IS NULL OR topic_strategy = 'round_robin' THEN
        CALL take_turn(1, turn);
    END IF;
    CALL new_event_id(new_id);
    CALL take_blocks(1, blocks);
    INSERT INTO events (id, partition_id, event_id, `key`, type, content_type, headers, payload, created_at)
    SELECT CAST(CONV(HEX(blocks), 16, 10) AS SIGNED) * 256, target_id * 65536 + COALESCE(
               MOD(GREATEST(turn, 0), topic_partitions), MOD(CRC32(event_key), topic_partitions)),
           new_id, w.`key`, w.type, w.content_type, w.headers, COALESCE(w.body, w.payload), UTC_TIMESTAMP(6)
    FROM queue_waiting AS w WHERE w.id = waiting;
    INSERT INTO letter_copies (
        copy_id, topic_id, subscription_id, letter_id, partition_id, sequence, history, event_id, `key`, ended_at)
    SELECT new_id, target_id, c.subscription_id, c.letter_id, c.partition_id, c.sequence, c.history, c.event_id,
           c.`key`, c.ended_at
    FROM letter_copies AS c WHERE c.copy_id = old_id;
    UPDATE letter_copies AS c
    STRAIGHT_JOIN dead_letters AS d FORCE INDEX (dead_letters_id)
        ON d.id = c.letter_id AND d.subscription_id = c.subscription_id
    SET d.forwarded_to = target_id, d.forwarded_as = new_id
    WHERE c.copy_id = new_id AND d.forwarded_as = old_id;
END;

-- name: return_copy
-- Redrives the letter of a copy. One that was redriven since it was forwarded is left alone. Adds one to gone for a
-- copy whose letter is not there any more, or of a subscription that the login may not consume.
CREATE PROCEDURE return_copy(copy_id BINARY(16), keep_deliveries BOOLEAN, INOUT gone BIGINT)
BEGIN
    DECLARE owner_id, letter, locked, changed BIGINT;
    DECLARE is_hidden BOOLEAN DEFAULT TRUE;
    DECLARE ended INT DEFAULT 0;
    SELECT MAX(c.subscription_id), MAX(c.letter_id) INTO owner_id, letter
    FROM letter_copies AS c JOIN subscriptions AS s ON s.id = c.subscription_id
    WHERE c.copy_id = copy_id;
    SET is_hidden = owner_id IS NULL OR reads_hidden(owner_id);
    IF NOT is_hidden THEN
        -- Locked first: a redrive of the same letter may be under way, and the next query then sees what it did.
        SELECT MAX(d.id) INTO locked
        FROM dead_letters AS d FORCE INDEX (dead_letters_id)
        WHERE d.id = letter AND d.subscription_id = owner_id AND d.forwarded_as = copy_id
        FOR UPDATE;
        SELECT COUNT(c.ended_at) INTO ended FROM letter_copies AS c WHERE c.copy_id = copy_id;
    END IF;
    IF locked IS NOT NULL THEN
        CALL redrive_letters(owner_id, JSON_ARRAY(letter), keep_deliveries, changed);
    ELSEIF ended = 0 THEN
        SET gone = gone + 1;
    END IF;
END;

-- name: end_copies_of
-- Says of the copies of a letter that it does not wait for them any more.
CREATE PROCEDURE end_copies_of(letter BIGINT)
BEGIN
    DECLARE waiting INT DEFAULT 0;
    SELECT COUNT(*) INTO waiting FROM letter_copies AS c WHERE c.letter_id = letter AND c.ended_at IS NULL;
    IF waiting > 0 THEN
        UPDATE letter_copies AS c FORCE INDEX (letter_copies_letter) SET c.ended_at = UTC_TIMESTAMP(6)
        WHERE c.letter_id = letter AND c.ended_at IS NULL;
    END IF;
END;

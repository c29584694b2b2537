-- name: letters_hidden
-- Whether the letters of a subscription are hidden from the login or from whoever has asked for a move, as principal()
-- names it (NULL: nobody else has). A move is carried out by a login that sees everything. One that reads nothing any
-- more is hidden from every account here.
CREATE FUNCTION letters_hidden(of_subscription BIGINT, asked_by VARCHAR(400)) RETURNS BOOLEAN
READS SQL DATA
BEGIN
    DECLARE hidden BOOLEAN;
    IF reads_hidden(of_subscription) THEN
        RETURN TRUE;
    ELSEIF asked_by IS NULL THEN
        RETURN FALSE;
    END IF;
    SELECT MAX(NOT principal_may(asked_by, r.topic_id, 'consume')) INTO hidden
    FROM subscription_topics AS r WHERE r.subscription_id = of_subscription;
    RETURN COALESCE(hidden, LEFT(asked_by, 8) = 'account:');
END;

-- name: lock_letters_of
-- Locks the letters of received copies (pieces) as a redrive does, the subscriptions in the order of their ids. So a
-- move waits for a redrive or a drop that is under way, and then sees what it did. Letters that the login may not know
-- of are locked only for a move that publishes their copies elsewhere (with_hidden), and so marks them: a way back is
-- refused for them, and waits for nobody.
CREATE PROCEDURE lock_letters_of(pieces LONGTEXT, with_hidden BOOLEAN, asked_by VARCHAR(400))
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE letter_ids, locked LONGTEXT;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE limit_before BIGINT UNSIGNED DEFAULT @@SESSION.group_concat_max_len;
    DECLARE homes CURSOR FOR
        SELECT STRAIGHT_JOIN c.subscription_id, CONCAT('[', GROUP_CONCAT(c.letter_id), ']')
        FROM JSON_TABLE(COALESCE(pieces, '[]'), '$[*]' COLUMNS (waiting_id BIGINT PATH '$[7]')) AS p
        JOIN queue_waiting AS w FORCE INDEX (PRIMARY) ON w.id = p.waiting_id
        JOIN letter_copies AS c FORCE INDEX (PRIMARY) ON c.copy_id = w.event_id
        WHERE with_hidden OR NOT letters_hidden(c.subscription_id, asked_by)
        GROUP BY c.subscription_id
        ORDER BY c.subscription_id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    {{on error: SET SESSION group_concat_max_len = limit_before}}
    SET SESSION group_concat_max_len = 4294967295;
    OPEN homes;
    SET SESSION group_concat_max_len = limit_before;
    each_home: LOOP
        FETCH homes INTO owner_id, letter_ids;
        IF done THEN
            LEAVE each_home;
        END IF;
        CALL lock_letters(owner_id, letter_ids, locked);
    END LOOP;
    CLOSE homes;
END;

-- name: publish_copy
-- Publishes a received event, which was copied out of the log (waiting), to another topic, under a new id and with its
-- headers. Its letter is marked with where its copy is now. Raises PS004, PS005, PS006, PS022.
CREATE PROCEDURE publish_copy(waiting BIGINT, old_id BINARY(16), target_id BIGINT)
BEGIN
    DECLARE new_id BINARY(16);
    DECLARE topic_partitions, max_bytes INT;
    DECLARE topic_strategy, event_type, event_content_type VARCHAR(255);
    DECLARE event_key, headers LONGTEXT;
    DECLARE payload_bytes, turn, place, row_id BIGINT;
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
    SET row_id = CAST(CONV(HEX(blocks), 16, 10) AS SIGNED) * 256,
        place = target_id * 65536
            + COALESCE(MOD(GREATEST(turn, 0), topic_partitions), MOD(CRC32(event_key), topic_partitions));
    INSERT INTO events (id, partition_id, event_id, `key`, type, content_type, headers, payload, created_at)
    SELECT row_id, place, new_id, w.`key`, w.type, w.content_type, w.headers, COALESCE(w.body, w.payload),
           UTC_TIMESTAMP(6)
    FROM queue_waiting AS w WHERE w.id = waiting;
    IF acts_within_quota() THEN
        CALL charge_account(1, payload_bytes);
    END IF;
    INSERT INTO letter_copies (
        copy_id, topic_id, subscription_id, letter_id, partition_id, sequence, history, event_id, `key`,
        copy_partition_id, row_id)
    SELECT new_id, target_id, c.subscription_id, c.letter_id, c.partition_id, c.sequence, c.history, c.event_id,
           c.`key`, place, row_id
    FROM letter_copies AS c WHERE c.copy_id = old_id;
    UPDATE letter_copies AS c
    STRAIGHT_JOIN dead_letters AS d FORCE INDEX (dead_letters_id)
        ON d.id = c.letter_id AND d.subscription_id = c.subscription_id
    SET d.forwarded_to = target_id, d.forwarded_as = new_id
    WHERE c.copy_id = new_id AND d.forwarded_as = old_id;
END;

-- name: return_copy
-- Redrives the letter of a copy, which lock_letters_of has locked. A copy to which its letter does not point any more
-- is left alone: the letter was redriven, and may have a newer copy. Adds one to gone for a copy whose letter was
-- dropped or went with its topic, or of a subscription that is hidden (see letters_hidden).
CREATE PROCEDURE return_copy(
    copy_id BINARY(16), keep_deliveries BOOLEAN, asked_by VARCHAR(400), INOUT gone BIGINT
)
BEGIN
    DECLARE owner_id, letter, pointing, changed BIGINT;
    DECLARE is_dropped BOOLEAN DEFAULT TRUE;
    SELECT MAX(c.subscription_id), MAX(c.letter_id) INTO owner_id, letter
    FROM letter_copies AS c
    JOIN subscriptions AS s ON s.id = c.subscription_id
    JOIN topics AS t ON t.id = c.partition_id >> 16
    WHERE c.copy_id = copy_id;
    IF owner_id IS NOT NULL AND NOT letters_hidden(owner_id, asked_by) THEN
        SELECT COUNT(x.id) INTO is_dropped
        FROM dropped_letters AS x WHERE x.subscription_id = owner_id AND x.id = letter;
    END IF;
    IF is_dropped THEN
        SET gone = gone + 1;
    ELSE
        SELECT MAX(d.id) INTO pointing
        FROM dead_letters AS d FORCE INDEX (dead_letters_id)
        WHERE d.id = letter AND d.subscription_id = owner_id AND d.forwarded_as = copy_id;
        IF pointing IS NOT NULL THEN
            CALL redrive_letters(owner_id, JSON_ARRAY(letter), keep_deliveries, changed);
        END IF;
    END IF;
END;

-- name: copy_is_there
-- Whether an erasure would find something of a copy: its row in the log, which may be kept apart, a copy of its
-- partition in the archive or brought back from there, or what a reader of its topic keeps.
CREATE FUNCTION copy_is_there(target_id BIGINT, part_id BIGINT, row_id BIGINT, copy_id BINARY(16)) RETURNS BOOLEAN
READS SQL DATA
BEGIN
    DECLARE is_there BOOLEAN;
    SELECT EXISTS (SELECT n.id FROM events AS n WHERE n.id = row_id)
        OR EXISTS (SELECT c.log_epoch FROM epoch_copies AS c WHERE c.partition_id = part_id)
        OR EXISTS (SELECT r.log_epoch FROM rehydrated_epochs AS r WHERE r.partition_id = part_id)
        OR EXISTS (
            SELECT d.id FROM subscription_topics AS s
            JOIN dead_letters AS d FORCE INDEX (PRIMARY)
                ON d.subscription_id = s.subscription_id AND d.partition_id = part_id
            WHERE s.topic_id = target_id AND d.event_id = copy_id)
        OR EXISTS (
            SELECT w.id FROM subscription_topics AS s
            JOIN queue_waiting AS w FORCE INDEX (queue_waiting_place)
                ON w.subscription_id = s.subscription_id AND w.partition_id = part_id
            WHERE s.topic_id = target_id AND w.event_id = copy_id)
    INTO is_there;
    RETURN is_there;
END;

-- name: set_dead_letters_to
-- From now on each event that a subscription gives up is also published to this topic, in the transaction that buries
-- it; NULL ends that. The login needs the right to consume what the subscription reads and to publish to the topic. It
-- is kept by the topic's id, and the login's right is asked again at each burial. Refused when dead letters would come
-- back (PS006). origin says who sets it: 'hand', or 'file ' and the name of the policy file. Returns whether anything
-- changed. Raises PS002, PS006, PS013, PS018, PS030 to PS034.
CREATE PROCEDURE set_dead_letters_to(subscription LONGTEXT, topic LONGTEXT, origin LONGTEXT)
BEGIN
    DECLARE owner_id, target_id BIGINT;
    DECLARE topic_partitions INT;
    DECLARE topic_strategy VARCHAR(255);
    DECLARE caller VARCHAR(400) DEFAULT IF(topic IS NULL, NULL, principal());
    DECLARE set_from VARCHAR(505) DEFAULT IF(topic IS NULL, NULL, LEFT(origin, 505));
    DECLARE same INT DEFAULT 0;
    {{on error: CALL undo_call()}}
    CALL begin_call('set_dead_letters_to()');
    CALL require_origin(origin);
    CALL require_read_committed('set_dead_letters_to()');
    CALL require_subscription(subscription, owner_id);
    IF topic IS NOT NULL THEN
        CALL require_address(topic);
        CALL require_publisher(topic);
        -- Two that name topics at once could make a circle that neither sees.
        CALL lock_names('set_dead_letters_to()', TRUE);
        CALL lock_topic(topic, 'publish', target_id, topic_partitions);
        SELECT t.strategy INTO topic_strategy FROM topics AS t WHERE t.id = target_id;
        IF topic_strategy NOT IN ('crc32', 'round_robin') THEN
            CALL refuse('PS006', CONCAT('the strategy of topic "', LEFT(topic, 40), '" is ', LEFT(topic_strategy, 30),
                                        ': a dead letter names no partition'));
        END IF;
    END IF;
    CALL lock_subscription(subscription, owner_id);
    SELECT COUNT(s.id) INTO same
    FROM subscriptions AS s
    WHERE s.id = owner_id AND s.dead_letters_to <=> target_id AND s.dead_letters_by <=> caller
      AND s.dead_letters_origin <=> set_from;
    IF same = 0 THEN
        UPDATE subscriptions AS s
        SET s.dead_letters_to = target_id, s.dead_letters_by = caller, s.dead_letters_origin = set_from,
            s.dead_letters_at = IF(target_id IS NULL, NULL, UTC_TIMESTAMP(6))
        WHERE s.id = owner_id;
        CALL refuse_circle(owner_id);
    END IF;
    SELECT same = 0 AS changed;
    CALL end_call();
END;

-- name: move_letters
-- Takes received copies of dead letters out of the topic that they were forwarded to: acknowledges them, in the
-- caller's transaction. Without a topic (NULL), or with that of the event's origin, each letter goes back to the one
-- subscription that has buried it, as redrive does: nothing is published. With another topic each copy is published
-- there. The receipts are those of acknowledge, and one that is not good refuses the whole call; so does an event
-- that is no copy of a letter, or whose letter was dropped (PS041). A letter that was redriven meanwhile only loses
-- its copy. With keep_deliveries a queue goes on counting deliveries. asked_by: whoever has asked the caller for it, as
-- principal() names it; a letter that is hidden from either does not go back. Returns how many were moved. Raises
-- PS002, PS004, PS006, PS013, PS018, PS022, PS041 to PS044.
CREATE PROCEDURE move_letters(
    subscription LONGTEXT, claims JSON, first_sequences JSON, last_sequences JSON, tokens JSON, topic LONGTEXT,
    keep_deliveries BOOLEAN, asked_by VARCHAR(400)
)
BEGIN
    DECLARE owner_id, target_id, waiting BIGINT;
    DECLARE pieces, settled LONGTEXT;
    DECLARE copy_id BINARY(16);
    DECLARE moved, gone BIGINT DEFAULT 0;
    DECLARE is_home, done BOOLEAN DEFAULT FALSE;
    DECLARE id_before BIGINT DEFAULT LAST_INSERT_ID();
    DECLARE copies CURSOR FOR
        SELECT STRAIGHT_JOIN w.id, w.event_id, target_id IS NULL OR COALESCE(c.partition_id >> 16 = target_id, FALSE)
        FROM JSON_TABLE(COALESCE(pieces, '[]'), '$[*]' COLUMNS (waiting_id BIGINT PATH '$[7]')) AS p
        JOIN queue_waiting AS w FORCE INDEX (PRIMARY) ON w.id = p.waiting_id
        LEFT JOIN letter_copies AS c FORCE INDEX (PRIMARY) ON c.copy_id = w.event_id
        ORDER BY w.partition_id, w.sequence;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    {{on error: CALL undo_call(); DO LAST_INSERT_ID(id_before)}}
    CALL begin_call('move_letters()');
    CALL require_read_committed('move_letters()');
    CALL require_queue(subscription, 'acknowledge', owner_id);
    IF topic IS NOT NULL THEN
        CALL require_publisher(topic);
        CALL require_topic_for(topic, 'publish', target_id);
    END IF;
    CALL take_out(owner_id, claims, first_sequences, last_sequences, tokens, FALSE, pieces, settled);
    IF keeps_order(owner_id) THEN
        CALL finish_keys(owner_id, pieces);
    END IF;
    CALL copy_out(owner_id, pieces);
    CALL lock_letters_of(pieces, topic IS NOT NULL, asked_by);
    SET done = FALSE;
    OPEN copies;
    each_copy: LOOP
        FETCH copies INTO waiting, copy_id, is_home;
        IF done THEN
            LEAVE each_copy;
        END IF;
        IF is_home THEN
            CALL return_copy(copy_id, COALESCE(keep_deliveries, FALSE), asked_by, gone);
        ELSE
            CALL publish_copy(waiting, copy_id, target_id);
        END IF;
        SET moved = moved + 1, done = FALSE;
    END LOOP;
    CLOSE copies;
    IF gone > 0 THEN
        CALL refuse('PS041', CONCAT('of ', moved, ' events, ', gone,
                                    ' are no copies of dead letters that are still there'));
    END IF;
    CALL drop_copies(pieces);
    SELECT moved AS moved;
    DO LAST_INSERT_ID(id_before);
    CALL end_call();
END;

-- name: copies_of_erasure
-- The copies of dead letters of an erasure's event, or key, that are still to be erased, at most max_rows (1 to
-- 10,000): topic and id of each. waits: it has no sequence yet. The topic is NULL where the login may not operate it.
-- Raises PS006.
CREATE PROCEDURE copies_of_erasure(erasure CHAR(36), `key` LONGTEXT, max_rows INT)
READS SQL DATA
BEGIN
    DECLARE source_id BIGINT;
    DECLARE same, may_operate, replaces BOOLEAN DEFAULT FALSE;
    CALL refuse_serializable('copies_of_erasure()');
    SELECT MAX(e.topic_id), MAX(e.digest <=> erasure_digest(erasure, `key`)), MAX(e.replace_key)
    INTO source_id, same, replaces
    FROM erasures AS e WHERE e.erasure = erasure;
    SET may_operate = source_id IS NOT NULL AND sees_topic(source_id, 'operate');
    IF NOT COALESCE(same AND may_operate, FALSE) THEN
        CALL refuse('PS006', 'there is no such erasure of this event or key: begin_erasure opens one');
    ELSEIF NOT COALESCE(max_rows BETWEEN 1 AND 10000, FALSE) THEN
        CALL refuse('PS006', CONCAT(COALESCE(max_rows, 'NULL'), ' copies at once: use 1 to 10,000'));
    END IF;
    SELECT IF(sees_topic(t.id, 'operate'), t.address, NULL) AS topic,
           LOWER(INSERT(INSERT(INSERT(INSERT(HEX(c.copy_id), 21, 0, '-'), 17, 0, '-'), 13, 0, '-'), 9, 0, '-'))
               AS event_id,
           c.copy_id IN (
               SELECT n.event_id
               FROM pending AS p JOIN events AS n ON n.id >= p.block * 256 AND n.id < p.block * 256 + 256
               WHERE p.event_count > 0) AS waits
    FROM (
        SELECT a.copy_id
        FROM erasures AS e JOIN letter_copies AS a FORCE INDEX (letter_copies_event) ON a.event_id = e.event_id
        WHERE e.erasure = erasure
        UNION ALL
        SELECT b.copy_id
        FROM letter_copies AS b FORCE INDEX (letter_copies_key)
        WHERE b.`key` = `key` AND CAST(b.`key` AS BINARY) = CAST(`key` AS BINARY)
    ) AS g
    STRAIGHT_JOIN letter_copies AS c FORCE INDEX (PRIMARY) ON c.copy_id = g.copy_id
    JOIN topics AS t ON t.id = c.topic_id
    WHERE c.partition_id >> 16 = source_id
      AND NOT EXISTS (
          SELECT z.erasure FROM erasures AS z
          WHERE z.topic_id = c.topic_id AND z.event_id = c.copy_id AND z.finished_at IS NOT NULL
            AND z.replace_key >= replaces)
    ORDER BY c.partition_id, c.sequence, c.copy_id
    LIMIT max_rows;
END;

-- name: forget_letter_copies
-- Deletes the rows by which an erasure finds copies of dead letters, once the copy is gone: from the log, from the
-- archive, and from what the readers of its topic keep. Of the rows that are due it looks at the max_rows oldest (1 to
-- 10,000). A copy that is still there is looked at again at twice its age, or after a week. Returns how many rows it
-- deleted. Raises PS006, PS018.
CREATE PROCEDURE forget_letter_copies(max_rows INT)
BEGIN
    DECLARE copy_id BINARY(16);
    DECLARE is_there BOOLEAN;
    DECLARE gone INT DEFAULT 0;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE present DATETIME(6) DEFAULT UTC_TIMESTAMP(6);
    DECLARE due CURSOR FOR
        SELECT c.copy_id, copy_is_there(c.topic_id, c.copy_partition_id, c.row_id, c.copy_id)
        FROM letter_copies AS c FORCE INDEX (letter_copies_look)
        WHERE c.look_at <= present
        ORDER BY c.look_at
        LIMIT max_rows;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    {{on error: CALL undo_call()}}
    CALL begin_call('forget_letter_copies()');
    CALL require_read_committed('forget_letter_copies()');
    IF NOT COALESCE(max_rows BETWEEN 1 AND 10000, FALSE) THEN
        CALL refuse('PS006', CONCAT('a look at ', COALESCE(max_rows, 'NULL'), ' copies: use 1 to 10,000'));
    END IF;
    SET done = FALSE;
    OPEN due;
    each_copy: LOOP
        FETCH due INTO copy_id, is_there;
        IF done THEN
            LEAVE each_copy;
        ELSEIF is_there THEN
            UPDATE letter_copies AS c FORCE INDEX (PRIMARY)
            SET c.look_at = LEAST(present + INTERVAL TIMESTAMPDIFF(SECOND, c.forwarded_at, present) SECOND,
                                  present + INTERVAL 7 DAY)
            WHERE c.copy_id = copy_id;
        ELSE
            DELETE c FROM letter_copies AS c FORCE INDEX (PRIMARY) WHERE c.copy_id = copy_id;
            SET gone = gone + 1;
        END IF;
    END LOOP;
    CLOSE due;
    SELECT gone AS forgotten;
    CALL end_call();
END;

-- name: start_letter_move
-- Asks the sweep to move all that a queue has to where it comes from (NULL) or to another topic, at most so many events
-- a second (1 to 500, NULL: as fast as it can). The queue reads a topic that dead letters are forwarded to, and not the
-- one to which they are moved (PS006). expected is how many there are: the move ends after so many, so what comes back
-- while it runs is not moved again. One move of a queue runs at a time (PS007). Returns the move's id. The ten
-- newest of a queue are kept. Raises PS002, PS006, PS007, PS013, PS018, PS042.
CREATE PROCEDURE start_letter_move(subscription LONGTEXT, topic LONGTEXT, most_per_second INT, expected BIGINT)
BEGIN
    DECLARE owner_id, target_id, move_id, oldest BIGINT;
    DECLARE running, own INT;
    DECLARE id_before BIGINT DEFAULT LAST_INSERT_ID();
    {{on error: CALL undo_call(); DO LAST_INSERT_ID(id_before)}}
    CALL begin_call('start_letter_move()');
    CALL require_read_committed('start_letter_move()');
    CALL require_queue(subscription, 'acknowledge', owner_id);
    IF most_per_second NOT BETWEEN 1 AND 500 OR expected IS NULL OR expected < 0 THEN
        CALL refuse('PS006', 'this is no move of letters: at most 1 to 500 events a second, or NULL');
    END IF;
    IF topic IS NOT NULL THEN
        CALL require_publisher(topic);
        CALL require_topic_for(topic, 'publish', target_id);
        SELECT COUNT(r.topic_id) INTO own
        FROM subscription_topics AS r WHERE r.subscription_id = owner_id AND r.topic_id = target_id;
        IF own > 0 THEN
            CALL refuse('PS006', CONCAT('the queue reads topic "', LEFT(topic, 80), '" itself: name another one'));
        END IF;
    END IF;
    SET owner_id = (SELECT q.subscription_id FROM queues AS q WHERE q.subscription_id = owner_id FOR UPDATE);
    SELECT COUNT(m.id) INTO running FROM letter_moves AS m WHERE m.subscription_id = owner_id AND m.ended_at IS NULL;
    IF running > 0 THEN
        CALL refuse('PS007', CONCAT('a move of queue "', LEFT(subscription, 80), '" runs already'));
    END IF;
    SELECT MIN(k.id) INTO oldest
    FROM (SELECT m.id FROM letter_moves AS m WHERE m.subscription_id = owner_id ORDER BY m.id DESC LIMIT 9) AS k;
    DELETE m FROM letter_moves AS m WHERE m.subscription_id = owner_id AND m.id < oldest;
    INSERT INTO letter_moves (subscription_id, topic_id, most_per_second, expected, requested_by)
    VALUES (owner_id, target_id, most_per_second, expected, principal());
    SET move_id = LAST_INSERT_ID();
    SELECT move_id;
    DO LAST_INSERT_ID(id_before);
    CALL end_call();
END;

-- name: letter_moves_of
-- The moves of a queue, the newest first, ten at most. Raises PS013, PS042.
CREATE PROCEDURE letter_moves_of(subscription LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE owner_id BIGINT;
    CALL refuse_serializable('letter_moves_of()');
    CALL require_queue(subscription, 'consume', owner_id);
    SELECT m.id, t.address AS topic, m.most_per_second, m.expected, m.moved, m.started_at, m.ended_at, m.state,
           m.problem
    FROM letter_moves AS m LEFT JOIN topics AS t ON t.id = m.topic_id
    WHERE m.subscription_id = owner_id
    ORDER BY m.id DESC
    LIMIT 10;
END;

-- name: cancel_letter_move
-- Ends a move of a queue where it stands; what was moved stays moved. Returns how many that are, or NULL when no such
-- move runs. Raises PS013, PS018, PS042.
CREATE PROCEDURE cancel_letter_move(subscription LONGTEXT, move_id BIGINT)
BEGIN
    DECLARE owner_id, done BIGINT;
    {{on error: CALL undo_call()}}
    CALL begin_call('cancel_letter_move()');
    CALL require_read_committed('cancel_letter_move()');
    CALL require_queue(subscription, 'acknowledge', owner_id);
    SET done = (SELECT m.moved FROM letter_moves AS m
                WHERE m.id = move_id AND m.subscription_id = owner_id AND m.ended_at IS NULL FOR UPDATE);
    UPDATE letter_moves AS m SET m.ended_at = UTC_TIMESTAMP(6), m.state = 'cancelled'
    WHERE done IS NOT NULL AND m.id = move_id;
    SELECT done;
    CALL end_call();
END;

-- name: next_letter_move
-- The oldest move after an id that runs and that nobody works on, locked to the end of the transaction: no row when
-- there is none. room is how many events may be moved now, by its rate and the time since it began, and of those that
-- were there when it began; problem says why it can go on no more. asked_by: whoever has asked for it. Only a login
-- that sees all topics may ask. Raises PS018.
CREATE PROCEDURE next_letter_move(after_id BIGINT)
BEGIN
    DECLARE move_id, owner_id, target_id, done, left_over BIGINT;
    DECLARE most, taken INT;
    DECLARE asked_by VARCHAR(400);
    DECLARE began DATETIME(6);
    DECLARE name, address LONGTEXT;
    DECLARE problem VARCHAR(200);
    DECLARE may_see, may_publish BOOLEAN DEFAULT TRUE;
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    {{on error: CALL undo_call()}}
    CALL begin_call('next_letter_move()');
    CALL require_read_committed('next_letter_move()');
    SET may_see = sees_all();
    SELECT m.id, m.topic_id, m.moved, m.expected - m.moved, m.most_per_second, m.requested_by,
           m.started_at
    INTO move_id, target_id, done, left_over, most, asked_by, began
    FROM letter_moves AS m
    WHERE may_see AND m.ended_at IS NULL AND m.id > COALESCE(after_id, 0)
    ORDER BY m.id
    LIMIT 1
    FOR UPDATE SKIP LOCKED;
    SELECT s.id, s.name INTO owner_id, name
    FROM subscriptions AS s JOIN letter_moves AS m ON m.subscription_id = s.id WHERE m.id = move_id;
    SELECT COUNT(r.topic_id) INTO taken
    FROM subscription_topics AS r
    WHERE r.subscription_id = owner_id AND NOT principal_may(asked_by, r.topic_id, 'acknowledge');
    IF taken > 0 THEN
        SET problem = 'whoever has asked for it may no longer acknowledge what the queue has';
    END IF;
    IF target_id IS NOT NULL THEN
        SELECT MAX(t.address) INTO address FROM topics AS t WHERE t.id = target_id;
        SET may_publish = may_forward(asked_by, target_id);
        IF address IS NULL THEN
            SET problem = 'the topic was deleted';
        ELSEIF NOT may_publish THEN
            SET problem = 'whoever has asked for it may no longer publish to the topic';
        END IF;
    END IF;
    SELECT move_id AS id, name AS subscription, address AS topic, LEAST(left_over, IF(most IS NULL, 1000, LEAST(
               FLOOR(TIMESTAMPDIFF(MICROSECOND, began, UTC_TIMESTAMP(6)) / 1000000 * most) - done, most * 10))) AS room,
           problem, asked_by
    FROM (SELECT 1) AS one
    WHERE move_id IS NOT NULL;
    CALL end_call();
END;

-- name: note_letter_move
-- Records that so many events were moved. is_over and a problem end the move, and so does the last of those that were
-- there when it began. In the transaction that has moved them. Raises PS018.
CREATE PROCEDURE note_letter_move(move_id BIGINT, moved BIGINT, is_over BOOLEAN, problem LONGTEXT)
BEGIN
    DECLARE ends BOOLEAN DEFAULT is_over OR problem IS NOT NULL;
    DECLARE left_over BIGINT;
    {{on error: CALL undo_call()}}
    CALL begin_call('note_letter_move()');
    SELECT MAX(m.expected - m.moved) INTO left_over FROM letter_moves AS m WHERE m.id = move_id;
    SET ends = ends OR COALESCE(left_over <= moved, FALSE);
    UPDATE letter_moves AS m
    SET m.moved = m.moved + moved, m.problem = LEFT(problem, 1000),
        m.state = CASE WHEN problem IS NOT NULL THEN 'failed' WHEN ends THEN 'done' ELSE 'running' END,
        m.ended_at = IF(ends, UTC_TIMESTAMP(6), NULL)
    WHERE m.id = move_id AND m.ended_at IS NULL AND sees_all();
    CALL end_call();
END;

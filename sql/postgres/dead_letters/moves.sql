-- name: start_letter_move
-- Asks the sweep to move all that a queue has to where it comes from (NULL) or to another topic, at most so many events
-- a second (1 to 500, NULL: as fast as it can). The queue reads a topic that dead letters are forwarded to, and not the
-- one to which they are moved (PS006). expected is how many there are: the move ends after so many, so what comes back
-- while it runs is not moved again. One move of a queue runs at a time (PS007). Returns the move's id. The ten
-- newest of a queue are kept. Raises PS002, PS006, PS007, PS013, PS018, PS042.
CREATE OR REPLACE FUNCTION start_letter_move(
    subscription text, topic text, most_per_second integer, expected bigint
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    queue queues%ROWTYPE := require_queue(subscription, 'acknowledge');
    target bigint;
    move_id bigint;
BEGIN
    PERFORM commit_durably();
    PERFORM require_read_committed('start_letter_move()');
    IF most_per_second NOT BETWEEN 1 AND 500 OR expected IS NULL OR expected < 0 THEN
        PERFORM refuse('PS006', 'this is no move of letters', 'At most 1 to 500 events a second, or NULL.');
    END IF;
    IF topic IS NOT NULL THEN
        PERFORM require_publisher(topic);
        target := require_topic_for(topic, 'publish');
        IF EXISTS (SELECT FROM subscription_topics AS r
                   WHERE r.subscription_id = queue.subscription_id AND r.topic_id = target) THEN
            PERFORM refuse('PS006', format('queue "%s" reads topic "%s" itself', left(subscription, 200),
                                           left(topic, 200)),
                           'Name another topic, or NULL for the way back.');
        END IF;
    END IF;
    PERFORM FROM queues AS q WHERE q.subscription_id = queue.subscription_id FOR NO KEY UPDATE;
    IF EXISTS (SELECT FROM letter_moves AS m
               WHERE m.subscription_id = queue.subscription_id AND m.ended_at IS NULL) THEN
        PERFORM refuse('PS007', format('a move of queue "%s" runs already', left(subscription, 200)),
                       'Wait until it has ended, or cancel it.');
    END IF;
    DELETE FROM letter_moves AS m
    WHERE m.subscription_id = queue.subscription_id AND m.id <= (
        SELECT k.id FROM letter_moves AS k WHERE k.subscription_id = queue.subscription_id
        ORDER BY k.id DESC OFFSET 9 LIMIT 1);
    INSERT INTO letter_moves (subscription_id, topic_id, most_per_second, expected, requested_by)
    VALUES (queue.subscription_id, target, start_letter_move.most_per_second, start_letter_move.expected, principal())
    RETURNING id INTO move_id;
    RETURN move_id;
END
$$;

-- name: letter_moves_of
-- The moves of a queue, the newest first, ten at most. Raises PS013, PS042.
CREATE OR REPLACE FUNCTION letter_moves_of(subscription text)
RETURNS TABLE (
    id bigint, topic text, most_per_second integer, expected bigint, moved bigint, started_at timestamptz,
    ended_at timestamptz, state text, problem text
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    queue queues%ROWTYPE := require_queue(subscription, 'consume');
BEGIN
    RETURN QUERY
    SELECT m.id, t.address, m.most_per_second, m.expected, m.moved, m.started_at, m.ended_at, m.state, m.problem
    FROM letter_moves AS m LEFT JOIN topics AS t ON t.id = m.topic_id
    WHERE m.subscription_id = queue.subscription_id
    ORDER BY m.id DESC
    LIMIT 10;
END
$$;

-- name: cancel_letter_move
-- Ends a move of a queue where it stands; what was moved stays moved. Returns how many that are, or NULL when no such
-- move runs. Raises PS013, PS018, PS042.
CREATE OR REPLACE FUNCTION cancel_letter_move(subscription text, move_id bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    queue queues%ROWTYPE := require_queue(subscription, 'acknowledge');
    done bigint;
BEGIN
    PERFORM commit_durably();
    PERFORM require_read_committed('cancel_letter_move()');
    UPDATE letter_moves AS m SET ended_at = clock_timestamp(), state = 'cancelled'
    WHERE m.id = move_id AND m.subscription_id = queue.subscription_id AND m.ended_at IS NULL
    RETURNING m.moved INTO done;
    RETURN done;
END
$$;

-- name: next_letter_move
-- The oldest move after an id that runs and that nobody works on, locked to the end of the transaction: no row when
-- there is none. room is how many events may be moved now, by its rate and the time since it began, and of those that
-- were there when it began; problem says why it can go on no more. asked_by: whoever has asked for it. Only a login
-- that sees all topics may ask. Raises PS018.
CREATE OR REPLACE FUNCTION next_letter_move(after_id bigint)
RETURNS TABLE (id bigint, subscription text, topic text, room integer, problem text, asked_by text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM require_read_committed('next_letter_move()');
    RETURN QUERY
    SELECT m.id, s.name, t.address, letter_move_room(m), CASE
        WHEN m.topic_id IS NOT NULL AND t.id IS NULL THEN 'the topic was deleted'
        WHEN m.topic_id IS NOT NULL AND NOT may_forward(m.requested_by, t)
            THEN 'whoever has asked for it may no longer publish to the topic'
        WHEN EXISTS (
            SELECT FROM subscription_topics AS r JOIN topics AS o ON o.id = r.topic_id
            WHERE r.subscription_id = s.id AND NOT principal_may(m.requested_by, o, 'acknowledge'))
            THEN 'whoever has asked for it may no longer acknowledge what the queue has'
        END, m.requested_by
    FROM letter_moves AS m
    JOIN subscriptions AS s ON s.id = m.subscription_id
    LEFT JOIN topics AS t ON t.id = m.topic_id
    WHERE m.ended_at IS NULL AND m.id > COALESCE(after_id, 0) AND sees_all()
    ORDER BY m.id
    LIMIT 1
    FOR NO KEY UPDATE OF m SKIP LOCKED;
END
$$;

-- name: note_letter_move
-- Records that so many events were moved. is_over and a problem end the move, and so does the last of those that were
-- there when it began. In the transaction that has moved them. Raises PS018.
CREATE OR REPLACE FUNCTION note_letter_move(move_id bigint, moved bigint, is_over boolean, problem text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    ends boolean := is_over OR problem IS NOT NULL OR EXISTS (
        SELECT FROM letter_moves AS m WHERE m.id = move_id AND m.moved + note_letter_move.moved >= m.expected);
BEGIN
    PERFORM commit_durably();
    UPDATE letter_moves AS m
    SET moved = m.moved + note_letter_move.moved, problem = left(note_letter_move.problem, 1000),
        state = CASE WHEN note_letter_move.problem IS NOT NULL THEN 'failed' WHEN ends THEN 'done'
                     ELSE 'running' END,
        ended_at = CASE WHEN ends THEN clock_timestamp() END
    WHERE m.id = move_id AND m.ended_at IS NULL AND sees_all();
END
$$;

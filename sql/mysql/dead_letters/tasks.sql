-- name: request_letter_task
-- Asks that all dead letters of a subscription that match a filter are redriven or dropped; those that die later are
-- not. The sweep does it. The filter is a text of the programs, and the reason says who wants it and why. At most 100
-- tasks are open. Only a login that sees all topics may ask. Returns the task's id. Raises PS006, PS013, PS018, PS020.
CREATE PROCEDURE request_letter_task(subscription LONGTEXT, action LONGTEXT, filter LONGTEXT, reason LONGTEXT)
BEGIN
    DECLARE owner_id, above, task_id BIGINT;
    DECLARE present INT;
    DECLARE id_before BIGINT DEFAULT LAST_INSERT_ID();
    {{on error: CALL undo_call()}}
    CALL begin_call('request_letter_task()');
    CALL require_read_committed('request_letter_task()');
    CALL require_subscription(subscription, owner_id);
    SELECT COUNT(t.id) INTO present FROM letter_tasks AS t WHERE t.ended_at IS NULL;
    IF COALESCE(action NOT IN ('redrive', 'drop') OR CHAR_LENGTH(filter) > 10000 OR TRIM(reason) = ''
                OR CHAR_LENGTH(reason) > 1000, TRUE) THEN
        CALL refuse('PS006', 'this is no task for dead letters: it redrives or drops, with a filter and a reason');
    ELSEIF NOT sees_all() THEN
        CALL refuse('PS006', 'only a login that sees all topics asks for tasks');
    ELSEIF present >= 100 THEN
        CALL refuse('PS020', '100 tasks for dead letters are open');
    END IF;
    SELECT COALESCE(MAX(d.id), 0) + 1 INTO above FROM dead_letters AS d WHERE d.subscription_id = owner_id;
    INSERT INTO letter_tasks (subscription_id, action, filter, reason, requested_by, begun_below, next_below)
    VALUES (owner_id, action, filter, reason, principal(), above, above);
    SET task_id = LAST_INSERT_ID();
    SELECT task_id AS task_id;
    DO LAST_INSERT_ID(id_before);
    CALL end_call();
END;

-- name: note_letter_task
-- Records what was done for a task: below which id it goes on, and how many letters were looked at and changed since it
-- stood at stood_below (NULL: wherever it stands). It ends with is_over, problem says why before it was done. Returns
-- whether the task stood there and was open: if not, somebody else has done the same, so roll back. Raises PS018.
CREATE PROCEDURE note_letter_task(
    task_id BIGINT, stood_below BIGINT, next_below BIGINT, looked BIGINT, changed BIGINT, is_over BOOLEAN,
    problem LONGTEXT
)
BEGIN
    DECLARE was_there BOOLEAN;
    {{on error: CALL undo_call()}}
    CALL begin_call('note_letter_task()');
    UPDATE letter_tasks AS t
    SET t.looked = t.looked + looked, t.changed = t.changed + changed, t.problem = LEFT(problem, 1000),
        t.ended_at = IF(is_over, UTC_TIMESTAMP(6), NULL), t.next_below = COALESCE(next_below, t.next_below)
    WHERE t.id = task_id AND t.ended_at IS NULL AND t.next_below = COALESCE(stood_below, t.next_below) AND sees_all();
    SET was_there = ROW_COUNT() > 0;
    SELECT was_there AS was_there;
    CALL end_call();
END;

-- name: letter_tasks_of
-- The tasks for dead letters of one subscription, or of all (NULL), the newest first; with only_open those that are not
-- over, the oldest first. At most max_rows. Nothing for a login that does not see all topics.
CREATE PROCEDURE letter_tasks_of(subscription LONGTEXT, only_open BOOLEAN, max_rows INT)
READS SQL DATA
BEGIN
    DECLARE most INT DEFAULT LEAST(GREATEST(max_rows, 1), 1000);
    CALL refuse_serializable('letter_tasks_of()');
    SELECT t.id, s.name AS subscription, t.action, t.filter, t.reason, t.requested_by, t.requested_at, t.begun_below,
           t.next_below, t.looked, t.changed, t.ended_at, t.problem
    FROM letter_tasks AS t JOIN subscriptions AS s ON s.id = t.subscription_id
    WHERE sees_all() AND (subscription IS NULL OR s.name_hash = UNHEX(SHA2(subscription, 256)))
      AND (NOT only_open OR t.ended_at IS NULL)
    ORDER BY IF(only_open, t.id, -t.id)
    LIMIT most;
END;

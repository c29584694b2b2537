-- name: request_letter_task
-- Asks that all dead letters of a subscription that match a filter are redriven or dropped; those that die later are
-- not. The sweep does it. The filter is a text of the programs, and the reason says who wants it and why. At most 100
-- tasks are open. Only a login that sees all topics may ask. Returns the task's id. Raises PS006, PS013, PS018, PS020.
CREATE OR REPLACE FUNCTION request_letter_task(subscription text, action text, filter text, reason text)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner_id bigint := (require_subscription(subscription)).id;
    above bigint;
    task_id bigint;
BEGIN
    PERFORM commit_durably();
    PERFORM require_read_committed('request_letter_task()');
    IF action IS NULL OR action NOT IN ('redrive', 'drop') OR filter IS NULL OR char_length(filter) > 10000
            OR reason IS NULL OR btrim(reason) = '' OR char_length(reason) > 1000 THEN
        PERFORM refuse('PS006', 'this is no task for dead letters',
                       'It redrives or drops, and has a filter and a reason of 1 to 1,000 characters.');
    ELSIF NOT sees_all() THEN
        PERFORM refuse('PS006', 'only a login that sees all topics asks for tasks',
                       'Redrive or drop letters by their ids.');
    ELSIF (SELECT count(*) FROM letter_tasks AS t WHERE t.ended_at IS NULL) >= 100 THEN
        PERFORM refuse('PS020', '100 tasks for dead letters are open', 'Wait until the sweep has done some.');
    END IF;
    SELECT COALESCE(max(d.id), 0) + 1 INTO above FROM dead_letters AS d WHERE d.subscription_id = owner_id;
    INSERT INTO letter_tasks (subscription_id, action, filter, reason, requested_by, begun_below, next_below)
    VALUES (owner_id, request_letter_task.action, request_letter_task.filter, request_letter_task.reason, principal(),
            above, above)
    RETURNING id INTO task_id;
    RETURN task_id;
END
$$;

-- name: note_letter_task
-- Records what was done for a task: below which id it goes on, and how many letters were looked at and changed since it
-- stood at stood_below (NULL: wherever it stands). It ends with is_over, problem says why before it was done. Returns
-- whether the task stood there and was open: if not, somebody else has done the same, so roll back.
CREATE OR REPLACE FUNCTION note_letter_task(
    task_id bigint, stood_below bigint, next_below bigint, looked bigint, changed bigint, is_over boolean,
    problem text DEFAULT NULL
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM commit_durably();
    UPDATE letter_tasks AS t
    SET next_below = COALESCE(note_letter_task.next_below, t.next_below),
        looked = t.looked + note_letter_task.looked, changed = t.changed + note_letter_task.changed,
        ended_at = CASE WHEN is_over THEN clock_timestamp() END, problem = left(note_letter_task.problem, 1000)
    WHERE t.id = task_id AND t.ended_at IS NULL AND t.next_below = COALESCE(stood_below, t.next_below)
      AND sees_all();
    RETURN FOUND;
END
$$;

-- name: letter_tasks_of
-- The tasks for dead letters of one subscription, or of all (NULL), the newest first; with only_open those that are not
-- over, the oldest first. At most max_rows. Nothing for a login that does not see all topics.
CREATE OR REPLACE FUNCTION letter_tasks_of(
    subscription text DEFAULT NULL, only_open boolean DEFAULT false, max_rows integer DEFAULT 100
) RETURNS TABLE (
    id bigint, subscription text, action text, filter text, reason text, requested_by text, requested_at timestamptz,
    begun_below bigint, next_below bigint, looked bigint, changed bigint, ended_at timestamptz, problem text
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT t.id, s.name, t.action, t.filter, t.reason, t.requested_by, t.requested_at, t.begun_below, t.next_below,
           t.looked, t.changed, t.ended_at, t.problem
    FROM letter_tasks AS t JOIN subscriptions AS s ON s.id = t.subscription_id
    WHERE sees_all() AND (letter_tasks_of.subscription IS NULL OR s.name = letter_tasks_of.subscription)
      AND (NOT only_open OR t.ended_at IS NULL)
    ORDER BY CASE WHEN only_open THEN t.id ELSE -t.id END
    LIMIT LEAST(GREATEST(max_rows, 1), 1000)
$$;

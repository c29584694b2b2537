-- name: set_dead_letters_to
-- From now on each event that a subscription gives up is also published to this topic, in the transaction that buries
-- it; NULL ends that. The login needs the right to consume what the subscription reads and to publish to the topic. It
-- is kept by the topic's id, and the login's right is asked again at each burial. Refused when dead letters would come
-- back (PS006). origin says who sets it: 'hand', or 'file ' and the name of the policy file. Returns whether anything
-- changed. Raises PS002, PS006, PS013, PS018, PS030 to PS034.
CREATE OR REPLACE FUNCTION set_dead_letters_to(subscription text, topic text, origin text DEFAULT 'hand')
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner subscriptions%ROWTYPE := require_subscription(subscription);
    target topics%ROWTYPE;
BEGIN
    PERFORM commit_durably();
    PERFORM require_origin(origin);
    PERFORM require_read_committed('set_dead_letters_to()');
    IF topic IS NOT NULL THEN
        PERFORM require_address(topic);
        PERFORM require_publisher(topic);
        -- Two that name topics at once could make a circle that neither sees.
        PERFORM lock_names('set_dead_letters_to()', true);
        target := lock_topic(topic, 'publish');
        IF target.strategy NOT IN ('crc32', 'round_robin') THEN
            PERFORM refuse('PS006', format('the strategy of topic "%s" is %s', left(topic, 200), target.strategy),
                           'A dead letter names no partition: use a topic with the strategy crc32 or round_robin.');
        END IF;
    END IF;
    SELECT s.* INTO owner FROM subscriptions AS s WHERE s.id = owner.id FOR NO KEY UPDATE;
    IF NOT FOUND THEN  -- It was deleted while this waited for it.
        PERFORM require_subscription(subscription);
    END IF;
    IF (owner.dead_letters_to, owner.dead_letters_by, owner.dead_letters_origin)
        IS NOT DISTINCT FROM (target.id, CASE WHEN target.id IS NOT NULL THEN principal() END,
                              CASE WHEN target.id IS NOT NULL THEN set_dead_letters_to.origin END)
    THEN
        RETURN false;
    END IF;
    UPDATE subscriptions AS s
    SET dead_letters_to = target.id, dead_letters_by = CASE WHEN target.id IS NOT NULL THEN principal() END,
        dead_letters_at = CASE WHEN target.id IS NOT NULL THEN clock_timestamp() END,
        dead_letters_origin = CASE WHEN target.id IS NOT NULL THEN set_dead_letters_to.origin END
    WHERE s.id = owner.id;
    PERFORM refuse_circle(owner.id);
    RETURN true;
END
$$;

-- name: move_letters
-- Takes received copies of dead letters out of the topic that they were forwarded to: acknowledges them, in the
-- caller's transaction. Without a topic, or with that of the event's origin, each letter goes back to the one
-- subscription that has buried it, as redrive does: nothing is published. With another topic each copy is published
-- there. The receipts are those of acknowledge, and one that is not good refuses the whole call; so does an event
-- that is no copy of a letter, or whose letter was dropped (PS041). A letter that was redriven meanwhile only loses
-- its copy. With keep_deliveries a queue goes on counting deliveries. asked_by: whoever has asked the caller for it, as
-- principal() names it; a letter that is hidden from either does not go back. Returns how many were moved. Raises
-- PS002, PS004, PS006, PS013, PS018, PS022, PS041 to PS044.
CREATE OR REPLACE FUNCTION move_letters(
    subscription text, claims bigint[], first_sequences bigint[], last_sequences bigint[], tokens uuid[],
    topic text DEFAULT NULL, keep_deliveries boolean DEFAULT false, asked_by text DEFAULT NULL
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    queue queues%ROWTYPE := require_queue(subscription, 'acknowledge');
    pieces queue_piece[] := (take_out(queue, claims, first_sequences, last_sequences, tokens, false)).pieces;
    copies uuid[];
    elsewhere uuid[] := '{}';
BEGIN
    PERFORM commit_durably();
    PERFORM finish_keys(queue, pieces);
    pieces := copy_out(queue, pieces);
    SELECT COALESCE(array_agg(w.event_id ORDER BY w.partition_id, w.sequence), '{}') INTO copies
    FROM queue_waiting AS w
    WHERE w.id = ANY (ARRAY(SELECT p.waiting_id FROM unnest(pieces) AS p));
    PERFORM lock_letters_of(copies, topic IS NOT NULL, asked_by);
    IF topic IS NOT NULL THEN
        PERFORM require_publisher(topic);
        elsewhere := copies_from_elsewhere(copies, require_topic_for(topic, 'publish'));
        PERFORM publish_copies(pieces, elsewhere, topic);
        copies := ARRAY(SELECT c FROM unnest(copies) AS c WHERE c <> ALL (elsewhere));
    END IF;
    PERFORM return_copies(copies, COALESCE(keep_deliveries, false), asked_by);
    PERFORM drop_copies(pieces);
    RETURN cardinality(copies) + cardinality(elsewhere);
END
$$;

-- name: copies_of_erasure
-- The copies of dead letters of an erasure's event, or key, that are still to be erased, at most max_rows (1 to
-- 10,000): topic and id of each. waits: it has no sequence yet, or so many events wait that nobody looks through them.
-- The topic is NULL where the login may not operate it. Raises PS006.
CREATE OR REPLACE FUNCTION copies_of_erasure(erasure uuid, key text DEFAULT NULL, max_rows integer DEFAULT 1000)
RETURNS TABLE (topic text, event_id uuid, waits boolean)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    held erasures%ROWTYPE;
BEGIN
    SELECT e.* INTO held FROM erasures AS e WHERE e.erasure = copies_of_erasure.erasure;
    IF NOT FOUND OR NOT sees_topic(held.topic_id, 'operate')
        OR held.digest IS DISTINCT FROM erasure_digest(held.erasure, key) THEN
        PERFORM refuse('PS006', format('there is no erasure %s of this event or key', erasure),
                       'begin_erasure opens one; give the key with which it was begun.');
    ELSIF max_rows IS NULL OR max_rows NOT BETWEEN 1 AND 10000 THEN
        PERFORM refuse('PS006', format('%s copies at once', max_rows), 'Use 1 to 10,000.');
    END IF;
    RETURN QUERY
    WITH waiting AS MATERIALIZED (
        SELECT n.event_id FROM waiting_events(100000) AS w LEFT JOIN events AS n ON n.id = w.id
    )
    SELECT CASE WHEN sees_topic(t.id, 'operate') THEN t.address END, c.copy_id,
           c.copy_id IN (SELECT w.event_id FROM waiting AS w) OR (SELECT count(*) FROM waiting AS w) = 100000
    FROM (
        SELECT a.* FROM letter_copies AS a WHERE a.event_id = held.event_id
        UNION ALL
        SELECT b.* FROM letter_copies AS b WHERE b.key = copies_of_erasure.key
    ) AS c JOIN topics AS t ON t.id = c.topic_id
    WHERE c.partition_id >> 16 = held.topic_id
      AND NOT EXISTS (
          SELECT FROM erasures AS z
          WHERE z.topic_id = c.topic_id AND z.event_id = c.copy_id AND z.finished_at IS NOT NULL
            AND z.replace_key >= held.replace_key)
    ORDER BY c.partition_id, c.sequence, c.copy_id
    LIMIT max_rows;
END
$$;

-- name: forget_letter_copies
-- Deletes the rows by which an erasure finds copies of dead letters, once the copy is gone: from the log, from the
-- archive, and from what the readers of its topic keep. Of the rows that are due it looks at the max_rows oldest (1 to
-- 10,000). A copy that is still there is looked at again at twice its age, or after a week. Returns how many rows it
-- deleted. Raises PS006, PS018.
CREATE OR REPLACE FUNCTION forget_letter_copies(max_rows integer DEFAULT 1000) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    present timestamptz := clock_timestamp();
    gone bigint;
BEGIN
    PERFORM commit_durably();
    PERFORM require_read_committed('forget_letter_copies()');
    IF max_rows IS NULL OR max_rows NOT BETWEEN 1 AND 10000 THEN
        PERFORM refuse('PS006', format('a look at %s copies', max_rows), 'Use 1 to 10,000.');
    END IF;
    WITH due AS MATERIALIZED (
        SELECT c.* FROM letter_copies AS c
        WHERE c.look_at <= present
        ORDER BY c.look_at
        LIMIT max_rows
        FOR UPDATE SKIP LOCKED
    ), judged AS MATERIALIZED (
        SELECT d.copy_id, d.forwarded_at,
               copy_is_there(d.topic_id, d.copy_partition_id, d.row_id, d.copy_id) AS is_there
        FROM due AS d
    ), later AS (
        UPDATE letter_copies AS c SET look_at = present + LEAST(present - j.forwarded_at, interval '7 days')
        FROM judged AS j
        WHERE c.copy_id = j.copy_id AND j.is_there
    )
    DELETE FROM letter_copies AS c USING judged AS j WHERE c.copy_id = j.copy_id AND NOT j.is_there;
    GET DIAGNOSTICS gone = ROW_COUNT;
    RETURN gone;
END
$$;

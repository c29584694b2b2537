-- name: letters_hidden
-- Whether the letters of a subscription are hidden from the login or from whoever has asked for a move, as principal()
-- names it (NULL: nobody else has). A move is carried out by a login that sees everything. One that reads nothing any
-- more is hidden from every account here.
CREATE OR REPLACE FUNCTION letters_hidden(subscription_id bigint, asked_by text) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN reads_hidden(subscription_id) OR (asked_by IS NOT NULL AND COALESCE((
        SELECT bool_or(NOT principal_may(asked_by, t, 'consume'))
        FROM subscription_topics AS r JOIN topics AS t ON t.id = r.topic_id
        WHERE r.subscription_id = letters_hidden.subscription_id), starts_with(asked_by, 'account:')));
END
$$;

-- name: lock_letters_of
-- Locks the letters of these copies as a redrive does, the subscriptions in the order of their ids. So a move waits for
-- a redrive or a drop that is under way, and then sees what it did. Letters that the login may not know of are locked
-- only for a move that publishes their copies elsewhere (with_hidden), and so marks them: a way back is refused for
-- them, and waits for nobody.
CREATE OR REPLACE FUNCTION lock_letters_of(copies uuid[], with_hidden boolean, asked_by text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    home record;
BEGIN
    FOR home IN
        SELECT c.subscription_id, array_agg(c.letter_id) AS letters
        FROM letter_copies AS c
        WHERE c.copy_id = ANY (copies) AND (with_hidden OR NOT letters_hidden(c.subscription_id, asked_by))
        GROUP BY c.subscription_id
        ORDER BY c.subscription_id
    LOOP
        PERFORM lock_letters(home.subscription_id, home.letters);
    END LOOP;
END
$$;

-- name: copies_from_elsewhere
-- Of received events, those that do not come from this topic: to move them there publishes them.
CREATE OR REPLACE FUNCTION copies_from_elsewhere(copies uuid[], topic_id bigint) RETURNS uuid[]
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN ARRAY(
        SELECT g.id
        FROM unnest(copies) AS g (id)
        WHERE NOT EXISTS (
            SELECT FROM letter_copies AS c
            WHERE c.copy_id = g.id AND c.partition_id >> 16 = copies_from_elsewhere.topic_id));
END
$$;

-- name: publish_copies
-- Publishes received events, which pieces have copied out of the log, to another topic, under new ids and with their
-- headers. A letter is marked with where its copy is now.
CREATE OR REPLACE FUNCTION publish_copies(pieces queue_piece[], copies uuid[], topic text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    moved record;
    target_id bigint := (SELECT t.id FROM topics AS t WHERE t.address = publish_copies.topic);
    id_before bigint := (SELECT last_given('events_id', i.last_value, i.is_called) FROM events_id AS i);
BEGIN
    IF cardinality(copies) = 0 THEN
        RETURN;
    END IF;
    SELECT array_agg(w.event_id) AS old, array_agg(new_event_id()) AS ids,
           array_agg(COALESCE(w.body, w.payload)) AS payloads, array_agg(w.key) AS keys, array_agg(w.type) AS types,
           array_agg(w.content_type) AS content_types, array_agg(w.headers::text) AS headers,
           array_agg(publish_copies.topic) AS topics, array_agg(NULL::integer) AS partitions
    INTO moved
    FROM (
        SELECT n.*
        FROM queue_waiting AS n
        WHERE n.id = ANY (ARRAY(SELECT p.waiting_id FROM unnest(pieces) AS p)) AND n.event_id = ANY (copies)
        ORDER BY n.partition_id, n.sequence
    ) AS w;
    PERFORM publish_batch(moved.topics, moved.payloads, moved.keys, moved.types, moved.content_types, moved.headers,
                          moved.ids, moved.partitions);
    INSERT INTO letter_copies (
        copy_id, topic_id, subscription_id, letter_id, partition_id, sequence, history, event_id, key,
        copy_partition_id, row_id)
    SELECT g.id, target_id, c.subscription_id, c.letter_id, c.partition_id, c.sequence, c.history, c.event_id, c.key,
           n.partition_id, n.id
    FROM unnest(moved.old, moved.ids) AS g (old, id)
    JOIN letter_copies AS c ON c.copy_id = g.old
    JOIN events AS n ON n.id >= id_before AND n.event_id = g.id;
    UPDATE dead_letters AS d SET forwarded_to = target_id, forwarded_as = g.id
    FROM unnest(moved.old, moved.ids) AS g (old, id) JOIN letter_copies AS c ON c.copy_id = g.old
    WHERE d.subscription_id = c.subscription_id AND d.id = c.letter_id AND d.forwarded_as = g.old;
END
$$;

-- name: return_copies
-- Redrives the letters of these copies, which lock_letters_of has locked, each to its subscription. A copy to which its
-- letter does not point any more is left alone: the letter was redriven, and may have a newer copy. Raises PS041 for a
-- copy whose letter was dropped or went with its topic, or of a subscription that is hidden (see letters_hidden).
CREATE OR REPLACE FUNCTION return_copies(copies uuid[], keep_deliveries boolean, asked_by text) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
DECLARE
    home record;
    known bigint;
BEGIN
    SELECT count(*) INTO known
    FROM letter_copies AS c
    JOIN subscriptions AS s ON s.id = c.subscription_id
    JOIN topics AS t ON t.id = c.partition_id >> 16
    WHERE c.copy_id = ANY (copies) AND NOT letters_hidden(s.id, asked_by) AND NOT EXISTS (
        SELECT FROM dropped_letters AS x WHERE x.subscription_id = c.subscription_id AND x.id = c.letter_id);
    IF known < cardinality(copies) THEN
        PERFORM refuse('PS041', format('of %s events, %s are no copies of dead letters that are still there',
                                       cardinality(copies), cardinality(copies) - known),
                       'Acknowledge them, or move them to a topic: what was dropped cannot go back.');
    END IF;
    FOR home IN
        SELECT c.subscription_id, array_agg(c.letter_id) AS letters
        FROM letter_copies AS c
        JOIN dead_letters AS d
            ON d.subscription_id = c.subscription_id AND d.id = c.letter_id AND d.forwarded_as = c.copy_id
        WHERE c.copy_id = ANY (copies)
        GROUP BY c.subscription_id
        ORDER BY c.subscription_id
    LOOP
        PERFORM redrive_letters(home.subscription_id, home.letters, keep_deliveries);
    END LOOP;
END
$$;

-- name: copy_is_there
-- Whether an erasure would find something of a copy: its row in the log, which may be kept apart, a copy of its
-- partition in the archive or brought back from there, or what a reader of its topic keeps.
CREATE OR REPLACE FUNCTION copy_is_there(topic_id bigint, part_id bigint, row_id bigint, copy_id uuid) RETURNS boolean
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET jit = off AS $$
BEGIN
    RETURN EXISTS (SELECT FROM events AS n WHERE n.id = row_id)
        OR EXISTS (SELECT FROM events_kept AS n WHERE n.id = row_id)
        OR EXISTS (SELECT FROM epoch_copies AS c WHERE c.partition_id = part_id)
        OR EXISTS (SELECT FROM rehydrated_epochs AS r WHERE r.partition_id = part_id)
        OR EXISTS (
            SELECT FROM subscription_topics AS s
            JOIN dead_letters AS d ON d.subscription_id = s.subscription_id AND d.partition_id = part_id
            WHERE s.topic_id = copy_is_there.topic_id AND d.event_id = copy_is_there.copy_id)
        OR EXISTS (
            SELECT FROM subscription_topics AS s
            JOIN queue_waiting AS w ON w.subscription_id = s.subscription_id AND w.partition_id = part_id
            WHERE s.topic_id = copy_is_there.topic_id AND w.event_id = copy_is_there.copy_id);
END
$$;

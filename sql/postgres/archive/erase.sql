-- name: find_erasable
-- The sequences of a window of a partition that hold one of these events, or an event of this key, and that were not
-- erased yet, each with the event's id: of max_events (1 to 100,000) from a sequence on. Below the low sequence it
-- looks at what was rehydrated. Raises PS002, PS005, PS006, PS016.
CREATE OR REPLACE FUNCTION find_erasable(
    topic text, partition integer, from_sequence bigint, max_events integer, event_ids uuid[], key text
) RETURNS TABLE (sequence bigint, event_id uuid)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    source_id bigint := require_partition_for(topic, partition, 'operate');
    low bigint;
    below boolean;
    found_rows bigint;
    found_sequences bigint[];
    found_ids uuid[];
BEGIN
    PERFORM require_erasure_target(event_ids[1], key);
    IF max_events IS NULL OR max_events NOT BETWEEN 1 AND 100000 OR from_sequence IS NULL OR from_sequence < 1 THEN
        PERFORM refuse('PS006', format('cannot look at %s events from sequence %s', max_events, from_sequence),
                       'Sequences start at 1; look at 1 to 100,000 events at a time.');
    END IF;
    SELECT p.low_sequence, from_sequence < p.low_sequence INTO low, below FROM partitions AS p WHERE p.id = source_id;
    SELECT count(*), array_agg(r.sequence ORDER BY r.sequence) FILTER (
               WHERE r.key = find_erasable.key OR r.event_id = ANY (event_ids)),
           array_agg(r.event_id ORDER BY r.sequence) FILTER (
               WHERE r.key = find_erasable.key OR r.event_id = ANY (event_ids))
    INTO found_rows, found_sequences, found_ids
    FROM (
        SELECT l.*
        FROM read_log(source_id, find_erasable.from_sequence, find_erasable.max_events) AS l
        WHERE NOT below
        UNION ALL
        SELECT b.*
        FROM read_rehydrated(source_id, find_erasable.from_sequence, find_erasable.max_events) AS b
        WHERE below
    ) AS r;
    IF found_rows < LEAST(max_events, CASE WHEN below THEN low ELSE high_watermark(source_id) + 1 END - from_sequence)
    THEN
        PERFORM refuse('PS016', format('the database no longer has all events from sequence %s on', from_sequence),
                       'They were dropped: run the erasure again, which looks into the archive.');
    END IF;
    RETURN QUERY
    SELECT f.sequence, f.event_id
    FROM unnest(found_sequences, found_ids) AS f (sequence, event_id)
    WHERE NOT EXISTS (
        SELECT FROM erased_events AS e WHERE e.partition_id = source_id AND e.sequence = f.sequence)
    ORDER BY f.sequence;
END
$$;

-- name: begin_erasure
-- Opens an erasure of one event or of all events of one key, and returns its id; one that is open already for the same
-- is gone on with. replace_key: the key is erased too. The key itself is not kept. Raises PS002, PS006, PS018.
CREATE OR REPLACE FUNCTION begin_erasure(
    topic text, event_id uuid, key text, reason text, replace_key boolean DEFAULT false
) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    own topics%ROWTYPE := lock_topic(topic, 'operate');
    found_id uuid;
BEGIN
    PERFORM commit_durably();
    PERFORM require_read_committed('begin_erasure()');
    PERFORM require_erasure_target(event_id, key);
    IF reason IS NULL OR btrim(reason) = '' OR char_length(reason) > 1000 THEN
        PERFORM refuse('PS006', 'the reason of an erasure has not 1 to 1,000 characters',
                       'Say why: it is kept as the record of the erasure.');
    END IF;
    SELECT e.erasure INTO found_id
    FROM erasures AS e
    WHERE e.topic_id = own.id AND e.finished_at IS NULL AND e.replace_key = COALESCE(begin_erasure.replace_key, false)
      AND (e.event_id = begin_erasure.event_id OR e.digest = erasure_digest(e.erasure, begin_erasure.key))
    ORDER BY e.requested_at
    LIMIT 1;
    IF found_id IS NULL THEN
        found_id := gen_random_uuid();
        INSERT INTO erasures (
            erasure, topic_id, event_id, digest, replace_key, reason, requested_by, requested_at)
        VALUES (found_id, own.id, begin_erasure.event_id, erasure_digest(found_id, begin_erasure.key),
                COALESCE(begin_erasure.replace_key, false), begin_erasure.reason, principal(), clock_timestamp());
    END IF;
    RETURN found_id;
END
$$;

-- name: erase_events
-- Replaces events of one log epoch, or of what is not sealed yet, by tombstones, and gives the log epoch a new checksum
-- in the same transaction. For a dropped one the caller gives the checksum of the copy that it has read, and the one of
-- the copy that it has written; for a rehydrated one without a copy, neither. Events that were erased before stay as
-- they are. Returns how many were erased. Raises PS005, PS006, PS016, PS017, PS018, PS027.
CREATE OR REPLACE FUNCTION erase_events(
    erasure uuid, partition integer, sequences bigint[], old_checksum text DEFAULT NULL, checksum text DEFAULT NULL
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    held erasures%ROWTYPE := hold_erasure(erasure);
    source partitions%ROWTYPE;
    sealed log_epochs%ROWTYPE;
    lowest bigint;
    highest bigint;
    fresh bigint[];
BEGIN
    SELECT p.* INTO source
    FROM partitions AS p
    WHERE p.topic_id = held.topic_id AND p.number = erase_events.partition
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        PERFORM refuse('PS005', format('the topic has no partition %s', partition), 'Partitions start at 0.');
    END IF;
    SELECT min(q.sequence), max(q.sequence) INTO lowest, highest FROM unnest(sequences) AS q (sequence);
    IF lowest IS NULL OR lowest < 1 OR highest > high_watermark(source.id) OR cardinality(sequences) > 100000 THEN
        PERFORM refuse('PS006', format('an erasure of the sequences %s to %s', lowest, highest),
                       'Give 1 to 100,000 sequences of the log.');
    END IF;
    SELECT e.* INTO sealed
    FROM log_epochs AS e
    WHERE e.partition_id = source.id AND e.first_sequence <= lowest
    ORDER BY e.first_sequence DESC
    LIMIT 1
    FOR NO KEY UPDATE;
    IF sealed.last_sequence < lowest THEN
        sealed := NULL;
    ELSIF highest > sealed.last_sequence THEN
        PERFORM refuse('PS006', format('the sequences %s to %s are not all in log epoch %s', lowest, highest,
                                       sealed.log_epoch),
                       'Erase what is in one log epoch at a time; one may have been sealed meanwhile.');
    ELSIF sealed.dropped_at IS NOT NULL AND checksum IS NULL AND NOT is_rehydrated(source.id, lowest) THEN
        PERFORM refuse('PS016', format('log epoch %s was dropped', sealed.log_epoch),
                       'Run the erasure again, which rewrites its copies in the archive.');
    END IF;
    fresh := ARRAY(
        SELECT DISTINCT q.sequence FROM unnest(sequences) AS q (sequence)
        WHERE NOT EXISTS (
            SELECT FROM erased_events AS d WHERE d.partition_id = source.id AND d.sequence = q.sequence));
    IF fresh = '{}' THEN
        RETURN 0;
    END IF;
    PERFORM require_unheld(source.id, fresh);
    PERFORM stop_copies(held.topic_id);
    PERFORM require_no_block(source.id, fresh);
    PERFORM put_tombstones(held, source.id, fresh);
    IF sealed.log_epoch IS NOT NULL THEN
        PERFORM reissue_seal(held, sealed, new_checksum(sealed, old_checksum, checksum));
    END IF;
    RETURN cardinality(fresh);
END
$$;

-- name: erase_letters
-- Replaces dead letters of the event, or of the key, of an erasure by tombstones, with the reason of their death: it
-- may quote the event. So it does with the copies that queues have. At most max_rows (1 to 10,000); returns how many.
-- Call it until that is 0, after the events. Raises PS006, PS018, PS027.
CREATE OR REPLACE FUNCTION erase_letters(erasure uuid, key text DEFAULT NULL, max_rows integer DEFAULT 1000)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    held erasures%ROWTYPE := hold_erasure(erasure);
    letter record;
    done bigint := 0;
BEGIN
    IF max_rows IS NULL OR max_rows NOT BETWEEN 1 AND 10000 THEN
        PERFORM refuse('PS006', format('%s dead letters at once', max_rows), 'Use 1 to 10,000.');
    ELSIF held.digest IS DISTINCT FROM erasure_digest(held.erasure, key) THEN
        PERFORM refuse('PS006', 'that is not the key of this erasure', 'Give the key with which it was begun.');
    END IF;
    -- A copy that just becomes a dead letter, or the other way round, would be in neither when this looks there.
    PERFORM stop_copies(held.topic_id);
    FOR letter IN
        SELECT d.subscription_id, d.id, d.partition_id, d.sequence
        FROM dead_letters AS d
        WHERE d.partition_id BETWEEN held.topic_id << 16 AND (held.topic_id << 16) + 65535
          AND (d.event_id = held.event_id OR d.key = erase_letters.key)
          AND NOT EXISTS (
              SELECT FROM erasures AS z
              WHERE z.topic_id = held.topic_id AND d.reason = erased_reason(z.erasure) AND d.payload = ''
                AND d.headers = erasure_mark(z.erasure))
        ORDER BY d.subscription_id, d.partition_id, d.sequence, d.history  -- as lock_letters
        LIMIT max_rows
    LOOP
        PERFORM require_unheld(letter.partition_id, ARRAY[letter.sequence]);
        UPDATE dead_letters AS d
        SET payload = '', headers = erasure_mark(held.erasure), reason = erased_reason(held.erasure),
            key = CASE WHEN NOT held.replace_key THEN d.key END
        WHERE d.subscription_id = letter.subscription_id AND d.id = letter.id;
        done := done + 1;
    END LOOP;
    done := done + erase_copies(held, key, max_rows - done::integer);
    UPDATE erasures AS e SET letters = e.letters + done WHERE e.erasure = held.erasure;
    RETURN done;
END
$$;

-- name: finish_erasure
-- Ends an erasure, once every copy was made again. Raises PS006, PS018.
CREATE OR REPLACE FUNCTION finish_erasure(erasure uuid) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    held erasures%ROWTYPE := hold_erasure(erasure);
BEGIN
    UPDATE erasures AS e SET finished_at = clock_timestamp() WHERE e.erasure = held.erasure;
    -- Of a dead letter's copy that is erased now the key was kept to find it.
    UPDATE letter_copies AS c SET key = NULL
    WHERE held.replace_key AND c.copy_id = held.event_id AND c.topic_id = held.topic_id;
END
$$;

-- name: list_erasures
-- The record of erasures, newest first, of one topic or of all (NULL) that the login may read: who, when, why, what,
-- how many events and dead letters, and how many checksums were issued again. by_key: it was of a key, which is not
-- kept. Raises PS002.
CREATE OR REPLACE FUNCTION list_erasures(of_topic text DEFAULT NULL)
RETURNS TABLE (
    erasure uuid, topic text, event_id uuid, by_key boolean, replace_key boolean, reason text, requested_by text,
    requested_at timestamptz, finished_at timestamptz, events bigint, letters bigint, seals bigint
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    only_id bigint := CASE WHEN of_topic IS NOT NULL THEN require_topic(of_topic) END;
BEGIN
    RETURN QUERY
    SELECT e.erasure, t.address, e.event_id, e.digest IS NOT NULL, e.replace_key, e.reason, e.requested_by,
           e.requested_at, e.finished_at, e.events, e.letters,
           (SELECT count(*) FROM reissued_seals AS r WHERE r.erasure = e.erasure)
    FROM erasures AS e JOIN topics AS t ON t.id = e.topic_id
    WHERE t.id = COALESCE(only_id, t.id)
      AND (NOT t.restricted AND (SELECT as_login()) OR has_right(t.namespace_id, 'read'))
    ORDER BY e.requested_at DESC, e.erasure;
END
$$;

-- name: reissued_of
-- The log epochs of a topic whose checksum was issued again, and each checksum that they had before. Raises PS002.
CREATE OR REPLACE FUNCTION reissued_of(topic text)
RETURNS TABLE (
    partition integer, log_epoch integer, old_checksum text, checksum text, erasure uuid, reason text,
    reissued_by text, reissued_at timestamptz
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    source_id bigint := require_topic(topic);
BEGIN
    RETURN QUERY
    SELECT p.number, r.log_epoch, r.old_checksum, r.checksum, r.erasure, e.reason, r.reissued_by, r.reissued_at
    FROM partitions AS p
    JOIN reissued_seals AS r ON r.partition_id = p.id
    JOIN erasures AS e ON e.erasure = r.erasure
    WHERE p.topic_id = source_id
    ORDER BY p.number, r.log_epoch, r.reissued_at;
END
$$;

-- name: erased_of
-- The places of erased events of a partition between two sequences, in order, at most max_rows (1 to 100,000). Raises
-- PS002, PS005, PS006.
CREATE OR REPLACE FUNCTION erased_of(
    topic text, partition integer, first_sequence bigint, last_sequence bigint, max_rows integer DEFAULT 10000
) RETURNS TABLE (sequence bigint, erasure uuid, replace_key boolean)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    source_id bigint := require_partition(topic, partition);
BEGIN
    IF max_rows IS NULL OR max_rows NOT BETWEEN 1 AND 100000 THEN
        PERFORM refuse('PS006', format('a list of %s erased events', max_rows), 'Use 1 to 100,000.');
    END IF;
    RETURN QUERY
    SELECT d.sequence, d.erasure, e.replace_key
    FROM erased_events AS d JOIN erasures AS e ON e.erasure = d.erasure
    WHERE d.partition_id = source_id AND d.sequence BETWEEN erased_of.first_sequence AND erased_of.last_sequence
    ORDER BY d.sequence
    LIMIT max_rows;
END
$$;

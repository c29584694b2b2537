-- name: require_erasure_target
-- Checks what is to be erased: either one event or one key. Raises PS006.
CREATE OR REPLACE FUNCTION require_erasure_target(event_id uuid, key text) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF (event_id IS NULL) = (key IS NULL) THEN
        PERFORM refuse('PS006', 'an erasure of neither an event nor a key, or of both',
                       'Name the id of an event, or a key.');
    END IF;
END
$$;

-- name: find_erasable
-- The sequences of a window of a partition that hold this event, or events of this key, and that were not erased yet:
-- of max_events (1 to 100,000) from a sequence on. Below the low sequence it looks at what was rehydrated. Raises
-- PS002, PS005, PS006, PS016.
CREATE OR REPLACE FUNCTION find_erasable(
    topic text, partition integer, from_sequence bigint, max_events integer, event_id uuid, key text
) RETURNS TABLE (sequence bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    source_id bigint := require_partition_for(topic, partition, 'operate');
    low bigint;
    below boolean;
    found_rows bigint;
    found_sequences bigint[];
BEGIN
    PERFORM require_erasure_target(event_id, key);
    IF max_events IS NULL OR max_events NOT BETWEEN 1 AND 100000 OR from_sequence IS NULL OR from_sequence < 1 THEN
        PERFORM refuse('PS006', format('cannot look at %s events from sequence %s', max_events, from_sequence),
                       'Sequences start at 1; look at 1 to 100,000 events at a time.');
    END IF;
    SELECT p.low_sequence, from_sequence < p.low_sequence INTO low, below FROM partitions AS p WHERE p.id = source_id;
    SELECT count(*), array_agg(r.sequence ORDER BY r.sequence) FILTER (
        WHERE r.key = find_erasable.key OR r.event_id = find_erasable.event_id)
    INTO found_rows, found_sequences
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
    SELECT f.sequence
    FROM unnest(found_sequences) AS f (sequence)
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
                COALESCE(begin_erasure.replace_key, false), begin_erasure.reason, session_user, clock_timestamp());
    END IF;
    RETURN found_id;
END
$$;

-- name: erasure_digest
-- By what an erasure knows its key again; the erasure's id is the salt.
CREATE OR REPLACE FUNCTION erasure_digest(erasure uuid, key text) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT encode(sha256(convert_to(erasure_digest.erasure::text || erasure_digest.key, 'UTF8')), 'hex')
$$;

-- name: erasure_mark
-- The headers of an event that was erased.
CREATE OR REPLACE FUNCTION erasure_mark(erasure uuid) RETURNS jsonb
LANGUAGE sql IMMUTABLE AS $$
    SELECT jsonb_build_object('penstock-erased', erasure_mark.erasure::text)
$$;

-- name: hold_erasure
-- The fence: locks the topic of an open erasure, against legal holds too, then the erasure, to the end of the caller's
-- transaction. Raises PS006, PS018.
CREATE OR REPLACE FUNCTION hold_erasure(erasure uuid) RETURNS erasures
LANGUAGE plpgsql AS $$
DECLARE
    held erasures%ROWTYPE;
BEGIN
    PERFORM commit_durably();
    PERFORM require_read_committed('a step of an erasure');
    SELECT e.* INTO held FROM erasures AS e WHERE e.erasure = hold_erasure.erasure;
    PERFORM FROM topics AS t WHERE t.id = held.topic_id FOR NO KEY UPDATE;
    PERFORM hold_off_clean(held.topic_id << 16);
    SELECT e.* INTO held FROM erasures AS e WHERE e.erasure = hold_erasure.erasure AND e.finished_at IS NULL FOR UPDATE;
    IF NOT FOUND OR NOT sees_topic(held.topic_id, 'operate') THEN
        PERFORM refuse('PS006', format('there is no open erasure %s', erasure), 'begin_erasure opens one.');
    END IF;
    RETURN held;
END
$$;

-- name: require_unheld
-- Refuses an erasure of events under a legal hold. Raises PS027.
CREATE OR REPLACE FUNCTION require_unheld(partition_id bigint, sequences bigint[]) RETURNS void
LANGUAGE plpgsql STABLE AS $$
DECLARE
    held record;
BEGIN
    SELECT s.sequence, h.name INTO held
    FROM unnest(sequences) AS s (sequence)
    CROSS JOIN LATERAL hold_over(require_unheld.partition_id, s.sequence, s.sequence) AS h (name)
    WHERE h.name IS NOT NULL
    LIMIT 1;
    IF FOUND THEN
        PERFORM refuse('PS027', format('legal hold "%s" covers sequence %s of partition %s', left(held.name, 200),
                                       held.sequence, partition_id & 65535),
                       'What is held is not erased: release the hold first, or leave these events.');
    END IF;
END
$$;

-- name: require_no_block
-- Refuses an erasure of events in an open block of a relay: if the relay's process dies, its successor has to send the
-- very same bytes. Locks the leases of the partition, which whoever opens a block locks too. Raises PS027.
CREATE OR REPLACE FUNCTION require_no_block(partition_id bigint, sequences bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    relay text;
BEGIN
    PERFORM FROM leases AS l
    WHERE l.partition_id = require_no_block.partition_id
    ORDER BY l.subscription_id
    FOR NO KEY UPDATE;
    SELECT s.name INTO relay
    FROM leases AS l
    JOIN subscriptions AS s ON s.id = l.subscription_id
    CROSS JOIN LATERAL open_block_of(l.subscription_id, l.partition_id) AS b
    WHERE l.partition_id = require_no_block.partition_id AND EXISTS (
        SELECT FROM unnest(sequences) AS q (sequence) WHERE q.sequence BETWEEN b.first_sequence AND b.last_sequence)
    LIMIT 1;
    IF FOUND THEN
        PERFORM refuse('PS027', format('relay "%s" is about to send one of these events of partition %s',
                                       left(relay, 200), partition_id & 65535),
                       'Let it end its block (penstock relay), then run the erasure again.');
    END IF;
END
$$;

-- name: ids_of_sequences
-- The ids of events, by the index of the log; nothing for what is not in it any more.
CREATE OR REPLACE FUNCTION ids_of_sequences(partition_id bigint, sequences bigint[]) RETURNS bigint[]
LANGUAGE sql STABLE AS $$
    SELECT COALESCE(array_agg(c.event_ids[q.sequence - c.first_sequence + 1]), '{}')
    FROM unnest(ids_of_sequences.sequences) AS q (sequence)
    CROSS JOIN LATERAL (
        SELECT i.event_ids, i.first_sequence, i.event_count
        FROM chunks AS i
        WHERE i.partition_id = ids_of_sequences.partition_id AND i.first_sequence <= q.sequence
        ORDER BY i.first_sequence DESC
        LIMIT 1
    ) AS c
    WHERE q.sequence < c.first_sequence + c.event_count
$$;

-- name: put_tombstones
-- Replaces payload and headers of events wherever the database has them. The rows keep their transaction numbers, and
-- they are in the index of the log, so no pass and no repair takes them for new.
CREATE OR REPLACE FUNCTION put_tombstones(held erasures, partition_id bigint, sequences bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    mark jsonb := erasure_mark(held.erasure);
    ids bigint[];
BEGIN
    -- keep_events copies rows: it comes before this, or sees it.
    LOCK TABLE events_kept IN ROW EXCLUSIVE MODE;
    ids := ids_of_sequences(partition_id, sequences);
    UPDATE events_kept AS k
    SET payload = '', headers = mark, key = CASE WHEN NOT held.replace_key THEN k.key END
    WHERE k.id = ANY (ids);
    UPDATE events AS e
    SET payload = '', headers = mark, key = CASE WHEN NOT held.replace_key THEN e.key END
    WHERE e.id = ANY (ids);
    UPDATE rehydrated_events AS r
    SET payload = '', headers = mark, key = CASE WHEN NOT held.replace_key THEN r.key END
    WHERE r.partition_id = put_tombstones.partition_id AND r.sequence = ANY (sequences);
    INSERT INTO erased_events (partition_id, sequence, erasure)
    SELECT put_tombstones.partition_id, q.sequence, held.erasure FROM unnest(sequences) AS q (sequence);
    UPDATE erasures AS e SET events = e.events + cardinality(sequences) WHERE e.erasure = held.erasure;
END
$$;

-- name: new_checksum
-- The checksum of a log epoch whose events were just replaced: the database computes it from what it has. What it has
-- not it takes from the caller, who has read the copy whose checksum is the present one. For a rehydrated log epoch it
-- takes what the caller has computed, or none: then no copy is left. Raises PS017.
CREATE OR REPLACE FUNCTION new_checksum(sealed log_epochs, old_checksum text, checksum text) RETURNS text
LANGUAGE plpgsql STABLE AS $$
DECLARE
    computed text;
BEGIN
    IF sealed.dropped_at IS NULL THEN
        RETURN (range_checksum(sealed.partition_id, sealed.first_sequence, sealed.last_sequence)).checksum;
    ELSIF is_rehydrated(sealed.partition_id, sealed.first_sequence) THEN
        computed := (rehydrated_checksum(sealed.partition_id, sealed.first_sequence, sealed.last_sequence)).checksum;
    END IF;
    IF checksum IS NULL AND computed IS NOT NULL THEN
        RETURN computed;
    END IF;
    IF old_checksum IS DISTINCT FROM sealed.checksum OR checksum IS NULL OR checksum !~ '^[0-9a-f]{64}$'
        OR checksum <> COALESCE(computed, checksum) THEN
        PERFORM refuse('PS017', format('the erasure in log epoch %s was computed from a copy with the checksum %s, and '
                                       'the seal says %s', sealed.log_epoch, old_checksum, sealed.checksum),
                       'Read the copy again: run the erasure again.');
    END IF;
    RETURN checksum;
END
$$;

-- name: stop_copies
-- Waits for the transactions in which queues copy events of a topic out of the log, bury or finish copies, and stops
-- others to the end of this one: what they have copied is there for erase_letters, and what they copy then is erased
-- already.
CREATE OR REPLACE FUNCTION stop_copies(topic_id bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM subscription_topics AS r
    WHERE r.topic_id = stop_copies.topic_id
    ORDER BY r.subscription_id
    FOR NO KEY UPDATE;
END
$$;

-- name: await_erasures
-- The other side of stop_copies, before a queue copies events or locks the copies that it has: who holds copies and
-- then waits for an erasure that waits for these copies would end in a deadlock.
CREATE OR REPLACE FUNCTION await_erasures(owner_id bigint, pieces queue_piece[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    topic_ids bigint[] := ARRAY(SELECT DISTINCT p.partition_id >> 16 FROM unnest(pieces) AS p ORDER BY 1);
    set_to text;
BEGIN
    -- Who shares already goes on: the erasure waits for the end of this transaction.
    IF COALESCE(current_setting('penstock.shares_copies', true), '') = '' AND EXISTS (
        SELECT FROM erasures AS e WHERE e.topic_id = ANY (topic_ids) AND e.finished_at IS NULL)
    THEN
        PERFORM let_erasures_pass(topic_ids);
    END IF;
    PERFORM FROM subscription_topics AS r
    WHERE r.subscription_id = owner_id AND r.topic_id = ANY (topic_ids)
    ORDER BY r.topic_id
    FOR SHARE;
    set_to := set_config('penstock.shares_copies', 'on', true);
END
$$;

-- name: let_erasures_pass
-- Waits for the step of an erasure of these topics that is under way, for at most 5 seconds. PostgreSQL lets those who
-- share a row pass somebody who waits for it alone. So workers whose transactions overlap would keep an erasure waiting
-- for ever. The error undoes the lock: nobody waits for who has waited here.
CREATE OR REPLACE FUNCTION let_erasures_pass(topic_ids bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('lock_timeout')::interval NOT BETWEEN interval '1 microsecond' AND interval '5 seconds' THEN
        PERFORM set_config('lock_timeout', '5s', true);
    END IF;
    PERFORM FROM erasures AS e WHERE e.topic_id = ANY (topic_ids) AND e.finished_at IS NULL FOR KEY SHARE;
    RAISE EXCEPTION 'lets go of the lock';
EXCEPTION WHEN raise_exception OR lock_not_available OR deadlock_detected THEN
    NULL;  -- who shares may wait for this transaction: then it goes on
END
$$;

-- name: is_tombstone
-- Whether an event was erased. It takes no new body and no reason, which may quote what it was.
CREATE OR REPLACE FUNCTION is_tombstone(payload bytea, headers jsonb) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT is_tombstone.payload = '' AND COALESCE(is_tombstone.headers ? 'penstock-erased', false)
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
        ORDER BY d.subscription_id, d.id
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

-- name: erased_reason
-- Why an erased dead letter died, as far as it may still be said.
CREATE OR REPLACE FUNCTION erased_reason(erasure uuid) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT 'erased by ' || erased_reason.erasure::text
$$;

-- name: finish_erasure
-- Ends an erasure, once every copy was made again. Raises PS006, PS018.
CREATE OR REPLACE FUNCTION finish_erasure(erasure uuid) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    held erasures%ROWTYPE := hold_erasure(erasure);
BEGIN
    UPDATE erasures AS e SET finished_at = clock_timestamp() WHERE e.erasure = held.erasure;
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
    WHERE t.id = COALESCE(only_id, t.id) AND (NOT t.restricted OR has_right(t.namespace_id, 'read'))
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
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT p.number, r.log_epoch, r.old_checksum, r.checksum, r.erasure, e.reason, r.reissued_by, r.reissued_at
    FROM partitions AS p
    JOIN reissued_seals AS r ON r.partition_id = p.id
    JOIN erasures AS e ON e.erasure = r.erasure
    WHERE p.topic_id = require_topic(reissued_of.topic)
    ORDER BY p.number, r.log_epoch, r.reissued_at
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

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
    CROSS JOIN LATERAL find_hold_over(require_unheld.partition_id, s.sequence, s.sequence) AS h (name)
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
    CROSS JOIN LATERAL find_open_block(l.subscription_id, l.partition_id) AS b
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

-- name: erased_reason
-- Why an erased dead letter died, as far as it may still be said.
CREATE OR REPLACE FUNCTION erased_reason(erasure uuid) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT 'erased by ' || erased_reason.erasure::text
$$;

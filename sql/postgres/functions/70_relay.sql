-- name: open_block_of
-- The block of a partition that was recorded and whose end is not committed yet.
CREATE OR REPLACE FUNCTION open_block_of(subscription_id bigint, partition_id bigint) RETURNS blocks
LANGUAGE plpgsql STABLE AS $$
DECLARE
    newest blocks%ROWTYPE;
BEGIN
    SELECT b.* INTO newest
    FROM blocks AS b
    WHERE b.subscription_id = open_block_of.subscription_id AND b.partition_id = open_block_of.partition_id
    ORDER BY b.id DESC
    LIMIT 1;
    IF newest.first_sequence = current_position(open_block_of.subscription_id, open_block_of.partition_id) + 1 THEN
        RETURN newest;
    END IF;
    RETURN NULL;
END
$$;

-- name: open_block
-- The block that a relay is about to send, recorded before it is sent, and fenced. It is the block that is still
-- open, else a new one of at most max_events and max_bytes of payload (but at least one event). No row when there is
-- nothing to send. attempt counts from 1. topic is the topic's address when the block was recorded, known_as the name
-- by which sinks know the topic. Raises PS010, PS013, PS016, PS018, PS021.
CREATE OR REPLACE FUNCTION open_block(
    subscription text, consumer text, partition_id bigint, lease_epoch bigint, max_events integer, max_bytes bigint
) RETURNS TABLE (
    block_id bigint, first_sequence bigint, last_sequence bigint, repeated boolean, attempt integer, topic text,
    known_as text
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT
SET enable_seqscan = off SET jit = off AS $$
DECLARE
    owner subscriptions%ROWTYPE := require_subscription(subscription);
    block blocks%ROWTYPE;
    was_open boolean;
    start bigint;
    last bigint;
BEGIN
    PERFORM commit_durably();
    PERFORM hold_leases(owner, consumer, ARRAY[open_block.partition_id], ARRAY[open_block.lease_epoch]);
    SELECT * INTO block FROM open_block_of(owner.id, open_block.partition_id);
    was_open := block.id IS NOT NULL;
    start := current_position(owner.id, open_block.partition_id) + 1;
    -- This holds for an open block too: nothing is sent from a stopped partition.
    IF require_readable(open_block.partition_id, start, owner.id) THEN
        PERFORM refuse('PS016', format('a relay reads nothing below the low sequence, and it is at sequence %s', start),
                       'Give the relay the archive targets: --target NAME.');
    END IF;
    IF NOT was_open THEN
        SELECT max(r.sequence) INTO last
        FROM (
            SELECT e.sequence, sum(octet_length(e.payload)) OVER (ORDER BY e.sequence) AS bytes
            FROM read_log(open_block.partition_id, start, LEAST(GREATEST(max_events, 1), 100000)) AS e
        ) AS r
        WHERE r.bytes <= max_bytes OR r.sequence = start;
        IF last IS NULL THEN
            RETURN;
        END IF;
        block := record_block(owner.id, open_block.partition_id, open_block.lease_epoch, start, last);
    END IF;
    RETURN QUERY SELECT b.* FROM block_row(block, was_open) AS b;
END
$$;

-- name: record_block
-- Records a new block of a partition. Raises PS021.
CREATE OR REPLACE FUNCTION record_block(
    subscription_id bigint, partition_id bigint, lease_epoch bigint, first_sequence bigint, last_sequence bigint
) RETURNS blocks
LANGUAGE plpgsql AS $$
DECLARE
    block blocks%ROWTYPE;
BEGIN
    IF EXISTS (
        SELECT FROM blocks AS b
        WHERE b.subscription_id = record_block.subscription_id AND b.partition_id = record_block.partition_id
          AND b.id > (SELECT c.last_value - (NOT c.is_called)::integer FROM blocks_id AS c))
    THEN
        -- A consumer that takes over would not find this block, and would make another one.
        PERFORM refuse_set_back('blocks_id');
    END IF;
    INSERT INTO blocks (subscription_id, partition_id, first_sequence, last_sequence, lease_epoch, topic)
    SELECT record_block.subscription_id, p.id, record_block.first_sequence, record_block.last_sequence,
           record_block.lease_epoch, t.address
    FROM partitions AS p JOIN topics AS t ON t.id = p.topic_id
    WHERE p.id = record_block.partition_id
    RETURNING * INTO block;
    RETURN block;
END
$$;

-- name: block_row
-- A block as open_block returns it.
CREATE OR REPLACE FUNCTION block_row(block blocks, was_open boolean)
RETURNS TABLE (
    block_id bigint, first_sequence bigint, last_sequence bigint, repeated boolean, attempt integer, topic text,
    known_as text
)
LANGUAGE sql STABLE AS $$
    SELECT block.id, block.first_sequence, block.last_sequence, was_open, 1 + (
        SELECT count(*) FROM relay_failures AS f WHERE f.block_id = block.id)::integer, block.topic,
        t.known_as
    FROM partitions AS p JOIN topics AS t ON t.id = p.topic_id
    WHERE p.id = block.partition_id
$$;

-- name: open_cold_block
-- The same for a relay whose next event only the archive has: the block that is still open, else a new one up to
-- up_to. The relay chooses its end, because the database cannot see the events; they have to lie below the low
-- sequence. Raises PS006, PS010, PS013, PS018, PS021.
CREATE OR REPLACE FUNCTION open_cold_block(
    subscription text, consumer text, partition_id bigint, lease_epoch bigint, up_to bigint
) RETURNS TABLE (
    block_id bigint, first_sequence bigint, last_sequence bigint, repeated boolean, attempt integer, topic text,
    known_as text
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner subscriptions%ROWTYPE := require_subscription(subscription);
    block blocks%ROWTYPE;
    was_open boolean;
    start bigint;
    low bigint := (SELECT p.low_sequence FROM partitions AS p WHERE p.id = open_cold_block.partition_id);
BEGIN
    PERFORM commit_durably();
    PERFORM hold_leases(
        owner, consumer, ARRAY[open_cold_block.partition_id], ARRAY[open_cold_block.lease_epoch]);
    PERFORM note_archive_reads(
        subscription, ARRAY[open_cold_block.partition_id], ARRAY[open_cold_block.lease_epoch]);
    SELECT * INTO block FROM open_block_of(owner.id, open_cold_block.partition_id);
    was_open := block.id IS NOT NULL;
    start := current_position(owner.id, open_cold_block.partition_id) + 1;
    PERFORM require_readable(open_cold_block.partition_id, GREATEST(low, start), owner.id);
    IF NOT was_open THEN
        IF NOT COALESCE(up_to >= start AND up_to < low, false) THEN
            PERFORM refuse('PS006', format('a block from sequence %s to %s, and the low sequence is %s', start, up_to,
                                           low),
                           'What the database has is sent in blocks of open_block.');
        END IF;
        block := record_block(
            owner.id, open_cold_block.partition_id, open_cold_block.lease_epoch, start, up_to);
    END IF;
    RETURN QUERY SELECT b.* FROM block_row(block, was_open) AS b;
END
$$;

-- name: dead_letters_between
-- The sequences of a range of a partition that are dead letters of a subscription; none for a partition that the
-- subscription does not read.
CREATE OR REPLACE FUNCTION dead_letters_between(
    subscription text, partition_id bigint, first_sequence bigint, last_sequence bigint
) RETURNS TABLE (sequence bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    RETURN QUERY
    SELECT d.sequence
    FROM dead_letters AS d JOIN subscriptions AS s ON s.id = d.subscription_id
    WHERE s.name = dead_letters_between.subscription AND d.partition_id = dead_letters_between.partition_id
      AND d.sequence BETWEEN dead_letters_between.first_sequence AND dead_letters_between.last_sequence
      AND d.history = current_history() AND NOT reads_hidden(s.id)
    ORDER BY d.sequence;
END
$$;

-- name: read_block
-- The events of a block, without those that are already dead letters of this subscription; no events for a
-- partition that the subscription does not read.
CREATE OR REPLACE FUNCTION read_block(
    subscription text, partition_id bigint, first_sequence bigint, last_sequence bigint
)
RETURNS TABLE (
    sequence bigint, event_id uuid, key text, type text, content_type text, headers jsonb, payload bytea,
    created_at timestamptz, sequenced_at timestamptz
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT
SET enable_seqscan = off SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT r.*
    FROM read_log(read_block.partition_id, read_block.first_sequence,
                  (read_block.last_sequence - read_block.first_sequence + 1)::integer) AS r
    WHERE EXISTS (
        SELECT FROM leases AS l JOIN subscriptions AS s ON s.id = l.subscription_id
        WHERE s.name = read_block.subscription AND l.partition_id = read_block.partition_id AND NOT reads_hidden(s.id))
      AND NOT EXISTS (
        SELECT FROM dead_letters AS d JOIN subscriptions AS s ON s.id = d.subscription_id
        WHERE s.name = read_block.subscription AND d.partition_id = read_block.partition_id
          AND d.sequence = r.sequence AND d.history = current_history())
    ORDER BY r.sequence;
END
$$;

-- name: relay_failure
-- Counts a failed attempt of the open block and returns how many seconds to wait: base doubled for each attempt, up
-- to a bound, reduced at random by up to a half. Raises PS010, PS013.
CREATE OR REPLACE FUNCTION relay_failure(
    subscription text, consumer text, partition_id bigint, lease_epoch bigint, block_id bigint, error text,
    base_seconds double precision DEFAULT 1, max_seconds double precision DEFAULT 300
) RETURNS double precision
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner subscriptions%ROWTYPE := require_subscription(subscription);
    failed integer;
BEGIN
    PERFORM commit_durably();
    PERFORM hold_leases(owner, consumer, ARRAY[relay_failure.partition_id], ARRAY[relay_failure.lease_epoch]);
    INSERT INTO relay_failures AS f (block_id, attempt, error)
    SELECT relay_failure.block_id, 1 + count(*), left(relay_failure.error, 2000)
    FROM relay_failures AS e
    WHERE e.block_id = relay_failure.block_id
    RETURNING attempt INTO failed;
    RETURN LEAST(base_seconds * 2 ^ LEAST(failed - 1, 40), max_seconds) * (1 - random() / 2);
END
$$;

-- name: dead_letter
-- Gives up one event for this subscription: a copy with the reason is kept, and the block continues without the
-- event. An event that only the archive has is brought by bring_letter, in the same transaction. A second call changes
-- nothing. Raises PS006, PS010, PS013.
CREATE OR REPLACE FUNCTION dead_letter(
    subscription text, consumer text, partition_id bigint, lease_epoch bigint, sequence bigint, reason text
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT
SET enable_seqscan = off SET jit = off AS $$
DECLARE
    owner subscriptions%ROWTYPE := require_subscription(subscription);
BEGIN
    PERFORM commit_durably();
    PERFORM hold_leases(owner, consumer, ARRAY[dead_letter.partition_id], ARRAY[dead_letter.lease_epoch]);
    INSERT INTO dead_letters (
        subscription_id, partition_id, sequence, history, event_id, key, type, content_type, headers, payload,
        created_at, reason)
    SELECT owner.id, dead_letter.partition_id, r.sequence, current_history(), r.event_id, r.key, r.type, r.content_type,
           r.headers, r.payload, r.created_at,
           CASE WHEN is_tombstone(r.payload, r.headers) THEN '' ELSE left(dead_letter.reason, 2000) END
    FROM read_log(dead_letter.partition_id, dead_letter.sequence, 1) AS r
    ON CONFLICT DO NOTHING;
    UPDATE dead_letters AS d SET reason = left(dead_letter.reason, 2000)
    WHERE d.subscription_id = owner.id AND d.partition_id = dead_letter.partition_id
      AND d.sequence = dead_letter.sequence AND d.history = current_history() AND d.reason = 'read from the archive'
      AND NOT is_tombstone(d.payload, d.headers);
END
$$;

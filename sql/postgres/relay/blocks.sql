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
    SELECT * INTO block FROM find_open_block(owner.id, open_block.partition_id);
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
    SELECT * INTO block FROM find_open_block(owner.id, open_cold_block.partition_id);
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

-- name: read_block
-- The events of a block, without those that are already dead letters of this subscription, or that its sink is not to
-- get (leave_out); no events for a partition that the subscription does not read.
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
      AND NOT EXISTS (
        SELECT FROM left_out AS o JOIN subscriptions AS s ON s.id = o.subscription_id
        WHERE s.name = read_block.subscription AND o.partition_id = read_block.partition_id
          AND r.sequence BETWEEN o.first_sequence AND o.last_sequence)
    ORDER BY r.sequence;
END
$$;

-- name: resolve_block
-- Ends the open block of a partition when its sink cannot tell whether it holds it: was_sent says that it does, so the
-- position moves past the block; otherwise the record of the block is removed and its events are sent as new ones.
-- Raises lease_epoch and takes the lease from its holder. Returns the new position. Raises PS002, PS005, PS006, PS013,
-- PS018, PS021, PS042.
CREATE OR REPLACE FUNCTION resolve_block(subscription text, topic text, partition integer, was_sent boolean)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner subscriptions%ROWTYPE := require_subscription(subscription);
    source_id bigint := require_partition(topic, partition);
    present leases%ROWTYPE;
    block blocks%ROWTYPE;
BEGIN
    PERFORM commit_durably();
    PERFORM require_stream(owner);
    PERFORM require_read_committed('resolve_block()');
    PERFORM FROM topics AS t WHERE t.address = resolve_block.topic FOR NO KEY UPDATE;
    SELECT * INTO present FROM leases AS l
    WHERE l.subscription_id = owner.id AND l.partition_id = source_id
    FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM refuse_unread(subscription, topic);
    END IF;
    SELECT * INTO block FROM find_open_block(owner.id, source_id);
    IF block.id IS NULL OR was_sent IS NULL THEN
        PERFORM refuse('PS006', format('no block of "%s" partition %s is open', topic, partition),
                       'Nothing was changed.');
    END IF;
    IF was_sent THEN
        RETURN move_position(present, (block.last_sequence + 1)::text);
    END IF;
    DELETE FROM blocks AS b WHERE b.id = block.id;
    RETURN move_position(present, block.first_sequence::text);
END
$$;

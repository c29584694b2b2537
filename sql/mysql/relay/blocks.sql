-- name: open_block
-- The block that a relay is about to send, recorded before it is sent, and fenced. It is the block that is still
-- open, else a new one of at most max_events and max_bytes of payload (but at least one event). No row when there is
-- nothing to send. attempt counts from 1. topic is the topic's address when the block was recorded, known_as the name
-- by which sinks know the topic. Raises PS010, PS013, PS016, PS018, PS021.
CREATE PROCEDURE open_block(
    subscription LONGTEXT, consumer VARCHAR(255), partition_id BIGINT, lease_epoch BIGINT, max_events INT,
    max_bytes BIGINT
)
BEGIN
    DECLARE owner_id, start, last, block BIGINT;
    DECLARE was_open, is_below BOOLEAN;
    {{on error: CALL undo_call()}}
    CALL begin_call('open_block()');
    CALL require_subscription(subscription, owner_id);
    CALL hold_leases(owner_id, consumer, JSON_ARRAY(partition_id), JSON_ARRAY(lease_epoch));
    SET start = current_position(owner_id, partition_id) + 1;
    CALL find_open_block(owner_id, partition_id, start, block);
    SET was_open = block IS NOT NULL;
    -- This holds for an open block too: nothing is sent from a stopped partition.
    CALL require_readable(partition_id, start, owner_id, is_below);
    IF is_below THEN
        CALL refuse('PS016',
                    CONCAT('a relay reads nothing below the low sequence, and it is at sequence ', start));
    END IF;
    IF NOT was_open THEN
        CALL find_block_end(partition_id, start, max_events, max_bytes, last);
        IF last IS NOT NULL THEN
            CALL record_block(owner_id, partition_id, lease_epoch, start, last, block);
        END IF;
    END IF;
    CALL block_row(block, was_open);
    CALL end_call();
END;

-- name: open_cold_block
-- The same for a relay whose next event only the archive has: the block that is still open, else a new one up to
-- up_to. The relay chooses its end, because the database cannot see the events; they have to lie below the low
-- sequence. Raises PS006, PS010, PS013, PS018, PS021.
CREATE PROCEDURE open_cold_block(
    subscription LONGTEXT, consumer VARCHAR(255), partition_id BIGINT, lease_epoch BIGINT, up_to BIGINT
)
BEGIN
    DECLARE owner_id, start, low, block BIGINT;
    DECLARE was_open, is_below BOOLEAN;
    {{on error: CALL undo_call()}}
    CALL begin_call('open_cold_block()');
    CALL require_subscription(subscription, owner_id);
    CALL hold_leases(owner_id, consumer, JSON_ARRAY(partition_id), JSON_ARRAY(lease_epoch));
    CALL note_archive_reader(owner_id, partition_id, lease_epoch);
    SET start = current_position(owner_id, partition_id) + 1;
    SELECT MAX(p.low_sequence) INTO low FROM partitions AS p WHERE p.id = partition_id;
    CALL find_open_block(owner_id, partition_id, start, block);
    SET was_open = block IS NOT NULL;
    CALL require_readable(partition_id, GREATEST(low, start), owner_id, is_below);
    IF NOT was_open THEN
        IF NOT COALESCE(up_to >= start AND up_to < low, FALSE) THEN
            CALL refuse('PS006', CONCAT('a block from sequence ', start, ' to ', COALESCE(up_to, 'NULL'),
                                        ', and the low sequence is ', low));
        END IF;
        CALL record_block(owner_id, partition_id, lease_epoch, start, up_to, block);
    END IF;
    CALL block_row(block, was_open);
    CALL end_call();
END;

-- name: read_block
-- The events of a block, without those that are already dead letters of this subscription, or that its sink is not to
-- get (leave_out); no events for a partition that the subscription does not read.
CREATE PROCEDURE read_block(
    subscription LONGTEXT, partition_id BIGINT, first_sequence BIGINT, last_sequence BIGINT
)
READS SQL DATA
BEGIN
    DECLARE present INT;
    DECLARE owner_id BIGINT;
    CALL refuse_serializable('read_block()');
    SELECT MAX(h.history) INTO present FROM histories AS h;
    SELECT MAX(s.id) INTO owner_id
    FROM subscriptions AS s JOIN leases AS l ON l.subscription_id = s.id
    WHERE s.name_hash = UNHEX(SHA2(subscription, 256)) AND l.partition_id = partition_id
      AND NOT reads_hidden(s.id);
    SELECT e.sequence,
           LOWER(INSERT(INSERT(INSERT(INSERT(HEX(e.event_id), 21, 0, '-'), 17, 0, '-'), 13, 0, '-'), 9, 0, '-'))
               AS event_id,
           e.`key`, e.type, e.content_type, e.headers, e.payload, e.created_at, e.sequenced_at
    FROM logged_events AS e
    WHERE owner_id IS NOT NULL AND e.partition_id = partition_id AND e.first_sequence >= (
          SELECT MAX(f.first_sequence) FROM chunks AS f
          WHERE f.partition_id = partition_id AND f.first_sequence <= first_sequence)
      AND e.first_sequence <= last_sequence AND e.sequence BETWEEN first_sequence AND last_sequence
      AND NOT EXISTS (
        SELECT * FROM dead_letters AS d FORCE INDEX (PRIMARY)
        WHERE d.subscription_id = owner_id AND d.partition_id = e.partition_id AND d.sequence = e.sequence
          AND d.history = present)
      AND NOT EXISTS (
        SELECT * FROM left_out AS o FORCE INDEX (PRIMARY)
        WHERE o.subscription_id = owner_id AND o.partition_id = e.partition_id
          AND e.sequence BETWEEN o.first_sequence AND o.last_sequence)
    ORDER BY e.sequence;
END;

-- name: resolve_block
-- Ends the open block of a partition when its sink cannot tell whether it holds it: was_sent says that it does, so the
-- position moves past the block; otherwise the record of the block is removed and its events are sent as new ones.
-- Raises lease_epoch and takes the lease from its holder. Returns the new position. Raises PS002, PS005, PS006, PS013,
-- PS018, PS021, PS042.
CREATE PROCEDURE resolve_block(subscription LONGTEXT, topic LONGTEXT, `partition` INT, was_sent BOOLEAN)
BEGIN
    DECLARE owner_id, topic_id, source_id, block, next_sequence, wanted BIGINT;
    DECLARE partitions INT;
    {{on error: CALL undo_call()}}
    CALL begin_call('resolve_block()');
    CALL require_read_committed('resolve_block()');
    CALL require_subscription(subscription, owner_id);
    CALL require_stream(owner_id);
    CALL lock_topic(topic, 'read', topic_id, partitions);
    CALL require_partition(topic, `partition`, source_id);
    CALL require_reader(owner_id, topic_id, subscription, topic);
    CALL find_open_block(owner_id, source_id, current_position(owner_id, source_id) + 1, block);
    IF block IS NULL OR was_sent IS NULL THEN
        CALL refuse('PS006', CONCAT('no block of "', topic, '" partition ', `partition`, ' is open'));
    END IF;
    SELECT MAX(IF(was_sent, b.last_sequence + 1, b.first_sequence)) INTO next_sequence
    FROM blocks AS b WHERE b.id = block;
    DELETE b FROM blocks AS b WHERE b.id = block AND NOT was_sent;
    CALL move_position(owner_id, source_id, next_sequence, wanted);
    SELECT wanted AS position;
    CALL end_call();
END;

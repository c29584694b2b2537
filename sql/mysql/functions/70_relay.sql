-- name: find_open_block
-- The block of a partition that was recorded and whose end is not committed yet; NULL when there is none.
CREATE PROCEDURE find_open_block(owner_id BIGINT, part_id BIGINT, start BIGINT, OUT block BIGINT)
READS SQL DATA
BEGIN
    SELECT MAX(newest.id) INTO block
    FROM (
        SELECT b.id, b.first_sequence
        FROM blocks AS b FORCE INDEX (blocks_newest)
        WHERE b.subscription_id = owner_id AND b.partition_id = part_id
        ORDER BY b.id DESC
        LIMIT 1
    ) AS newest
    WHERE newest.first_sequence = start;
END;

-- name: find_block_end
-- Where the next block of a partition ends: at most max_events and max_bytes of payload, but at least one
-- event; NULL when there is no event.
CREATE PROCEDURE find_block_end(part_id BIGINT, start BIGINT, max_events INT, max_bytes BIGINT, OUT last BIGINT)
READS SQL DATA
BEGIN
    DECLARE wanted INT DEFAULT LEAST(GREATEST(COALESCE(max_events, 1), 1), 100000);
    SELECT MAX(r.sequence) INTO last
    FROM (
        SELECT e.sequence, SUM(LENGTH(e.payload)) OVER (ORDER BY e.sequence) AS bytes
        FROM logged_events AS e
        WHERE e.partition_id = part_id AND e.first_sequence < start + wanted AND e.first_sequence >= (
              SELECT MAX(f.first_sequence) FROM chunks AS f
              WHERE f.partition_id = part_id AND f.first_sequence <= start)
          AND e.sequence >= start AND e.sequence < start + wanted
    ) AS r
    WHERE r.bytes <= max_bytes OR r.sequence = start;
END;

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
    CALL find_subscription(subscription, owner_id);
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

-- name: record_block
-- Records a new block of a partition.
CREATE PROCEDURE record_block(
    owner_id BIGINT, part_id BIGINT, lease_epoch BIGINT, first_sequence BIGINT, last_sequence BIGINT, OUT block BIGINT
)
BEGIN
    INSERT INTO blocks (subscription_id, partition_id, first_sequence, last_sequence, lease_epoch, topic)
    SELECT owner_id, p.id, first_sequence, last_sequence, lease_epoch, t.address
    FROM partitions AS p JOIN topics AS t ON t.id = p.topic_id
    WHERE p.id = part_id;
    SET block = LAST_INSERT_ID();
END;

-- name: block_row
-- Returns a block as open_block does.
CREATE PROCEDURE block_row(block BIGINT, was_open BOOLEAN)
READS SQL DATA
BEGIN
    SELECT b.id AS block_id, b.first_sequence, b.last_sequence, was_open AS repeated,
           1 + (SELECT COUNT(*) FROM relay_failures AS f WHERE f.block_id = b.id) AS attempt, b.topic,
           t.known_as
    FROM blocks AS b JOIN partitions AS p ON p.id = b.partition_id JOIN topics AS t ON t.id = p.topic_id
    WHERE b.id = block;
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
    CALL find_subscription(subscription, owner_id);
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

-- name: dead_letters_between
-- The sequences of a range of a partition that are dead letters of a subscription; none for a partition that the
-- subscription does not read.
CREATE PROCEDURE dead_letters_between(
    subscription LONGTEXT, partition_id BIGINT, first_sequence BIGINT, last_sequence BIGINT
)
READS SQL DATA
BEGIN
    DECLARE present INT;
    DECLARE owner_id BIGINT;
    CALL refuse_serializable('dead_letters_between()');
    SELECT MAX(h.history) INTO present FROM histories AS h;
    SELECT MAX(s.id) INTO owner_id
    FROM subscriptions AS s
    WHERE s.name_hash = UNHEX(SHA2(subscription, 256)) AND NOT reads_hidden(s.id);
    SELECT d.sequence
    FROM dead_letters AS d FORCE INDEX (PRIMARY)
    WHERE d.subscription_id = owner_id AND d.partition_id = partition_id
      AND d.sequence BETWEEN first_sequence AND last_sequence AND d.history = present
    ORDER BY d.sequence;
END;

-- name: read_block
-- The events of a block, without those that are already dead letters of this subscription; no events for a
-- partition that the subscription does not read.
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
    ORDER BY e.sequence;
END;

-- name: relay_failure
-- Counts a failed attempt of the open block and returns how many seconds to wait: base doubled for each attempt, up
-- to a bound, reduced at random by up to a half. Raises PS010, PS013, PS018.
CREATE PROCEDURE relay_failure(
    subscription LONGTEXT, consumer VARCHAR(255), partition_id BIGINT, lease_epoch BIGINT, block_id BIGINT, error TEXT,
    base_seconds DOUBLE, max_seconds DOUBLE
)
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE failed INT;
    {{on error: CALL undo_call()}}
    CALL begin_call('relay_failure()');
    CALL find_subscription(subscription, owner_id);
    CALL hold_leases(owner_id, consumer, JSON_ARRAY(partition_id), JSON_ARRAY(lease_epoch));
    SELECT 1 + COUNT(*) INTO failed FROM relay_failures AS f WHERE f.block_id = block_id;
    INSERT INTO relay_failures (block_id, attempt, error) VALUES (block_id, failed, LEFT(error, 2000));
    SELECT LEAST(base_seconds * POW(2, LEAST(failed - 1, 40)), max_seconds) * (1 - RAND() / 2) AS wait_seconds;
    CALL end_call();
END;

-- name: dead_letter
-- Gives up one event for this subscription: a copy with the reason is kept, and the block continues without the
-- event. An event that only the archive has is brought by bring_letter, in the same transaction. A second call changes
-- nothing. Raises PS010, PS013, PS018.
CREATE PROCEDURE dead_letter(
    subscription LONGTEXT, consumer VARCHAR(255), partition_id BIGINT, lease_epoch BIGINT, sequence BIGINT, reason TEXT
)
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE present INT;
    {{on error: CALL undo_call()}}
    CALL begin_call('dead_letter()');
    SELECT MAX(h.history) INTO present FROM histories AS h;
    CALL find_subscription(subscription, owner_id);
    CALL hold_leases(owner_id, consumer, JSON_ARRAY(partition_id), JSON_ARRAY(lease_epoch));
    INSERT INTO dead_letters (
        subscription_id, partition_id, sequence, history, event_id, `key`, type, content_type, headers, payload,
        created_at, reason)
    SELECT owner_id, e.partition_id, e.sequence, present, e.event_id, e.`key`, e.type, e.content_type, e.headers,
           e.payload, e.created_at, IF(is_tombstone(LENGTH(e.payload), e.headers), '', LEFT(reason, 2000))
    FROM logged_events AS e
    WHERE e.partition_id = partition_id AND e.sequence = sequence AND e.first_sequence = (
          SELECT MAX(f.first_sequence) FROM chunks AS f
          WHERE f.partition_id = partition_id AND f.first_sequence <= sequence)
      AND NOT EXISTS (
        SELECT * FROM dead_letters AS d FORCE INDEX (PRIMARY)
        WHERE d.subscription_id = owner_id AND d.partition_id = e.partition_id AND d.sequence = e.sequence
          AND d.history = present);
    UPDATE dead_letters AS d FORCE INDEX (PRIMARY) SET d.reason = LEFT(reason, 2000)
    WHERE d.subscription_id = owner_id AND d.partition_id = partition_id AND d.sequence = sequence
      AND d.history = present AND d.reason = 'read from the archive'
      AND NOT is_tombstone(LENGTH(d.payload), d.headers);
    CALL end_call();
END;

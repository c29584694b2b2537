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
    CALL require_subscription(subscription, owner_id);
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
    DECLARE owner_id, letter BIGINT;
    DECLARE present INT;
    DECLARE is_fresh BOOLEAN;
    DECLARE id_before BIGINT DEFAULT LAST_INSERT_ID();
    {{on error: CALL undo_call(); DO LAST_INSERT_ID(id_before)}}
    CALL begin_call('dead_letter()');
    SELECT MAX(h.history) INTO present FROM histories AS h;
    CALL require_subscription(subscription, owner_id);
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
    SET is_fresh = ROW_COUNT() > 0;
    UPDATE dead_letters AS d FORCE INDEX (PRIMARY) SET d.reason = LEFT(reason, 2000)
    WHERE d.subscription_id = owner_id AND d.partition_id = partition_id AND d.sequence = sequence
      AND d.history = present AND d.reason = 'read from the archive'
      AND NOT is_tombstone(LENGTH(d.payload), d.headers);
    IF is_fresh OR ROW_COUNT() > 0 THEN
        SELECT MAX(d.id) INTO letter
        FROM dead_letters AS d FORCE INDEX (PRIMARY)
        WHERE d.subscription_id = owner_id AND d.partition_id = partition_id AND d.sequence = sequence
          AND d.history = present;
        CALL forward_letters(owner_id, JSON_ARRAY(letter));
    END IF;
    DO LAST_INSERT_ID(id_before);
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

-- name: missing_events
-- What a sink lacks that ends before the position of a relay: how many events of the range are no dead letters, or 0
-- when a person has put the position behind it (subscribe, seek) and nothing was sent since. low_sequence is the first
-- sequence that the database has. No row for a partition that the subscription does not read.
CREATE PROCEDURE missing_events(
    subscription LONGTEXT, partition_id BIGINT, first_sequence BIGINT, last_sequence BIGINT
)
READS SQL DATA
BEGIN
    DECLARE present INT;
    DECLARE owner_id, stands_at BIGINT;
    DECLARE put_by VARCHAR(10);
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    CALL refuse_serializable('missing_events()');
    SELECT MAX(h.history) INTO present FROM histories AS h;
    SELECT MAX(s.id) INTO owner_id
    FROM subscriptions AS s
    WHERE s.name_hash = UNHEX(SHA2(subscription, 256)) AND NOT reads_hidden(s.id);
    SELECT p.position, p.reason INTO stands_at, put_by
    FROM positions AS p FORCE INDEX (positions_newest)
    WHERE p.subscription_id = owner_id AND p.partition_id = partition_id
    ORDER BY p.id DESC
    LIMIT 1;
    SELECT IF(put_by IN ('start', 'seek') AND stands_at = last_sequence, 0, last_sequence - first_sequence + 1 - (
               SELECT COUNT(*) FROM dead_letters AS d FORCE INDEX (PRIMARY)
               WHERE d.subscription_id = owner_id AND d.partition_id = p.id AND d.history = present
                 AND d.sequence BETWEEN first_sequence AND last_sequence)) AS missing,
           p.low_sequence
    FROM partitions AS p
    WHERE p.id = partition_id AND stands_at IS NOT NULL;
END;

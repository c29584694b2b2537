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
-- What of a range of a partition a relay does not send, as ranges up to up_to: dead letters of its subscription, and
-- what its sink is not to get (leave_out). None for a partition that the subscription does not read.
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
    SELECT d.sequence, d.sequence AS up_to
    FROM dead_letters AS d FORCE INDEX (PRIMARY)
    WHERE d.subscription_id = owner_id AND d.partition_id = partition_id
      AND d.sequence BETWEEN first_sequence AND last_sequence AND d.history = present
    UNION ALL
    SELECT o.first_sequence, o.last_sequence
    FROM left_out AS o FORCE INDEX (PRIMARY)
    WHERE o.subscription_id = owner_id AND o.partition_id = partition_id AND o.first_sequence <= last_sequence
      AND o.last_sequence >= first_sequence
    ORDER BY sequence;
END;

-- name: leave_out
-- Records that a sink does not have these events because a person has left them out, fenced: a later gap that contains
-- them does not count them as missing. Raises PS006, PS010, PS013, PS018.
CREATE PROCEDURE leave_out(
    subscription LONGTEXT, consumer VARCHAR(255), partition_id BIGINT, lease_epoch BIGINT, first_sequence BIGINT,
    last_sequence BIGINT
)
BEGIN
    DECLARE owner_id, stands_at, from_sequence, to_sequence BIGINT;
    {{on error: CALL undo_call()}}
    CALL begin_call('leave_out()');
    CALL require_subscription(subscription, owner_id);
    CALL hold_leases(owner_id, consumer, JSON_ARRAY(partition_id), JSON_ARRAY(lease_epoch));
    SET stands_at = current_position(owner_id, partition_id);
    IF NOT COALESCE(first_sequence BETWEEN 1 AND last_sequence AND last_sequence <= stands_at, FALSE) THEN
        CALL refuse('PS006', CONCAT(COALESCE(first_sequence, 'NULL'), ' to ', COALESCE(last_sequence, 'NULL'),
                                    ' cannot be left out at the position ', stands_at));
    END IF;
    SELECT LEAST(first_sequence, COALESCE(MIN(o.first_sequence), first_sequence)),
           GREATEST(last_sequence, COALESCE(MAX(o.last_sequence), last_sequence))
    INTO from_sequence, to_sequence
    FROM left_out AS o FORCE INDEX (PRIMARY)
    WHERE o.subscription_id = owner_id AND o.partition_id = partition_id
      AND o.first_sequence <= last_sequence AND o.last_sequence >= first_sequence;
    DELETE o FROM left_out AS o
    WHERE o.subscription_id = owner_id AND o.partition_id = partition_id
      AND o.first_sequence BETWEEN from_sequence AND to_sequence;
    INSERT INTO left_out (subscription_id, partition_id, first_sequence, last_sequence)
    VALUES (owner_id, partition_id, from_sequence, to_sequence);
    CALL end_call();
END;

-- name: missing_events
-- What a sink lacks that ends before the position of a relay: how many events of the range are neither dead letters nor
-- left out (leave_out). is_put: a person has put the position behind it (subscribe, seek) and nothing was sent since,
-- so all of it is left out. low_sequence is the first sequence that the database has. No row for a partition that the
-- subscription does not read.
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
    SELECT last_sequence - first_sequence + 1 - (
               SELECT COUNT(*) FROM dead_letters AS d FORCE INDEX (PRIMARY)
               WHERE d.subscription_id = owner_id AND d.partition_id = p.id AND d.history = present
                 AND d.sequence BETWEEN first_sequence AND last_sequence
                 AND NOT is_left_out(owner_id, p.id, d.sequence)) - (
               SELECT COALESCE(SUM(LEAST(o.last_sequence, last_sequence) - GREATEST(o.first_sequence, first_sequence)
                                   + 1), 0)
               FROM left_out AS o FORCE INDEX (PRIMARY)
               WHERE o.subscription_id = owner_id AND o.partition_id = p.id AND o.first_sequence <= last_sequence
                 AND o.last_sequence >= first_sequence) AS missing,
           p.low_sequence,
           put_by IN ('start', 'seek') AND stands_at = last_sequence AS is_put
    FROM partitions AS p
    WHERE p.id = partition_id AND stands_at IS NOT NULL;
END;

-- name: stay_put
-- After the commit of a block of which nothing was sent, in the same transaction: if a person had put the position
-- there (subscribe, seek), then that holds on behind the block, and what lies before it is still left out and not
-- lost. Raises PS010, PS013, PS018.
CREATE PROCEDURE stay_put(subscription LONGTEXT, consumer VARCHAR(255), partition_id BIGINT, lease_epoch BIGINT)
BEGIN
    DECLARE owner_id, newest, stands_at BIGINT;
    DECLARE moved_by, put_by VARCHAR(10);
    {{on error: CALL undo_call()}}
    CALL begin_call('stay_put()');
    CALL require_subscription(subscription, owner_id);
    CALL hold_leases(owner_id, consumer, JSON_ARRAY(partition_id), JSON_ARRAY(lease_epoch));
    SELECT p.id, p.position, p.reason INTO newest, stands_at, moved_by
    FROM positions AS p FORCE INDEX (positions_newest)
    WHERE p.subscription_id = owner_id AND p.partition_id = partition_id
    ORDER BY p.id DESC
    LIMIT 1;
    SELECT MAX(p.reason) INTO put_by
    FROM positions AS p
    WHERE p.id = (
        SELECT MAX(o.id) FROM positions AS o FORCE INDEX (positions_newest)
        WHERE o.subscription_id = owner_id AND o.partition_id = partition_id AND o.id < newest);
    IF moved_by = 'commit' AND put_by IN ('start', 'seek') THEN
        INSERT INTO positions (subscription_id, partition_id, position, lease_epoch, reason)
        VALUES (owner_id, partition_id, stands_at, lease_epoch, put_by);
    END IF;
    CALL end_call();
END;

-- name: record_copy
-- Records that a target holds a log epoch, but only when count and checksum of what was read back equal the
-- seal. In layout 1 (NULL: 1) the location is a folder of its own, in layout 2 a file of the table, in which the
-- log epoch begins at first_row (NULL: 0). Raises PS002, PS005, PS006, PS017, PS019.
CREATE PROCEDURE record_copy(
    topic LONGTEXT, `partition` INT, log_epoch INT, target VARCHAR(255), location TEXT, event_count BIGINT,
    checksum TEXT, layout INT, first_row BIGINT
)
BEGIN
    DECLARE source_id, sealed_count BIGINT;
    DECLARE sealed_checksum VARCHAR(200);
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    {{on error: CALL undo_call()}}
    CALL begin_call('record_copy()');
    CALL require_partition_for(topic, `partition`, 'operate', source_id);
    SET layout = COALESCE(layout, 1), first_row = COALESCE(first_row, 0);
    CALL require_place(layout, first_row);
    CALL hold_off_clean(source_id);
    SELECT e.event_count, e.checksum INTO sealed_count, sealed_checksum
    FROM log_epochs AS e WHERE e.partition_id = source_id AND e.log_epoch = log_epoch
    -- An erasure gives the log epoch another checksum: it comes before this, or finds the copy recorded.
    LOCK IN SHARE MODE;
    IF sealed_count IS NULL THEN
        CALL refuse('PS019',
                    CONCAT('partition ', `partition`, ' has no sealed log epoch ', COALESCE(log_epoch, 'NULL')));
    END IF;
    IF NOT (sealed_count <=> event_count AND sealed_checksum <=> checksum) THEN
        CALL refuse('PS017', CONCAT('the copy of log epoch ', log_epoch, ' has ', COALESCE(event_count, 'NULL'),
                                    ' events and ', LEFT(COALESCE(checksum, 'NULL'), 12), '.., the seal says ',
                                    sealed_count, ' and ', LEFT(sealed_checksum, 12), '..'));
    END IF;
    DELETE c FROM epoch_copies AS c
    WHERE c.partition_id = source_id AND c.log_epoch = log_epoch AND c.target = target;
    INSERT INTO epoch_copies (partition_id, log_epoch, target, location, state, detail, layout, first_row)
    VALUES (source_id, log_epoch, target, location, 'verified', '', layout, first_row);
    DELETE s FROM suspected_copies AS s
    WHERE s.partition_id = source_id AND s.log_epoch = log_epoch AND s.target = target;
    CALL end_call();
END;

-- name: forget_copy
-- Marks the copy of a log epoch as missing, with the reason; backfill makes it again. Raises PS002, PS005.
CREATE PROCEDURE forget_copy(topic LONGTEXT, `partition` INT, log_epoch INT, target VARCHAR(255), reason TEXT)
BEGIN
    DECLARE source_id BIGINT;
    {{on error: CALL undo_call()}}
    CALL begin_call('forget_copy()');
    CALL require_partition_for(topic, `partition`, 'operate', source_id);
    UPDATE epoch_copies AS c
    SET c.state = 'missing', c.detail = LEFT(reason, 2000), c.changed_at = UTC_TIMESTAMP(6)
    WHERE c.partition_id = source_id AND c.log_epoch = log_epoch AND c.target = target;
    DELETE s FROM suspected_copies AS s
    WHERE s.partition_id = source_id AND s.log_epoch = log_epoch AND s.target = target;
    CALL end_call();
END;

-- name: move_copy
-- Records that a verified copy lies in another file of the same table now: 1 when it still was where the caller
-- says. A run of clean that has read it at its old place does not count it any more. Raises PS002, PS005, PS006.
CREATE PROCEDURE move_copy(
    topic LONGTEXT, `partition` INT, log_epoch INT, target VARCHAR(255), old_location TEXT, location TEXT,
    first_row BIGINT
)
BEGIN
    DECLARE source_id, moved BIGINT;
    {{on error: CALL undo_call()}}
    CALL begin_call('move_copy()');
    CALL require_partition_for(topic, `partition`, 'operate', source_id);
    CALL require_place(2, first_row);
    CALL hold_off_clean(source_id);
    UPDATE epoch_copies AS c
    SET c.location = location, c.first_row = first_row, c.changed_at = UTC_TIMESTAMP(6)
    WHERE c.partition_id = source_id AND c.log_epoch = log_epoch AND c.target = target AND c.layout = 2
      AND c.state = 'verified' AND c.location = old_location;
    SET moved = ROW_COUNT();
    SELECT moved > 0 AS moved;
    CALL end_call();
END;

-- name: copies_of
-- Every copy of a topic's log epochs that was ever recorded: verified, or missing since changed_at
-- for the reason in detail; location, layout and first_row: see record_copy. Raises PS002.
CREATE PROCEDURE copies_of(topic LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE source_id BIGINT;
    CALL refuse_serializable('copies_of()');
    CALL require_topic(topic, source_id);
    SELECT p.number AS `partition`, c.log_epoch, c.target, c.state, c.detail, c.changed_at, c.location, c.layout,
           c.first_row
    FROM partitions AS p JOIN epoch_copies AS c ON c.partition_id = p.id
    WHERE p.topic_id = source_id
    ORDER BY p.number, c.log_epoch, c.target;
END;

-- name: copies_between
-- The recorded copies of a range of a partition's log epochs on a target, each with what its seal says; an index finds
-- them. Raises PS002, PS005.
CREATE PROCEDURE copies_between(
    topic LONGTEXT, `partition` INT, target VARCHAR(255), first_log_epoch INT, last_log_epoch INT
)
READS SQL DATA
BEGIN
    DECLARE source_id BIGINT;
    CALL refuse_serializable('copies_between()');
    CALL require_partition(topic, `partition`, source_id);
    SELECT t.known_as, e.log_epoch, e.first_sequence, e.last_sequence, e.event_count, e.checksum, c.state, c.layout,
           c.location, c.first_row
    FROM log_epochs AS e
    JOIN epoch_copies AS c
        ON c.partition_id = e.partition_id AND c.log_epoch = e.log_epoch AND c.target = target
    JOIN partitions AS p ON p.id = e.partition_id
    JOIN topics AS t ON t.id = p.topic_id
    WHERE e.partition_id = source_id AND e.log_epoch BETWEEN first_log_epoch AND last_log_epoch
    ORDER BY e.log_epoch;
END;

-- name: copies_on
-- The copies on a target that are recorded as verified, of the topics that the login may see: what a target has to hold
-- to be the one that they were written to.
CREATE PROCEDURE copies_on(target VARCHAR(255))
READS SQL DATA
BEGIN
    CALL refuse_serializable('copies_on()');
    SELECT t.known_as, p.number AS `partition`, e.log_epoch, e.event_count, e.last_sequence
    FROM epoch_copies AS c
    JOIN log_epochs AS e ON e.partition_id = c.partition_id AND e.log_epoch = c.log_epoch
    JOIN partitions AS p ON p.id = c.partition_id
    JOIN topics AS t ON t.id = p.topic_id
    WHERE c.target = target AND c.state = 'verified'
      AND (NOT t.restricted AND @penstock_acting IS NULL OR has_right(t.namespace_id, 'any'))
    ORDER BY t.known_as, p.number, e.log_epoch;
END;

-- name: missing_copies
-- The sealed log epochs of a topic of which a target holds no verified copy. Raises PS002.
CREATE PROCEDURE missing_copies(topic LONGTEXT, target VARCHAR(255))
READS SQL DATA
BEGIN
    CALL list_log_epochs('missing_copies()', topic, target, NULL, NULL);
END;

-- name: lost_copies
-- At most max_rows (1 to 10,000) copies that are recorded as missing, since when, and when each log epoch was sealed.
-- The newest loss comes first: older ones that nobody can make again do not hide it. Raises PS006.
CREATE PROCEDURE lost_copies(max_rows INT)
READS SQL DATA
BEGIN
    CALL refuse_serializable('lost_copies()');
    IF NOT COALESCE(max_rows BETWEEN 1 AND 10000, FALSE) THEN
        CALL refuse('PS006', CONCAT('a list of ', COALESCE(max_rows, 'NULL'), ' lost copies: use 1 to 10,000'));
    END IF;
    SELECT t.address AS topic, p.number AS `partition`, c.log_epoch, c.target, c.detail, c.changed_at, e.sealed_at
    FROM epoch_copies AS c
    JOIN log_epochs AS e ON e.partition_id = c.partition_id AND e.log_epoch = c.log_epoch
    JOIN partitions AS p ON p.id = c.partition_id
    JOIN topics AS t ON t.id = p.topic_id
    WHERE c.state = 'missing' AND (NOT t.restricted AND @penstock_acting IS NULL OR has_right(t.namespace_id, 'any'))
    ORDER BY c.changed_at DESC, t.address, p.number, c.log_epoch
    LIMIT max_rows;
END;

-- name: suspect_copy
-- Notes that a reader has found a recorded copy damaged. The copy counts until it is read back: by backfill, by the
-- audit, or by clean before it removes anything. Returns whether this is new. Raises PS002, PS005, PS018.
CREATE PROCEDURE suspect_copy(topic LONGTEXT, `partition` INT, log_epoch INT, target VARCHAR(255), reason LONGTEXT)
BEGIN
    DECLARE source_id, added BIGINT;
    {{on error: CALL undo_call()}}
    CALL begin_call('suspect_copy()');
    CALL require_partition(topic, `partition`, source_id);
    INSERT IGNORE INTO suspected_copies (partition_id, log_epoch, target, reason, suspected_at)
    SELECT c.partition_id, c.log_epoch, c.target, LEFT(COALESCE(reason, ''), 500), UTC_TIMESTAMP(6)
    FROM epoch_copies AS c
    WHERE c.partition_id = source_id AND c.log_epoch = log_epoch AND c.target = target AND c.state = 'verified';
    SET added = ROW_COUNT();
    SELECT added > 0 AS added;
    CALL end_call();
END;

-- name: suspected_copies_of
-- The copies of a topic that readers have found damaged, and that nobody has read back since. Raises PS002.
CREATE PROCEDURE suspected_copies_of(topic LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE source_id BIGINT;
    CALL refuse_serializable('suspected_copies_of()');
    CALL require_topic(topic, source_id);
    SELECT p.number AS `partition`, s.log_epoch, s.target, s.reason, s.suspected_at
    FROM partitions AS p JOIN suspected_copies AS s ON s.partition_id = p.id
    WHERE p.topic_id = source_id
    ORDER BY p.number, s.log_epoch, s.target;
END;

-- name: clear_suspicion
-- A suspected copy was read back, and is what was sealed. Raises PS002, PS005, PS018.
CREATE PROCEDURE clear_suspicion(topic LONGTEXT, `partition` INT, log_epoch INT, target VARCHAR(255))
BEGIN
    DECLARE source_id BIGINT;
    {{on error: CALL undo_call()}}
    CALL begin_call('clear_suspicion()');
    CALL require_partition_for(topic, `partition`, 'operate', source_id);
    DELETE s FROM suspected_copies AS s
    WHERE s.partition_id = source_id AND s.log_epoch = log_epoch AND s.target = target;
    CALL end_call();
END;

-- name: request_backfill
-- Asks for a window of a topic to be brought again: copies on a target (copy), dropped log epochs into SQL (rehydrate),
-- or events into a sink (relay). Both sequences belong to the window, of each partition when none is named; the times
-- choose log epochs by the time at which they were sealed. The ranges are fixed here, so a dry run, which does nothing
-- else, counts what a request would do. A request without anything to do is done at once. Raises PS002, PS005, PS006,
-- PS018.
CREATE PROCEDURE request_backfill(
    topic LONGTEXT, kind VARCHAR(255), target TEXT, `partition` INT, from_sequence BIGINT, to_sequence BIGINT,
    from_time DATETIME(6), to_time DATETIME(6), dry_run BOOLEAN, priority INT, max_attempts INT
)
BEGIN
    DECLARE source_id, asked, events BIGINT;
    DECLARE ranges INT;
    DECLARE moment DATETIME(6) DEFAULT UTC_TIMESTAMP(6);
    {{on error: CALL undo_call()}}
    CALL begin_call('request_backfill()');
    CALL require_read_committed('request_backfill()');
    CALL require_topic_for(topic, 'operate', source_id);
    SET target = COALESCE(target, ''), dry_run = COALESCE(dry_run, FALSE);
    CALL require_request(kind, target, priority, max_attempts);
    CALL require_window(source_id, `partition`, from_sequence, to_sequence, from_time, to_time);
    CALL forget_backfills();
    INSERT INTO backfill_requests (
        kind, topic_id, target, `partition`, from_sequence, to_sequence, from_time, to_time, dry_run, priority, state,
        units, total_events, max_attempts, not_before, error, requested_by, requested_at, changed_at)
    VALUES (kind, source_id, target, `partition`, from_sequence, to_sequence, from_time, to_time, dry_run, priority,
            'waiting', 0, 0, max_attempts, moment, '', principal(), moment, moment);
    SET asked = LAST_INSERT_ID();
    CALL plan_epochs(asked);
    CALL plan_tails(asked);
    SELECT COUNT(*), COALESCE(SUM(u.last_sequence - u.first_sequence + 1), 0) INTO ranges, events
    FROM backfill_units AS u WHERE u.request = asked;
    IF ranges > 100000 THEN
        CALL refuse('PS006', 'a backfill of more than 100,000 log epochs: make several requests of smaller windows');
    END IF;
    IF dry_run THEN
        DELETE u FROM backfill_units AS u WHERE u.request = asked;
    END IF;
    UPDATE backfill_requests AS r
    SET r.units = ranges, r.total_events = events, r.state = IF(dry_run OR ranges = 0, 'done', 'waiting')
    WHERE r.id = asked;
    SELECT asked AS request, ranges AS units, events AS total_events;
    CALL end_call();
END;

-- name: claim_backfill
-- Takes the next request that is due, of those that the login may operate (request names one, kinds, a JSON array,
-- leaves out others): one that waits, or one whose runner has been silent for longer than it said. attempt is the proof
-- that the caller holds it; every call for an older attempt is refused. A request that has no attempt left has failed.
-- No row when nothing is due. Raises PS006, PS018.
CREATE PROCEDURE claim_backfill(run LONGTEXT, lease_seconds DOUBLE, request BIGINT, kinds JSON)
BEGIN
    DECLARE taken BIGINT;
    DECLARE spent, most INT;
    DECLARE searching BOOLEAN DEFAULT TRUE;
    {{on error: CALL undo_call()}}
    CALL begin_call('claim_backfill()');
    CALL require_read_committed('claim_backfill()');
    CALL require_lease_seconds(lease_seconds);
    IF NOT COALESCE(CHAR_LENGTH(run) BETWEEN 1 AND 255, FALSE) THEN
        CALL refuse('PS006', 'a claim of a backfill without the name of its run, of 1 to 255 characters');
    END IF;
    WHILE searching DO
        CALL lock_due_backfill(request, kinds, taken);
        SET searching = FALSE;
        IF taken IS NOT NULL THEN
            SELECT r.attempts, r.max_attempts INTO spent, most FROM backfill_requests AS r WHERE r.id = taken;
            IF spent >= most THEN
                UPDATE backfill_requests AS r
                SET r.state = 'failed', r.changed_at = UTC_TIMESTAMP(6),
                    r.error = CONCAT('the run "', r.run, '" was lost in the last of ', most, ' attempts')
                WHERE r.id = taken;
                SET searching = TRUE;
            END IF;
        END IF;
    END WHILE;
    UPDATE backfill_requests AS r
    SET r.state = 'running', r.run = run, r.attempts = r.attempts + 1, r.changed_at = UTC_TIMESTAMP(6),
        r.deadline = UTC_TIMESTAMP(6) + INTERVAL CAST(lease_seconds * 1000000 AS SIGNED) MICROSECOND
    WHERE r.id = taken;
    SELECT r.id, r.kind, t.address AS topic, t.known_as, r.target, r.attempts AS attempt, r.max_attempts, r.units,
           r.total_events, r.done_units, r.done_events
    FROM backfill_requests AS r JOIN topics AS t ON t.id = r.topic_id
    WHERE r.id = taken;
    CALL end_call();
END;

-- name: extend_backfill
-- Says that the runner is alive: nobody else claims the request for so long. Raises PS006, PS018, PS025.
CREATE PROCEDURE extend_backfill(request BIGINT, attempt INT, lease_seconds DOUBLE)
BEGIN
    {{on error: CALL undo_call()}}
    CALL begin_call('extend_backfill()');
    CALL require_lease_seconds(lease_seconds);
    CALL hold_backfill(request, attempt);
    UPDATE backfill_requests AS r
    SET r.deadline = UTC_TIMESTAMP(6) + INTERVAL CAST(lease_seconds * 1000000 AS SIGNED) MICROSECOND
    WHERE r.id = request;
    CALL end_call();
END;

-- name: backfill_work
-- The ranges of a request that are not done, in order, at most max_units (1 to 1,000), after one that the caller has
-- seen. checksum is the seal's, NULL for what is not sealed or only a part of its log epoch; is_hot says that the
-- database still has the events. Raises PS006, PS018, PS025.
CREATE PROCEDURE backfill_work(
    request BIGINT, attempt INT, max_units INT, after_partition INT, after_sequence BIGINT
)
BEGIN
    {{on error: CALL undo_call()}}
    CALL begin_call('backfill_work()');
    IF NOT COALESCE(max_units BETWEEN 1 AND 1000, FALSE) THEN
        CALL refuse('PS006', CONCAT(COALESCE(max_units, 'NULL'), ' ranges of a backfill at once: use 1 to 1,000'));
    END IF;
    CALL hold_backfill(request, attempt);
    SELECT p.number AS `partition`, u.log_epoch, u.first_sequence, u.last_sequence, e.checksum,
           u.first_sequence >= p.low_sequence AS is_hot
    FROM backfill_units AS u
    JOIN partitions AS p ON p.id = u.partition_id
    LEFT JOIN log_epochs AS e
        ON e.partition_id = u.partition_id AND e.log_epoch = u.log_epoch AND e.first_sequence = u.first_sequence
           AND e.last_sequence = u.last_sequence
    WHERE u.request = request AND u.done_at IS NULL
      AND (p.number > after_partition OR p.number = after_partition AND u.first_sequence > after_sequence)
    ORDER BY u.partition_id, u.first_sequence
    LIMIT max_units;
    CALL end_call();
END;

-- name: progress_backfill
-- Records that a range of a request is done, in the caller's transaction, and that the runner is alive. The same range
-- a second time changes nothing. Returns how many events are done. Raises PS006, PS018, PS025.
CREATE PROCEDURE progress_backfill(
    request BIGINT, attempt INT, `partition` INT, first_sequence BIGINT, lease_seconds DOUBLE
)
BEGIN
    {{on error: CALL undo_call()}}
    CALL begin_call('progress_backfill()');
    CALL require_lease_seconds(lease_seconds);
    CALL hold_backfill(request, attempt);
    CALL record_progress(request, attempt, `partition`, first_sequence, lease_seconds);
    SELECT r.done_events FROM backfill_requests AS r WHERE r.id = request;
    CALL end_call();
END;

-- name: finish_backfill
-- Ends a request of which every range is done. Raises PS006, PS018, PS025.
CREATE PROCEDURE finish_backfill(request BIGINT, attempt INT)
BEGIN
    DECLARE left_units BIGINT;
    {{on error: CALL undo_call()}}
    CALL begin_call('finish_backfill()');
    CALL hold_backfill(request, attempt);
    SELECT COUNT(*) INTO left_units FROM backfill_units AS u WHERE u.request = request AND u.done_at IS NULL;
    IF left_units > 0 THEN
        CALL refuse('PS006', CONCAT(left_units, ' ranges of the backfill request ', request, ' are not done'));
    END IF;
    UPDATE backfill_requests AS r
    SET r.state = 'done', r.error = '', r.deadline = NULL, r.changed_at = UTC_TIMESTAMP(6)
    WHERE r.id = request;
    CALL end_call();
END;

-- name: fail_backfill
-- Ends an attempt that did not do everything. The request waits for its next attempt: base_seconds, doubled with each
-- attempt, at most an hour; after its last attempt it has failed. What is done stays done. Returns the state. A sensor
-- whose run is gone calls it too. Raises PS006, PS018, PS025.
CREATE PROCEDURE fail_backfill(request BIGINT, attempt INT, error TEXT, base_seconds DOUBLE)
BEGIN
    {{on error: CALL undo_call()}}
    CALL begin_call('fail_backfill()');
    IF NOT COALESCE(base_seconds BETWEEN 0 AND 3600, FALSE) THEN
        CALL refuse('PS006', CONCAT('a pause of ', COALESCE(base_seconds, 'NULL'),
                                    ' s after a failed backfill: use 0 to 3,600'));
    END IF;
    CALL hold_backfill(request, attempt);
    UPDATE backfill_requests AS r
    SET r.state = IF(r.attempts < r.max_attempts, 'waiting', 'failed'), r.error = LEFT(COALESCE(error, ''), 2000),
        r.deadline = NULL, r.changed_at = UTC_TIMESTAMP(6),
        r.not_before = UTC_TIMESTAMP(6) + INTERVAL CAST(
            LEAST(base_seconds * POW(2, LEAST(r.attempts - 1, 20)), 3600) * 1000000 AS SIGNED) MICROSECOND
    WHERE r.id = request;
    SELECT r.state FROM backfill_requests AS r WHERE r.id = request;
    CALL end_call();
END;

-- name: cancel_backfill
-- Ends a request that waits or runs: its runner can change nothing more. What is done stays done. Returns whether there
-- was anything to cancel. Raises PS006.
CREATE PROCEDURE cancel_backfill(request BIGINT)
BEGIN
    DECLARE source_id BIGINT;
    DECLARE is_seen, was_open BOOLEAN;
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    {{on error: CALL undo_call()}}
    CALL begin_call('cancel_backfill()');
    SELECT r.topic_id INTO source_id FROM backfill_requests AS r WHERE r.id = request;
    SET is_seen = sees_topic(source_id, 'operate');
    IF NOT is_seen THEN
        CALL refuse('PS006', CONCAT('there is no backfill request ', COALESCE(request, 'NULL')));
    END IF;
    UPDATE backfill_requests AS r
    SET r.state = 'cancelled', r.deadline = NULL, r.changed_at = UTC_TIMESTAMP(6)
    WHERE r.id = request AND r.state IN ('waiting', 'running');
    SET was_open = ROW_COUNT() > 0;
    SELECT was_open AS was_open;
    CALL end_call();
END;

-- name: list_backfills
-- The newest backfill requests of the topics that the login may read, at most max_rows (1 to 10,000); of one topic, in
-- one state, or one request. Raises PS002, PS006.
CREATE PROCEDURE list_backfills(of_topic LONGTEXT, in_state VARCHAR(255), request BIGINT, max_rows INT)
READS SQL DATA
BEGIN
    DECLARE wanted_id BIGINT;
    CALL refuse_serializable('list_backfills()');
    IF of_topic IS NOT NULL THEN
        CALL require_topic(of_topic, wanted_id);
    END IF;
    IF NOT COALESCE(max_rows BETWEEN 1 AND 10000, FALSE) THEN
        CALL refuse('PS006', CONCAT('a list of ', COALESCE(max_rows, 'NULL'),
                                    ' backfill requests: use 1 to 10,000'));
    END IF;
    SELECT r.id, r.kind, t.address AS topic, r.target, r.`partition`, r.from_sequence, r.to_sequence, r.from_time,
           r.to_time, r.dry_run, r.priority, r.state, r.run, r.units, r.total_events, r.done_units, r.done_events,
           r.attempts, r.max_attempts, r.not_before, r.error, r.requested_by, r.requested_at, r.changed_at
    FROM backfill_requests AS r JOIN topics AS t ON t.id = r.topic_id
    WHERE (wanted_id IS NULL OR t.id = wanted_id) AND (in_state IS NULL OR r.state = in_state)
      AND (request IS NULL OR r.id = request)
        AND (NOT t.restricted AND @penstock_acting IS NULL OR has_right(t.namespace_id, 'read'))
    ORDER BY r.id DESC
    LIMIT max_rows;
END;

-- name: backfill_ranges
-- The ranges of a backfill request in order, which attempt has done each, and when; at most max_rows (1 to 10,000),
-- after one that the caller has seen. No row for a request of a topic that the login may not read. Raises PS006.
CREATE PROCEDURE backfill_ranges(request BIGINT, max_rows INT, after_partition INT, after_sequence BIGINT)
READS SQL DATA
BEGIN
    CALL refuse_serializable('backfill_ranges()');
    IF NOT COALESCE(max_rows BETWEEN 1 AND 10000, FALSE) THEN
        CALL refuse('PS006', CONCAT('a list of ', COALESCE(max_rows, 'NULL'), ' ranges: use 1 to 10,000'));
    END IF;
    SELECT p.number AS `partition`, u.log_epoch, u.first_sequence, u.last_sequence, u.done_by, u.done_at
    FROM backfill_requests AS r
    JOIN backfill_units AS u ON u.request = r.id
    JOIN partitions AS p ON p.id = u.partition_id
    WHERE r.id = request AND sees_topic(r.topic_id, 'read')
      AND (p.number > after_partition OR p.number = after_partition AND u.first_sequence > after_sequence)
    ORDER BY u.partition_id, u.first_sequence
    LIMIT max_rows;
END;

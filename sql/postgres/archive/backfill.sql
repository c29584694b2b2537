-- name: request_backfill
-- Asks for a window of a topic to be brought again: copies on a target (copy), dropped log epochs into SQL (rehydrate),
-- or events into a sink (relay). Both sequences belong to the window, of each partition when none is named; the times
-- choose log epochs by the time at which they were sealed. The ranges are fixed here, so a dry run, which does nothing
-- else, counts what a request would do. A request without anything to do is done at once. Raises PS002, PS005, PS006.
CREATE OR REPLACE FUNCTION request_backfill(
    topic text, kind text, target text DEFAULT '', partition integer DEFAULT NULL, from_sequence bigint DEFAULT NULL,
    to_sequence bigint DEFAULT NULL, from_time timestamptz DEFAULT NULL, to_time timestamptz DEFAULT NULL,
    dry_run boolean DEFAULT false, priority integer DEFAULT 0, max_attempts integer DEFAULT 5
) RETURNS TABLE (request bigint, units integer, total_events bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    moment timestamptz := clock_timestamp();
    asked backfill_requests%ROWTYPE;
BEGIN
    PERFORM commit_durably();
    asked.topic_id := require_topic_for(topic, 'operate');
    asked.kind := kind;
    asked.target := COALESCE(target, '');
    asked.partition := partition;
    asked.from_sequence := from_sequence;
    asked.to_sequence := to_sequence;
    asked.from_time := from_time;
    asked.to_time := to_time;
    asked.priority := priority;
    asked.max_attempts := max_attempts;
    PERFORM require_request(asked);
    SELECT count(*), COALESCE(sum(p.last_sequence - p.first_sequence + 1), 0)
    INTO request_backfill.units, request_backfill.total_events
    FROM (SELECT b.* FROM backfill_plan(asked) AS b LIMIT 100001) AS p;
    IF units > 100000 THEN
        PERFORM refuse('PS006', 'a backfill of more than 100,000 log epochs',
                       'Make several requests, each with a smaller window.');
    END IF;
    PERFORM forget_backfills();
    INSERT INTO backfill_requests AS r (
        kind, topic_id, target, partition, from_sequence, to_sequence, from_time, to_time, dry_run, priority, state,
        units, total_events, max_attempts, not_before, requested_by, requested_at, changed_at)
    VALUES (asked.kind, asked.topic_id, asked.target, asked.partition, asked.from_sequence, asked.to_sequence,
            asked.from_time, asked.to_time, COALESCE(dry_run, false), asked.priority, 'waiting', 0, 0,
            asked.max_attempts, moment, principal(), moment, moment)
    RETURNING r.id INTO request_backfill.request;
    IF dry_run IS NOT TRUE THEN
        INSERT INTO backfill_units (request, partition_id, first_sequence, last_sequence, log_epoch)
        SELECT request_backfill.request, b.* FROM backfill_plan(asked) AS b;
        SELECT count(*), COALESCE(sum(u.last_sequence - u.first_sequence + 1), 0)
        INTO request_backfill.units, request_backfill.total_events
        FROM backfill_units AS u WHERE u.request = request_backfill.request;
    END IF;
    UPDATE backfill_requests AS r
    SET units = request_backfill.units, total_events = request_backfill.total_events,
        state = CASE WHEN r.dry_run OR request_backfill.units = 0 THEN 'done' ELSE 'waiting' END
    WHERE r.id = request_backfill.request;
    RETURN NEXT;
END
$$;

-- name: claim_backfill
-- Takes the next request that is due, of those that the login may operate (request names one, kinds leaves out others):
-- one that waits, or one whose runner has been silent for longer than it said. attempt is the proof that the caller
-- holds it; every call for an older attempt is refused. A request that has no attempt left has failed. No row when
-- nothing is due. Raises PS006, PS018.
CREATE OR REPLACE FUNCTION claim_backfill(
    run text, lease_seconds double precision DEFAULT 60, request bigint DEFAULT NULL, kinds text[] DEFAULT NULL
) RETURNS TABLE (
    id bigint, kind text, topic text, known_as text, target text, attempt integer, max_attempts integer, units integer,
    total_events bigint, done_units integer, done_events bigint
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    held interval := require_lease_seconds(lease_seconds);
    moment timestamptz := clock_timestamp();
    taken backfill_requests%ROWTYPE;
BEGIN
    PERFORM commit_durably();
    PERFORM require_read_committed('claim_backfill()');
    IF run IS NULL OR length(run) NOT BETWEEN 1 AND 255 THEN
        PERFORM refuse('PS006', 'a claim of a backfill without the name of its run',
                       'Name it in 1 to 255 characters, so that others can tell who works on what.');
    END IF;
    LOOP
        SELECT r.* INTO taken
        FROM backfill_requests AS r
        WHERE r.state IN ('waiting', 'running')
          -- The longest legal times: what is further ahead was stored before the clock was set back.
          AND ((r.state = 'waiting' AND r.not_before NOT BETWEEN moment AND moment + interval '1 hour')
               OR (r.state = 'running' AND r.deadline NOT BETWEEN moment AND moment + interval '1 day'))
          AND (claim_backfill.request IS NULL OR r.id = claim_backfill.request)
          AND (kinds IS NULL OR r.kind = ANY (kinds)) AND sees_topic(r.topic_id, 'operate')
        ORDER BY r.priority DESC, r.id
        LIMIT 1
        FOR NO KEY UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            RETURN;
        END IF;
        EXIT WHEN taken.attempts < taken.max_attempts;
        UPDATE backfill_requests AS r
        SET state = 'failed', changed_at = moment,
            error = format('the run "%s" was lost in the last of %s attempts', taken.run, taken.max_attempts)
        WHERE r.id = taken.id;
    END LOOP;
    UPDATE backfill_requests AS r
    SET state = 'running', run = claim_backfill.run, attempts = taken.attempts + 1, deadline = moment + held,
        changed_at = moment
    WHERE r.id = taken.id;
    RETURN QUERY
    SELECT r.id, r.kind, t.address, t.known_as, r.target, r.attempts, r.max_attempts, r.units, r.total_events,
           r.done_units, r.done_events
    FROM backfill_requests AS r JOIN topics AS t ON t.id = r.topic_id
    WHERE r.id = taken.id;
END
$$;

-- name: extend_backfill
-- Says that the runner is alive: nobody else claims the request for so long. Raises PS006, PS018, PS025.
CREATE OR REPLACE FUNCTION extend_backfill(request bigint, attempt integer, lease_seconds double precision DEFAULT 60)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    held interval := require_lease_seconds(lease_seconds);
BEGIN
    PERFORM hold_backfill(request, attempt);
    UPDATE backfill_requests AS r SET deadline = clock_timestamp() + held WHERE r.id = request;
END
$$;

-- name: backfill_work
-- The ranges of a request that are not done, in order, at most max_units (1 to 1,000), after one that the caller has
-- seen. checksum is the seal's, NULL for what is not sealed or only a part of its log epoch; is_hot says that the
-- database still has the events. Raises PS006, PS018, PS025.
CREATE OR REPLACE FUNCTION backfill_work(
    request bigint, attempt integer, max_units integer DEFAULT 100, after_partition integer DEFAULT -1,
    after_sequence bigint DEFAULT 0
) RETURNS TABLE (
    partition integer, log_epoch integer, first_sequence bigint, last_sequence bigint, checksum text, is_hot boolean
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    held backfill_requests%ROWTYPE;
BEGIN
    IF max_units IS NULL OR max_units NOT BETWEEN 1 AND 1000 THEN
        PERFORM refuse('PS006', format('%s ranges of a backfill at once', max_units), 'Use 1 to 1,000.');
    END IF;
    held := hold_backfill(request, attempt);
    RETURN QUERY
    SELECT p.number, u.log_epoch, u.first_sequence, u.last_sequence, e.checksum, u.first_sequence >= p.low_sequence
    FROM backfill_units AS u
    JOIN partitions AS p ON p.id = u.partition_id
    LEFT JOIN log_epochs AS e
        ON e.partition_id = u.partition_id AND e.log_epoch = u.log_epoch AND e.first_sequence = u.first_sequence
           AND e.last_sequence = u.last_sequence
    WHERE u.request = held.id AND u.done_at IS NULL
      AND (u.partition_id, u.first_sequence) > ((held.topic_id << 16) | after_partition, after_sequence)
    ORDER BY u.partition_id, u.first_sequence
    LIMIT max_units;
END
$$;

-- name: progress_backfill
-- Records that a range of a request is done, in the caller's transaction, and that the runner is alive. The same range
-- a second time changes nothing. Returns how many events are done. Raises PS006, PS018, PS025.
CREATE OR REPLACE FUNCTION progress_backfill(
    request bigint, attempt integer, partition integer, first_sequence bigint,
    lease_seconds double precision DEFAULT 60
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    kept interval := require_lease_seconds(lease_seconds);
    held backfill_requests%ROWTYPE := hold_backfill(request, attempt);
    unit backfill_units%ROWTYPE;
    finished bigint;
BEGIN
    SELECT u.* INTO unit
    FROM backfill_units AS u JOIN partitions AS p ON p.id = u.partition_id
    WHERE u.request = held.id AND p.number = progress_backfill.partition
      AND u.first_sequence = progress_backfill.first_sequence;
    IF NOT FOUND THEN
        PERFORM refuse('PS006', format('the backfill request %s has no range that begins at sequence %s of '
                                       'partition %s', request, first_sequence, partition),
                       'backfill_work names the ranges.');
    END IF;
    UPDATE backfill_units AS u
    SET done_at = clock_timestamp(), done_by = held.attempts
    WHERE u.request = held.id AND u.partition_id = unit.partition_id AND u.first_sequence = unit.first_sequence
      AND u.done_at IS NULL;
    UPDATE backfill_requests AS r
    SET done_units = r.done_units + FOUND::integer,
        done_events = r.done_events + CASE WHEN FOUND THEN unit.last_sequence - unit.first_sequence + 1 ELSE 0 END,
        deadline = clock_timestamp() + kept, changed_at = clock_timestamp()
    WHERE r.id = held.id
    RETURNING r.done_events INTO finished;
    RETURN finished;
END
$$;

-- name: finish_backfill
-- Ends a request of which every range is done. Raises PS006, PS018, PS025.
CREATE OR REPLACE FUNCTION finish_backfill(request bigint, attempt integer) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    held backfill_requests%ROWTYPE := hold_backfill(request, attempt);
    left_units bigint;
BEGIN
    SELECT count(*) INTO left_units FROM backfill_units AS u WHERE u.request = held.id AND u.done_at IS NULL;
    IF left_units > 0 THEN
        PERFORM refuse('PS006', format('%s ranges of the backfill request %s are not done', left_units, request),
                       'Do them, or end the attempt with fail_backfill.');
    END IF;
    UPDATE backfill_requests AS r
    SET state = 'done', error = '', deadline = NULL, changed_at = clock_timestamp()
    WHERE r.id = held.id;
END
$$;

-- name: fail_backfill
-- Ends an attempt that did not do everything. The request waits for its next attempt: base_seconds, doubled with each
-- attempt, at most an hour; after its last attempt it has failed. What is done stays done. Returns the state. A sensor
-- whose run is gone calls it too. Raises PS006, PS018, PS025.
CREATE OR REPLACE FUNCTION fail_backfill(
    request bigint, attempt integer, error text, base_seconds double precision DEFAULT 30
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    held backfill_requests%ROWTYPE := hold_backfill(request, attempt);
    next_state text := CASE WHEN held.attempts < held.max_attempts THEN 'waiting' ELSE 'failed' END;
BEGIN
    IF base_seconds IS NULL OR NOT (base_seconds BETWEEN 0 AND 3600) THEN
        PERFORM refuse('PS006', format('a pause of %s s after a failed backfill', base_seconds), 'Use 0 to 3,600 s.');
    END IF;
    UPDATE backfill_requests AS r
    SET state = next_state, error = left(COALESCE(fail_backfill.error, ''), 2000), deadline = NULL,
        not_before = clock_timestamp() + make_interval(
            secs => LEAST(base_seconds * 2 ^ LEAST(held.attempts - 1, 20), 3600)),
        changed_at = clock_timestamp()
    WHERE r.id = held.id;
    RETURN next_state;
END
$$;

-- name: cancel_backfill
-- Ends a request that waits or runs: its runner can change nothing more. What is done stays done. Returns whether there
-- was anything to cancel. Raises PS006.
CREATE OR REPLACE FUNCTION cancel_backfill(request bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    found_row backfill_requests%ROWTYPE;
BEGIN
    PERFORM commit_durably();
    SELECT r.* INTO found_row FROM backfill_requests AS r WHERE r.id = request FOR NO KEY UPDATE;
    IF NOT sees_topic(found_row.topic_id, 'operate') THEN
        PERFORM refuse('PS006', format('there is no backfill request %s', request),
                       'penstock backfill list names them.');
    END IF;
    UPDATE backfill_requests AS r
    SET state = 'cancelled', deadline = NULL, changed_at = clock_timestamp()
    WHERE r.id = request AND r.state IN ('waiting', 'running');
    RETURN FOUND;
END
$$;

-- name: list_backfills
-- The newest backfill requests of the topics that the login may read, at most max_rows (1 to 10,000); of one topic, in
-- one state, or one request. Raises PS002, PS006.
CREATE OR REPLACE FUNCTION list_backfills(
    of_topic text DEFAULT NULL, in_state text DEFAULT NULL, request bigint DEFAULT NULL, max_rows integer DEFAULT 100
) RETURNS TABLE (
    id bigint, kind text, topic text, target text, partition integer, from_sequence bigint, to_sequence bigint,
    from_time timestamptz, to_time timestamptz, dry_run boolean, priority integer, state text, run text, units integer,
    total_events bigint, done_units integer, done_events bigint, attempts integer, max_attempts integer,
    not_before timestamptz, error text, requested_by text, requested_at timestamptz, changed_at timestamptz
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    wanted_id bigint;
BEGIN
    IF of_topic IS NOT NULL THEN
        wanted_id := require_topic(of_topic);
    END IF;
    IF max_rows IS NULL OR max_rows NOT BETWEEN 1 AND 10000 THEN
        PERFORM refuse('PS006', format('a list of %s backfill requests', max_rows), 'Use 1 to 10,000.');
    END IF;
    RETURN QUERY
    SELECT r.id, r.kind, t.address, r.target, r.partition, r.from_sequence, r.to_sequence, r.from_time, r.to_time,
           r.dry_run, r.priority, r.state, r.run, r.units, r.total_events, r.done_units, r.done_events, r.attempts,
           r.max_attempts, r.not_before, r.error, r.requested_by, r.requested_at, r.changed_at
    FROM backfill_requests AS r JOIN topics AS t ON t.id = r.topic_id
    WHERE (wanted_id IS NULL OR t.id = wanted_id)
      AND (in_state IS NULL OR r.state = in_state)
      AND (list_backfills.request IS NULL OR r.id = list_backfills.request)
      AND (NOT t.restricted AND (SELECT as_login()) OR has_right(t.namespace_id, 'read'))
    ORDER BY r.id DESC
    LIMIT max_rows;
END
$$;

-- name: backfill_ranges
-- The ranges of a backfill request in order, which attempt has done each, and when; at most max_rows (1 to 10,000),
-- after one that the caller has seen. No row for a request of a topic that the login may not read. Raises PS006.
CREATE OR REPLACE FUNCTION backfill_ranges(
    request bigint, max_rows integer DEFAULT 1000, after_partition integer DEFAULT -1, after_sequence bigint DEFAULT 0
) RETURNS TABLE (
    partition integer, log_epoch integer, first_sequence bigint, last_sequence bigint, done_by integer,
    done_at timestamptz
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    IF max_rows IS NULL OR max_rows NOT BETWEEN 1 AND 10000 THEN
        PERFORM refuse('PS006', format('a list of %s ranges', max_rows), 'Use 1 to 10,000.');
    END IF;
    RETURN QUERY
    SELECT p.number, u.log_epoch, u.first_sequence, u.last_sequence, u.done_by, u.done_at
    FROM backfill_requests AS r
    JOIN backfill_units AS u ON u.request = r.id
    JOIN partitions AS p ON p.id = u.partition_id
    WHERE r.id = backfill_ranges.request AND sees_topic(r.topic_id, 'read')
      AND (u.partition_id, u.first_sequence) > ((r.topic_id << 16) | after_partition, after_sequence)
    ORDER BY u.partition_id, u.first_sequence
    LIMIT max_rows;
END
$$;

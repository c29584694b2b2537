-- name: retention_hold
-- What keeps a log epoch from being dropped, in words; NULL when nothing does. The one place that decides it. Copies
-- count on the targets that the policy names and nowhere else; in a run only those that the run has read back, and that
-- were recorded before it began. Without a run (NULL) it says what a run has to read. Subscriptions count unless their
-- own policy lets nothing wait for so long (max_lag_seconds). Where there is no room for the log epoch (is_over: see
-- epochs_over_limit) neither they nor its age count; holds and copies always do.
CREATE OR REPLACE FUNCTION retention_hold(
    epoch log_epochs, policy retention_policies, run clean_runs, is_over boolean
) RETURNS text
LANGUAGE plpgsql STABLE AS $$
DECLARE
    slowest record;
    held_by text := hold_over(epoch.partition_id, epoch.first_sequence, epoch.last_sequence);
    verified bigint;
    whole bigint;
BEGIN
    SELECT * INTO slowest FROM lowest_position(epoch.partition_id, epoch.sealed_at);
    SELECT count(*), count(r.run) INTO verified, whole
    FROM epoch_copies AS c
    LEFT JOIN clean_readings AS r
        ON r.run = run.run AND r.partition_id = c.partition_id AND r.log_epoch = c.log_epoch AND r.target = c.target
           AND c.changed_at <= run.begun_at
    WHERE c.partition_id = epoch.partition_id AND c.log_epoch = epoch.log_epoch AND c.state = 'verified'
      AND c.target = ANY (policy.targets);
    RETURN CASE
        WHEN policy.topic_id IS NULL THEN 'no retention policy'
        WHEN policy.targets = '{}' AND policy.copies > 0 THEN 'the retention policy names no archive target'
        WHEN held_by IS NOT NULL THEN format('legal hold "%s" covers log epoch %s', left(held_by, 200), epoch.log_epoch)
        WHEN slowest.position < epoch.last_sequence AND NOT is_over
            THEN format('subscription "%s" stands at %s, log epoch %s ends at %s%s', slowest.subscription,
                        slowest.position, epoch.log_epoch, epoch.last_sequence,
                        said_below(slowest.position, epoch.partition_id))
        WHEN verified < policy.copies
            THEN format('log epoch %s has %s of %s verified copies', epoch.log_epoch, verified, policy.copies)
        WHEN epoch.sealed_at + make_interval(secs => policy.minimum_age_seconds) > clock_timestamp() AND NOT is_over
            THEN format('log epoch %s is younger than %s s', epoch.log_epoch, policy.minimum_age_seconds)
        WHEN run.run IS NOT NULL AND whole < policy.copies
            THEN format('of log epoch %s this run has read back %s of %s copies', epoch.log_epoch, whole, policy.copies)
    END;
END
$$;

-- name: said_below
-- What is said of a reader that holds retention although it gets none of the events that it waits for.
CREATE OR REPLACE FUNCTION said_below("position" bigint, partition_id bigint) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN said_below.position < p.low_sequence - 1
                THEN '; it stands below the low sequence, and nobody who holds the partition reads the archive'
                ELSE '' END
    FROM partitions AS p
    WHERE p.id = said_below.partition_id
$$;

-- name: begin_clean
-- Opens a run of clean and returns its token: what is read back under it may be dropped under it, once, by the same
-- login, within six hours. Forgets runs that began more than a week ago; what they dropped stays recorded.
CREATE OR REPLACE FUNCTION begin_clean(topic text) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    source_id bigint := require_topic_for(topic, 'operate');
    token uuid := gen_random_uuid();
    old uuid[] := ARRAY(
        SELECT r.run FROM clean_runs AS r
        WHERE r.begun_at < clock_timestamp() - interval '7 days' FOR UPDATE SKIP LOCKED);
BEGIN
    PERFORM commit_durably();
    -- Waits for whoever records copies: see hold_off_clean.
    PERFORM FROM retention_policies AS r WHERE r.topic_id = source_id FOR NO KEY UPDATE;
    DELETE FROM clean_readings AS r WHERE r.run = ANY (old);
    DELETE FROM clean_runs AS r WHERE r.run = ANY (old);
    INSERT INTO clean_runs (run, topic_id, begun_by, begun_at) VALUES (token, source_id, session_user,
                                                                       clock_timestamp());
    RETURN token;
END
$$;

-- name: log_epochs_due
-- The log epochs of a topic that a run of clean has to read back, oldest first and by turns over the partitions, at
-- most max_epochs (1 to 1,000) of them; targets are those of the policy that hold a verified copy. Some that the limit
-- max_bytes lets go may stay after all: what goes by its age makes room first.
CREATE OR REPLACE FUNCTION log_epochs_due(topic text, max_epochs integer DEFAULT 1000)
RETURNS TABLE (
    partition integer, log_epoch integer, first_sequence bigint, last_sequence bigint, event_count bigint,
    checksum text, sealed_at timestamptz, dropped_at timestamptz, targets text[], known_as text
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    source_id bigint := require_topic_for(topic, 'operate');
    policy retention_policies%ROWTYPE;
    epoch log_epochs%ROWTYPE;
    found_row record;
    held bigint[] := '{}';
    found_epochs integer := 0;
BEGIN
    IF max_epochs IS NULL OR max_epochs NOT BETWEEN 1 AND 1000 THEN
        PERFORM refuse('PS006', format('max_epochs cannot be %s', max_epochs), 'Use 1 to 1,000.');
    END IF;
    SELECT r.* INTO policy FROM retention_policies AS r WHERE r.topic_id = source_id;
    FOR found_row IN
        SELECT e.whole, COALESCE(e.log_epoch <= o.log_epoch, false) AS is_over
        FROM partitions AS p
        LEFT JOIN epochs_over_limit(source_id) AS o ON o.partition_id = p.id
        CROSS JOIN LATERAL (
            SELECT l.partition_id, l.log_epoch, l AS whole FROM log_epochs AS l
            WHERE l.partition_id = p.id AND l.dropped_at IS NULL
            ORDER BY l.log_epoch
            LIMIT max_epochs
        ) AS e
        WHERE p.topic_id = source_id
        ORDER BY row_number() OVER (PARTITION BY e.partition_id ORDER BY e.log_epoch), p.number
    LOOP
        epoch := found_row.whole;
        EXIT WHEN found_epochs = max_epochs;
        CONTINUE WHEN epoch.partition_id = ANY (held);
        IF retention_hold(epoch, policy, NULL, found_row.is_over) IS NOT NULL THEN
            held := held || epoch.partition_id;
            CONTINUE;
        END IF;
        found_epochs := found_epochs + 1;
        RETURN QUERY
        SELECT p.number, epoch.log_epoch, epoch.first_sequence, epoch.last_sequence, epoch.event_count, epoch.checksum,
               epoch.sealed_at, epoch.dropped_at, ARRAY(
                   SELECT c.target FROM epoch_copies AS c
                   WHERE c.partition_id = epoch.partition_id AND c.log_epoch = epoch.log_epoch AND c.state = 'verified'
                     AND c.target = ANY (policy.targets)
                   ORDER BY c.target), t.known_as
        FROM partitions AS p JOIN topics AS t ON t.id = p.topic_id
        WHERE p.id = epoch.partition_id;
    END LOOP;
END
$$;

-- name: require_clean_run
-- A run of clean of this topic that this login has begun and not ended, locked; raises PS017.
CREATE OR REPLACE FUNCTION require_clean_run(token uuid, source_id bigint) RETURNS clean_runs
LANGUAGE plpgsql AS $$
DECLARE
    found_row clean_runs%ROWTYPE;
BEGIN
    SELECT r.* INTO found_row FROM clean_runs AS r WHERE r.run = token FOR UPDATE;
    IF found_row.topic_id IS DISTINCT FROM source_id OR found_row.begun_by IS DISTINCT FROM session_user
            OR found_row.ended_at IS NOT NULL OR found_row.begun_at < clock_timestamp() - interval '6 hours' THEN
        PERFORM refuse('PS017', 'this login has no run of clean open on the topic under this token',
                       'penstock clean begins one, reads the copies back and drops; in SQL: begin_clean, '
                       'log_epochs_due, record_reading, clean.');
    END IF;
    RETURN found_row;
END
$$;

-- name: record_reading
-- Records under the token of a run what was read back of a copy: true when it is what was sealed. A copy that is not,
-- or that has damage, is marked as missing, backfill makes it again, and the run drops nothing at all. Raises PS017,
-- PS019.
CREATE OR REPLACE FUNCTION record_reading(
    topic text, run uuid, partition integer, log_epoch integer, target text, event_count bigint, checksum text,
    damage text DEFAULT ''
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    source_id bigint := require_partition_for(topic, partition, 'operate');
    sealed log_epochs%ROWTYPE := require_epoch(source_id, log_epoch);
    is_whole boolean;
BEGIN
    PERFORM commit_durably();
    PERFORM require_clean_run(run, (SELECT p.topic_id FROM partitions AS p WHERE p.id = source_id));
    is_whole := COALESCE(damage, '') = ''
        AND (sealed.event_count, sealed.checksum) IS NOT DISTINCT FROM (record_reading.event_count,
                                                                        record_reading.checksum);
    IF is_whole THEN
        INSERT INTO clean_readings AS r (run, partition_id, log_epoch, target, event_count, checksum, read_at)
        VALUES (record_reading.run, source_id, record_reading.log_epoch, record_reading.target,
                record_reading.event_count, record_reading.checksum, clock_timestamp())
        ON CONFLICT ON CONSTRAINT clean_readings_pkey DO UPDATE SET read_at = EXCLUDED.read_at;
    ELSE
        UPDATE clean_runs AS r SET damaged = r.damaged + 1 WHERE r.run = record_reading.run;
        UPDATE epoch_copies AS c
        SET state = 'missing', changed_at = clock_timestamp(), detail = left(COALESCE(NULLIF(damage, ''), format(
            '%s events and checksum %s instead of %s and %s', record_reading.event_count, record_reading.checksum,
            sealed.event_count, sealed.checksum)), 2000)
        WHERE c.partition_id = source_id AND c.log_epoch = record_reading.log_epoch
          AND c.target = record_reading.target;
    END IF;
    RETURN is_whole;
END
$$;

-- name: record_skips
-- Records which subscriptions have not read a log epoch that is dropped now, and cannot read the archive: their
-- policies let it not wait for them, or the topic had no room for it: size_then is how many bytes it held, NULL when
-- that was not why. It does not ask the policies again: one may have been changed since the decision.
CREATE OR REPLACE FUNCTION record_skips(
    epoch log_epochs, policy retention_policies, run uuid, size_then bigint
) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO skips AS k (
        subscription_id, partition_id, log_epoch, first_sequence, last_sequence, max_lag_seconds, policy_version, run,
        skipped_at, reason, limit_bytes, size_bytes)
    SELECT s.id, epoch.partition_id, epoch.log_epoch, GREATEST(epoch.first_sequence, p.position + 1),
           epoch.last_sequence, s.max_lag_seconds, policy.version, record_skips.run, clock_timestamp(),
           CASE WHEN size_then IS NULL THEN 'max_lag' ELSE 'max_bytes' END,
           CASE WHEN size_then IS NOT NULL THEN policy.max_bytes END, size_then
    FROM leases AS l
    JOIN subscriptions AS s ON s.id = l.subscription_id
    CROSS JOIN LATERAL (SELECT current_position(l.subscription_id, l.partition_id) AS position OFFSET 0) AS p
    WHERE l.partition_id = epoch.partition_id AND p.position < epoch.last_sequence
      AND NOT can_read_archive(l.subscription_id, l.partition_id)
    ON CONFLICT ON CONSTRAINT skips_pkey DO UPDATE
    SET first_sequence = EXCLUDED.first_sequence, max_lag_seconds = EXCLUDED.max_lag_seconds,
        policy_version = EXCLUDED.policy_version, run = EXCLUDED.run, skipped_at = EXCLUDED.skipped_at,
        reason = EXCLUDED.reason, limit_bytes = EXCLUDED.limit_bytes, size_bytes = EXCLUDED.size_bytes
$$;

-- name: list_skips
-- What retention removed before a subscription had read it, and what a queue passed over: of one subscription, or of
-- all (NULL) that the login may see. unread says whether the subscription still stands before the end of it. reason:
-- max_lag (its policy max_lag_seconds), max_bytes (the topic held size_bytes, and its limit was limit_bytes) or passed
-- (it was gone when the queue came to it).
CREATE OR REPLACE FUNCTION list_skips(subscription text DEFAULT NULL)
RETURNS TABLE (
    subscription text, topic text, partition integer, log_epoch integer, first_sequence bigint, last_sequence bigint,
    max_lag_seconds double precision, skipped_at timestamptz, unread boolean, reason text, limit_bytes bigint,
    size_bytes bigint
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT s.name, t.address, p.number, k.log_epoch, k.first_sequence, k.last_sequence, k.max_lag_seconds, k.skipped_at,
           COALESCE(current_position(k.subscription_id, k.partition_id) < k.last_sequence, false), k.reason,
           k.limit_bytes, k.size_bytes
    FROM skips AS k
    JOIN subscriptions AS s ON s.id = k.subscription_id
    JOIN partitions AS p ON p.id = k.partition_id
    JOIN topics AS t ON t.id = p.topic_id
    WHERE (list_skips.subscription IS NULL OR s.name = list_skips.subscription)
      AND (NOT EXISTS (SELECT FROM namespace_grants) OR NOT reads_hidden(s.id))
    ORDER BY s.name, t.address, p.number, k.log_epoch
$$;

-- name: clean_partition
-- Drops the oldest log epochs of a partition logically, as long as nothing holds them: the low sequence moves up, each
-- drop is recorded. For those up to over_epoch (NULL: for none) the topic, which holds size bytes, has no room. Returns
-- what holds the first epoch that stays. Storage goes later, by the slice: keep_events, droppable_slices and
-- merge_chunks.
CREATE OR REPLACE FUNCTION clean_partition(
    source_id bigint, run clean_runs, over_epoch integer DEFAULT NULL, size bigint DEFAULT NULL
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    policy retention_policies%ROWTYPE;
    epoch log_epochs%ROWTYPE;
    size_then bigint;
    hold text;
BEGIN
    PERFORM FROM partitions AS p WHERE p.id = source_id FOR NO KEY UPDATE;
    SELECT r.* INTO policy FROM retention_policies AS r JOIN partitions AS p ON p.topic_id = r.topic_id
    WHERE p.id = source_id;
    FOR epoch IN
        SELECT * FROM log_epochs AS e
        WHERE e.partition_id = source_id AND e.dropped_at IS NULL
        ORDER BY e.log_epoch
        LIMIT 1000
    LOOP
        hold := retention_hold(epoch, policy, run, false);
        size_then := CASE WHEN hold IS NOT NULL AND epoch.log_epoch <= over_epoch THEN size END;
        IF size_then IS NOT NULL THEN
            hold := retention_hold(epoch, policy, run, true);
        END IF;
        IF hold IS NULL AND run.damaged > 0 THEN
            hold := format('this run has found %s damaged copies, which have to be made again first', run.damaged);
        END IF;
        IF hold IS NOT NULL THEN
            RETURN hold;
        END IF;
        INSERT INTO retention_drops (
            partition_id, log_epoch, first_sequence, last_sequence, lowest_position, copies, policy_version, run,
            limit_bytes, size_bytes)
        SELECT source_id, epoch.log_epoch, epoch.first_sequence, epoch.last_sequence, l.position, policy.copies,
               policy.version, run.run, CASE WHEN size_then IS NOT NULL THEN policy.max_bytes END, size_then
        FROM lowest_position(source_id, NULL) AS l;
        PERFORM record_skips(epoch, policy, run.run, size_then);
        UPDATE log_epochs AS e SET dropped_at = clock_timestamp()
        WHERE e.partition_id = source_id AND e.log_epoch = epoch.log_epoch;
        UPDATE partitions AS p SET low_sequence = epoch.last_sequence + 1 WHERE p.id = source_id;
    END LOOP;
    RETURN 'nothing sealed is left';
END
$$;

-- name: clean
-- Logical retention of a topic, by its policy, of what was read back under the token of this run (begin_clean), which
-- ends here; a row for each partition with its low sequence before and after and what holds the rest. What goes by its
-- age and because everybody has read it goes first; only then what the limit max_bytes still has no room for. Subscribe
-- locks the same topic row, so no new subscription can begin below a drop. Raises PS017.
CREATE OR REPLACE FUNCTION clean(topic text, run uuid DEFAULT NULL)
RETURNS TABLE (partition integer, old_low_sequence bigint, low_sequence bigint, reason text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    source_id bigint := require_topic_for(topic, 'operate');
    this_run clean_runs%ROWTYPE;
    part record;
    lows bigint[];
    reasons text[];
BEGIN
    PERFORM commit_durably();
    PERFORM require_read_committed('clean()');
    PERFORM FROM topics AS t WHERE t.id = source_id FOR NO KEY UPDATE;
    this_run := require_clean_run(run, source_id);
    UPDATE clean_runs AS r SET ended_at = clock_timestamp() WHERE r.run = clean.run;
    FOR part IN SELECT p.id, p.low_sequence FROM partitions AS p WHERE p.topic_id = source_id ORDER BY p.number LOOP
        lows := lows || part.low_sequence;
        reasons := reasons || clean_partition(part.id, this_run);
    END LOOP;
    FOR part IN
        SELECT p.id, p.number, row_number() OVER (ORDER BY p.number) AS place, o.log_epoch, o.size
        FROM partitions AS p LEFT JOIN epochs_over_limit(source_id) AS o ON o.partition_id = p.id
        WHERE p.topic_id = source_id
        ORDER BY p.number
    LOOP
        partition := part.number;
        old_low_sequence := lows[part.place];
        reason := reasons[part.place];
        IF part.log_epoch IS NOT NULL THEN
            reason := clean_partition(part.id, this_run, part.log_epoch, part.size);
        END IF;
        SELECT p.low_sequence INTO clean.low_sequence FROM partitions AS p WHERE p.id = part.id;
        RETURN NEXT;
    END LOOP;
END
$$;

-- name: reads_archive
-- Whether retention need not wait for a subscription on a partition: it can read the archive, and does, because it
-- stands below the low sequence. It does not once it has caught up, or reads what was rehydrated.
CREATE OR REPLACE FUNCTION reads_archive(subscription_id bigint, partition_id bigint) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN can_read_archive(subscription_id, partition_id) AND EXISTS (
        SELECT FROM partitions AS p
        CROSS JOIN LATERAL (SELECT current_position(reads_archive.subscription_id, p.id) AS at) AS stands
        WHERE p.id = reads_archive.partition_id AND stands.at < p.low_sequence - 1
          AND NOT is_rehydrated(p.id, stands.at + 1));
END
$$;

-- name: can_read_archive
-- Whether a subscription misses nothing of a partition that retention drops now: the policy demands copies, and who
-- holds the lease, or held it last, has read the archive (see note_archive_reads).
CREATE OR REPLACE FUNCTION can_read_archive(subscription_id bigint, partition_id bigint) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM archive_readers AS a
        JOIN leases AS l ON l.subscription_id = a.subscription_id AND l.partition_id = a.partition_id
        JOIN partitions AS p ON p.id = a.partition_id
        JOIN retention_policies AS r ON r.topic_id = p.topic_id
        WHERE a.subscription_id = can_read_archive.subscription_id AND a.partition_id = can_read_archive.partition_id
          AND a.lease_epoch = l.lease_epoch AND r.copies > 0);
END
$$;

-- name: lowest_position
-- The subscription that is furthest behind on a partition, and where it stands; NULL when nobody reads the topic. Those
-- whose policy lets nothing wait that was sealed at this time (NULL: of any age) are left out, and those that read the
-- archive. Any other one that stands below the low sequence counts: it gets an error, and it must not miss more than
-- was recorded. With NULL nobody is left out. The sinks of a relay that retains for its quorum stand where it stands.
CREATE OR REPLACE FUNCTION lowest_position(
    partition_id bigint, sealed_at timestamptz, OUT subscription text, OUT "position" bigint
)
LANGUAGE sql STABLE AS $$
    SELECT stands.of_name, stands.at
    FROM leases AS l
    JOIN subscriptions AS s ON s.id = l.subscription_id
    CROSS JOIN LATERAL retained_for(l.subscription_id, l.partition_id) AS stands
    WHERE l.partition_id = lowest_position.partition_id AND (
        lowest_position.sealed_at IS NULL OR NOT reads_archive(l.subscription_id, l.partition_id) AND (
            s.max_lag_seconds = 0
            OR lowest_position.sealed_at > clock_timestamp() - make_interval(secs => s.max_lag_seconds)))
    ORDER BY 2, 1
    LIMIT 1
$$;

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
    held_by text := find_hold_over(epoch.partition_id, epoch.first_sequence, epoch.last_sequence);
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

-- name: require_clean_run
-- A run of clean of this topic that this login has begun and not ended, locked; raises PS017.
CREATE OR REPLACE FUNCTION require_clean_run(token uuid, source_id bigint) RETURNS clean_runs
LANGUAGE plpgsql AS $$
DECLARE
    found_row clean_runs%ROWTYPE;
BEGIN
    SELECT r.* INTO found_row FROM clean_runs AS r WHERE r.run = token FOR UPDATE;
    IF found_row.topic_id IS DISTINCT FROM source_id OR found_row.begun_by IS DISTINCT FROM principal()
            OR found_row.ended_at IS NOT NULL OR found_row.begun_at < clock_timestamp() - interval '6 hours' THEN
        PERFORM refuse('PS017', 'this login has no run of clean open on the topic under this token',
                       'penstock clean begins one, reads the copies back and drops; in SQL: begin_clean, '
                       'log_epochs_due, record_reading, clean.');
    END IF;
    RETURN found_row;
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
      AND NOT is_retained_for_quorum(l.subscription_id, l.partition_id)
    ON CONFLICT ON CONSTRAINT skips_pkey DO UPDATE
    SET first_sequence = EXCLUDED.first_sequence, max_lag_seconds = EXCLUDED.max_lag_seconds,
        policy_version = EXCLUDED.policy_version, run = EXCLUDED.run, skipped_at = EXCLUDED.skipped_at,
        reason = EXCLUDED.reason, limit_bytes = EXCLUDED.limit_bytes, size_bytes = EXCLUDED.size_bytes
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
            partition_id, log_epoch, first_sequence, last_sequence, lowest_position, copies, policy_version,
            dropped_by, run, limit_bytes, size_bytes)
        SELECT source_id, epoch.log_epoch, epoch.first_sequence, epoch.last_sequence, l.position, policy.copies,
               policy.version, principal(), run.run,
               CASE WHEN size_then IS NOT NULL THEN policy.max_bytes END, size_then
        FROM lowest_position(source_id, NULL) AS l;
        PERFORM record_skips(epoch, policy, run.run, size_then);
        UPDATE log_epochs AS e SET dropped_at = clock_timestamp()
        WHERE e.partition_id = source_id AND e.log_epoch = epoch.log_epoch;
        UPDATE partitions AS p SET low_sequence = epoch.last_sequence + 1 WHERE p.id = source_id;
    END LOOP;
    RETURN 'nothing sealed is left';
END
$$;

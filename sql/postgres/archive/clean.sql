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
    INSERT INTO clean_runs (run, topic_id, begun_by, begun_at) VALUES (token, source_id, principal(),
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
      AND ((SELECT no_walls()) OR NOT reads_hidden(s.id))
    ORDER BY s.name, t.address, p.number, k.log_epoch
$$;

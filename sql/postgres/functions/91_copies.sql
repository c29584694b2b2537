-- name: copies_of
-- Every copy of a topic's log epochs that was ever recorded: verified, or missing
-- since changed_at for the reason in detail; location, layout and first_row: see record_copy.
CREATE OR REPLACE FUNCTION copies_of(topic text)
RETURNS TABLE (
    partition integer, log_epoch integer, target text, state text, detail text, changed_at timestamptz,
    location text, layout smallint, first_row bigint
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    RETURN QUERY
    SELECT p.number, c.log_epoch, c.target, c.state, c.detail, c.changed_at, c.location, c.layout, c.first_row
    FROM partitions AS p JOIN epoch_copies AS c ON c.partition_id = p.id
    WHERE p.topic_id = require_topic(copies_of.topic)
    ORDER BY p.number, c.log_epoch, c.target;
END
$$;

-- name: installation_id
-- The id by which archive targets name the database that they belong to, in their markers. It is part of the database
-- and of its backups.
CREATE OR REPLACE FUNCTION installation_id() RETURNS uuid
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT i.id FROM installation AS i
$$;

-- name: target_in_use
-- Whether copies were ever recorded on a target, missing ones included. Then a target that looks empty is unavailable.
CREATE OR REPLACE FUNCTION target_in_use(target text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT EXISTS (SELECT FROM epoch_copies AS c WHERE c.target = target_in_use.target)
$$;

-- name: copies_on
-- The copies on a target that are recorded as verified, of the topics that the login may see: what a target has to hold
-- to be the one that they were written to.
CREATE OR REPLACE FUNCTION copies_on(target text)
RETURNS TABLE (known_as text, partition integer, log_epoch integer, event_count bigint, last_sequence bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT t.known_as, p.number, e.log_epoch, e.event_count, e.last_sequence
    FROM epoch_copies AS c
    JOIN log_epochs AS e ON e.partition_id = c.partition_id AND e.log_epoch = c.log_epoch
    JOIN partitions AS p ON p.id = c.partition_id
    JOIN topics AS t ON t.id = p.topic_id
    WHERE c.target = copies_on.target AND c.state = 'verified'
      AND (NOT t.restricted OR has_right(t.namespace_id, 'any'))
    ORDER BY t.known_as, p.number, e.log_epoch
$$;

-- name: copies_between
-- The recorded copies of a range of a partition's log epochs on a target, each with what its seal says; an index finds
-- them. Raises PS002, PS005.
CREATE OR REPLACE FUNCTION copies_between(
    topic text, partition integer, target text, first_log_epoch integer, last_log_epoch integer
) RETURNS TABLE (
    known_as text, log_epoch integer, first_sequence bigint, last_sequence bigint, event_count bigint, checksum text,
    state text, layout smallint, location text, first_row bigint
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    source_id bigint := require_partition(topic, partition);
BEGIN
    RETURN QUERY
    SELECT t.known_as, e.log_epoch, e.first_sequence, e.last_sequence, e.event_count, e.checksum, c.state, c.layout,
           c.location, c.first_row
    FROM log_epochs AS e
    JOIN epoch_copies AS c
        ON c.partition_id = e.partition_id AND c.log_epoch = e.log_epoch AND c.target = copies_between.target
    JOIN partitions AS p ON p.id = e.partition_id
    JOIN topics AS t ON t.id = p.topic_id
    WHERE e.partition_id = source_id
      AND e.log_epoch BETWEEN copies_between.first_log_epoch AND copies_between.last_log_epoch
    ORDER BY e.log_epoch;
END
$$;

-- name: suspect_copy
-- Notes that a reader has found a recorded copy damaged. The copy counts until it is read back: by backfill, by the
-- audit, or by clean before it removes anything. Returns whether this is new. Raises PS002, PS005.
CREATE OR REPLACE FUNCTION suspect_copy(topic text, partition integer, log_epoch integer, target text, reason text)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    source_id bigint := require_partition(topic, partition);
BEGIN
    INSERT INTO suspected_copies (partition_id, log_epoch, target, reason)
    SELECT c.partition_id, c.log_epoch, c.target, left(COALESCE(suspect_copy.reason, ''), 500)
    FROM epoch_copies AS c
    WHERE c.partition_id = source_id AND c.log_epoch = suspect_copy.log_epoch AND c.target = suspect_copy.target
      AND c.state = 'verified'
    ON CONFLICT DO NOTHING;
    RETURN FOUND;
END
$$;

-- name: suspected_copies_of
-- The copies of a topic that readers have found damaged, and that nobody has read back since. Raises PS002.
CREATE OR REPLACE FUNCTION suspected_copies_of(topic text)
RETURNS TABLE (partition integer, log_epoch integer, target text, reason text, suspected_at timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    RETURN QUERY
    SELECT p.number, s.log_epoch, s.target, s.reason, s.suspected_at
    FROM partitions AS p JOIN suspected_copies AS s ON s.partition_id = p.id
    WHERE p.topic_id = require_topic(suspected_copies_of.topic)
    ORDER BY p.number, s.log_epoch, s.target;
END
$$;

-- name: clear_suspicion
-- A suspected copy was read back, and is what was sealed. Raises PS002, PS005.
CREATE OR REPLACE FUNCTION clear_suspicion(topic text, partition integer, log_epoch integer, target text)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    source_id bigint := require_partition_for(topic, partition, 'operate');
BEGIN
    DELETE FROM suspected_copies AS s
    WHERE s.partition_id = source_id AND s.log_epoch = clear_suspicion.log_epoch AND s.target = clear_suspicion.target;
END
$$;

-- name: log_epochs_sealed_on
-- The log epochs of a topic that were sealed on a day (UTC): the first of each partition and the last. A day lies
-- together in the archive. No row for a partition without any.
CREATE OR REPLACE FUNCTION log_epochs_sealed_on(topic text, sealed_date date)
RETURNS TABLE (partition integer, first_log_epoch integer, last_log_epoch integer)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    RETURN QUERY
    SELECT p.number, min(e.log_epoch), max(e.log_epoch)
    FROM partitions AS p JOIN log_epochs AS e ON e.partition_id = p.id
    WHERE p.topic_id = require_topic(log_epochs_sealed_on.topic)
      AND e.sealed_at >= log_epochs_sealed_on.sealed_date::timestamp AT TIME ZONE 'UTC'
      AND e.sealed_at < (log_epochs_sealed_on.sealed_date + 1)::timestamp AT TIME ZONE 'UTC'
    GROUP BY p.number
    ORDER BY p.number;
END
$$;

-- name: move_copy
-- Records that a verified copy lies in another file of the same table now: true when it still was where the caller
-- says. A run of clean that has read it at its old place does not count it any more. Raises PS002, PS005, PS006.
CREATE OR REPLACE FUNCTION move_copy(
    topic text, partition integer, log_epoch integer, target text, old_location text, location text, first_row bigint
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    source_id bigint := require_partition_for(topic, partition, 'operate');
BEGIN
    PERFORM commit_durably();
    PERFORM require_place(2, first_row);
    PERFORM hold_off_clean(source_id);
    UPDATE epoch_copies AS c
    SET location = move_copy.location, first_row = move_copy.first_row, changed_at = clock_timestamp()
    WHERE c.partition_id = source_id AND c.log_epoch = move_copy.log_epoch AND c.target = move_copy.target
      AND c.layout = 2 AND c.state = 'verified' AND c.location = move_copy.old_location;
    RETURN FOUND;
END
$$;

-- name: require_target_name
-- A name that an archive target can have; raises PS006.
CREATE OR REPLACE FUNCTION require_target_name(target text) RETURNS void
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF target IS NULL OR target !~ '^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$' THEN
        PERFORM refuse('PS006', 'an archive target has a name that is not allowed',
                       'Use up to 63 letters, digits, dots, dashes and underscores.');
    END IF;
END
$$;

-- name: note_target_speed
-- Records how many seconds a copy took on an archive target; NULL: it failed. The first measurement counts as it is,
-- each later one for a fifth of the moving average. A failure doubles the average, to a minute at least and an hour at
-- most. It only decides in which order targets are written. Raises PS006.
CREATE OR REPLACE FUNCTION note_target_speed(target text, seconds double precision) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM require_target_name(target);
    IF NOT COALESCE(seconds BETWEEN 0 AND 31536000, true) THEN
        PERFORM refuse('PS006', format('a copy cannot take %s seconds', seconds),
                       'Use seconds, or NULL for a failure.');
    END IF;
    INSERT INTO target_speeds AS s (target, seconds, failures, measured_at)
    VALUES (note_target_speed.target, LEAST(COALESCE(note_target_speed.seconds, 60), 3600),
            (note_target_speed.seconds IS NULL)::integer, clock_timestamp())
    ON CONFLICT ON CONSTRAINT target_speeds_pkey DO UPDATE
    SET seconds = CASE
            WHEN note_target_speed.seconds IS NULL THEN LEAST(GREATEST(2 * s.seconds, 60), 3600)
            ELSE 0.8 * s.seconds + 0.2 * EXCLUDED.seconds
        END,
        failures = CASE WHEN note_target_speed.seconds IS NULL THEN s.failures + 1 ELSE 0 END,
        measured_at = EXCLUDED.measured_at;
END
$$;

-- name: target_speeds
-- The moving average of the seconds that a copy takes on each archive target, and how many attempts in a row have
-- failed there.
CREATE OR REPLACE FUNCTION target_speeds()
RETURNS TABLE (target text, seconds double precision, failures integer, measured_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT s.target, s.seconds, s.failures, s.measured_at FROM target_speeds AS s ORDER BY s.target
$$;

-- name: record_copy
-- Records that a target holds a log epoch, but only when count and checksum of what was read
-- back equal the seal. In layout 1 the location is a folder of its own, in layout 2 a file of the table, in which
-- the log epoch begins at first_row. Raises PS006, PS017, PS019.
CREATE OR REPLACE FUNCTION record_copy(
    topic text, partition integer, log_epoch integer, target text, location text, event_count bigint, checksum text,
    layout integer DEFAULT 1, first_row bigint DEFAULT 0
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    source_id bigint := require_partition_for(topic, partition, 'operate');
    sealed log_epochs%ROWTYPE;
BEGIN
    PERFORM commit_durably();
    PERFORM require_place(layout, first_row);
    PERFORM hold_off_clean(source_id);
    -- An erasure gives the log epoch another checksum: it comes before this, or finds the copy recorded.
    PERFORM FROM log_epochs AS e
    WHERE e.partition_id = source_id AND e.log_epoch = record_copy.log_epoch
    FOR SHARE;
    sealed := require_epoch(source_id, log_epoch);
    IF (sealed.event_count, sealed.checksum) IS DISTINCT FROM (record_copy.event_count, record_copy.checksum) THEN
        PERFORM refuse('PS017',
                       format('the copy of log epoch %s on "%s" has %s events and checksum %s, the seal says %s and %s',
                              log_epoch, target, event_count, checksum, sealed.event_count, sealed.checksum),
                       'Write the copy again; nothing was recorded.');
    END IF;
    INSERT INTO epoch_copies AS c (partition_id, log_epoch, target, location, state, layout, first_row)
    VALUES (source_id, record_copy.log_epoch, record_copy.target, record_copy.location, 'verified',
            record_copy.layout, record_copy.first_row)
    ON CONFLICT ON CONSTRAINT epoch_copies_pkey DO UPDATE
    SET state = 'verified', location = EXCLUDED.location, layout = EXCLUDED.layout, first_row = EXCLUDED.first_row,
        detail = '', changed_at = clock_timestamp();
    DELETE FROM suspected_copies AS s
    WHERE s.partition_id = source_id AND s.log_epoch = record_copy.log_epoch AND s.target = record_copy.target;
END
$$;

-- name: forget_copy
-- Marks the copy of a log epoch as missing, with the reason; backfill makes it again.
CREATE OR REPLACE FUNCTION forget_copy(topic text, partition integer, log_epoch integer, target text, reason text)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    source_id bigint := require_partition_for(topic, partition, 'operate');
BEGIN
    PERFORM commit_durably();
    UPDATE epoch_copies AS c
    SET state = 'missing', detail = left(forget_copy.reason, 2000), changed_at = clock_timestamp()
    WHERE c.partition_id = source_id AND c.log_epoch = forget_copy.log_epoch AND c.target = forget_copy.target;
    DELETE FROM suspected_copies AS s
    WHERE s.partition_id = source_id AND s.log_epoch = forget_copy.log_epoch AND s.target = forget_copy.target;
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

-- name: copies_of
-- Every copy of a topic's log epochs that was ever recorded: verified, or missing
-- since changed_at for the reason in detail; location, layout and first_row: see record_copy.
CREATE OR REPLACE FUNCTION copies_of(topic text)
RETURNS TABLE (
    partition integer, log_epoch integer, target text, state text, detail text, changed_at timestamptz,
    location text, layout smallint, first_row bigint
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    source_id bigint := require_topic(topic);
BEGIN
    RETURN QUERY
    SELECT p.number, c.log_epoch, c.target, c.state, c.detail, c.changed_at, c.location, c.layout, c.first_row
    FROM partitions AS p JOIN epoch_copies AS c ON c.partition_id = p.id
    WHERE p.topic_id = source_id
    ORDER BY p.number, c.log_epoch, c.target;
END
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
      AND (NOT t.restricted AND (SELECT as_login()) OR has_right(t.namespace_id, 'any'))
    ORDER BY t.known_as, p.number, e.log_epoch
$$;

-- name: missing_copies
-- The sealed log epochs of a topic of which a target holds no verified copy.
CREATE OR REPLACE FUNCTION missing_copies(topic text, target text)
RETURNS TABLE (
    partition integer, log_epoch integer, first_sequence bigint, last_sequence bigint, event_count bigint,
    checksum text, sealed_at timestamptz, dropped_at timestamptz, targets text[], known_as text
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT e.* FROM log_epochs_of(missing_copies.topic) AS e WHERE missing_copies.target <> ALL (e.targets)
$$;

-- name: lost_copies
-- At most max_rows (1 to 10,000) copies that are recorded as missing, since when, and when each log epoch was sealed.
-- The newest loss comes first: older ones that nobody can make again do not hide it. Raises PS006.
CREATE OR REPLACE FUNCTION lost_copies(max_rows integer DEFAULT 1000)
RETURNS TABLE (
    topic text, partition integer, log_epoch integer, target text, detail text, changed_at timestamptz,
    sealed_at timestamptz
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    IF max_rows IS NULL OR max_rows NOT BETWEEN 1 AND 10000 THEN
        PERFORM refuse('PS006', format('a list of %s lost copies', max_rows), 'Use 1 to 10,000.');
    END IF;
    RETURN QUERY
    SELECT t.address, p.number, c.log_epoch, c.target, c.detail, c.changed_at, e.sealed_at
    FROM epoch_copies AS c
    JOIN log_epochs AS e ON e.partition_id = c.partition_id AND e.log_epoch = c.log_epoch
    JOIN partitions AS p ON p.id = c.partition_id
    JOIN topics AS t ON t.id = p.topic_id
    WHERE c.state = 'missing' AND (NOT t.restricted AND (SELECT as_login()) OR has_right(t.namespace_id, 'any'))
    ORDER BY c.changed_at DESC, t.address, p.number, c.log_epoch
    LIMIT max_rows;
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
DECLARE
    source_id bigint := require_topic(topic);
BEGIN
    RETURN QUERY
    SELECT p.number, s.log_epoch, s.target, s.reason, s.suspected_at
    FROM partitions AS p JOIN suspected_copies AS s ON s.partition_id = p.id
    WHERE p.topic_id = source_id
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

-- name: framed
-- Bytes with their length before them, so that no two different rows give the same digest input; NULL has length -1.
CREATE OR REPLACE FUNCTION framed(part bytea) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT COALESCE(int4send(octet_length(part)) || part, int4send(-1))
$$;

-- name: event_digest
-- SHA-256 of everything that an event says, in a form that other languages can repeat byte for byte.
CREATE OR REPLACE FUNCTION event_digest(
    sequence bigint, event_id uuid, key text, type text, content_type text, headers jsonb, payload bytea,
    created_at timestamptz
) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT sha256(
        int8send(sequence) || uuid_send(event_id) || framed(convert_to(key, 'UTF8')) || framed(convert_to(type, 'UTF8'))
        || framed(convert_to(content_type, 'UTF8')) || framed(convert_to(headers::text, 'UTF8')) || framed(payload)
        || int8send((extract(epoch FROM created_at) * 1000000)::bigint))
$$;

-- name: event_size
-- How many bytes an event says. It is what the limit max_bytes of a topic counts.
CREATE OR REPLACE FUNCTION event_size(key text, type text, content_type text, headers jsonb, payload bytea)
RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT (COALESCE(octet_length(key), 0) + COALESCE(octet_length(type), 0) + COALESCE(octet_length(content_type), 0)
            + COALESCE(octet_length(headers::text), 0) + COALESCE(octet_length(payload), 0))::bigint
$$;

-- name: range_checksum
-- The checksum of a range of a partition: SHA-256 over the digests of its events in order, as lower-case hex; and how
-- many bytes they say.
CREATE OR REPLACE FUNCTION range_checksum(
    partition_id bigint, first_sequence bigint, last_sequence bigint, OUT event_count bigint, OUT checksum text,
    OUT event_bytes bigint
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT
SET enable_seqscan = off SET jit = off AS $$
    SELECT count(*), encode(sha256(COALESCE(string_agg(
        event_digest(r.sequence, r.event_id, r.key, r.type, r.content_type, r.headers, r.payload, r.created_at),
        ''::bytea ORDER BY r.sequence), ''::bytea)), 'hex'),
        COALESCE(sum(event_size(r.key, r.type, r.content_type, r.headers, r.payload)), 0)::bigint
    FROM read_log(range_checksum.partition_id, range_checksum.first_sequence,
                  (range_checksum.last_sequence - range_checksum.first_sequence + 1)::integer) AS r
$$;

-- name: sequenced_until
-- A time after which no event of a range was sequenced: that of the newest event in its chunks of the index.
CREATE OR REPLACE FUNCTION sequenced_until(partition_id bigint, first_sequence bigint, last_sequence bigint)
RETURNS timestamptz
LANGUAGE sql STABLE AS $$
    SELECT max(c.sequenced_at)
    FROM chunks AS c
    WHERE c.partition_id = sequenced_until.partition_id AND c.first_sequence <= sequenced_until.last_sequence
      AND c.first_sequence >= COALESCE((
          SELECT b.first_sequence
          FROM chunks AS b
          WHERE b.partition_id = sequenced_until.partition_id AND b.first_sequence <= sequenced_until.first_sequence
          ORDER BY b.first_sequence DESC
          LIMIT 1), 0)
$$;

-- name: seal
-- Seals the next log epoch of a partition: max_events of it, or what is there once its first event was sequenced
-- max_age_seconds ago (0: at once; NULL: by size only). No row when there is nothing to seal. The lock on the partition
-- makes seals follow each other, and an erasure come before or after. Raises PS002, PS005, PS006, PS018.
CREATE OR REPLACE FUNCTION seal(
    topic text, partition integer, max_events integer DEFAULT 100000, max_age_seconds double precision DEFAULT NULL
) RETURNS TABLE (log_epoch integer, first_sequence bigint, last_sequence bigint, event_count bigint, checksum text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    source_id bigint := require_partition_for(topic, partition, 'operate');
    previous log_epochs%ROWTYPE;
    start bigint;
    last bigint;
    oldest timestamptz;
    content record;
BEGIN
    PERFORM commit_durably();
    PERFORM require_read_committed('seal()');
    IF max_events IS NULL OR max_events NOT BETWEEN 1 AND 1000000 THEN
        PERFORM refuse('PS006', format('max_events cannot be %s', max_events), 'Use 1 to 1,000,000.');
    END IF;
    PERFORM FROM partitions AS p WHERE p.id = source_id FOR NO KEY UPDATE;
    SELECT * INTO previous FROM log_epochs AS e WHERE e.partition_id = source_id ORDER BY e.log_epoch DESC LIMIT 1;
    start := COALESCE(previous.last_sequence, 0) + 1;
    last := LEAST(high_watermark(source_id), start + max_events - 1);
    oldest := sequenced_at_of(source_id, start);
    IF last < start OR (last < start + max_events - 1 AND (
            max_age_seconds IS NULL OR oldest + make_interval(secs => max_age_seconds) > clock_timestamp())) THEN
        RETURN;
    END IF;
    SELECT * INTO content FROM range_checksum(source_id, start, last);
    INSERT INTO log_epochs AS e (
        partition_id, log_epoch, first_sequence, last_sequence, event_count, checksum, event_bytes, sequenced_until)
    VALUES (source_id, COALESCE(previous.log_epoch, 0) + 1, start, last, content.event_count, content.checksum,
            content.event_bytes, GREATEST(previous.sequenced_until, sequenced_until(source_id, start, last)));
    RETURN QUERY
    SELECT e.log_epoch, e.first_sequence, e.last_sequence, e.event_count, e.checksum
    FROM log_epochs AS e
    WHERE e.partition_id = source_id AND e.first_sequence = start;
END
$$;

-- name: log_epochs_of
-- The sealed log epochs of a topic, with the targets that hold a verified copy; known_as: see describe_topic.
CREATE OR REPLACE FUNCTION log_epochs_of(topic text)
RETURNS TABLE (
    partition integer, log_epoch integer, first_sequence bigint, last_sequence bigint, event_count bigint,
    checksum text, sealed_at timestamptz, dropped_at timestamptz, targets text[], known_as text
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    RETURN QUERY
    SELECT p.number, e.log_epoch, e.first_sequence, e.last_sequence, e.event_count, e.checksum, e.sealed_at,
           e.dropped_at, ARRAY(
               SELECT c.target FROM epoch_copies AS c
               WHERE c.partition_id = e.partition_id AND c.log_epoch = e.log_epoch AND c.state = 'verified'
               ORDER BY c.target), t.known_as
    FROM partitions AS p JOIN log_epochs AS e ON e.partition_id = p.id JOIN topics AS t ON t.id = p.topic_id
    WHERE p.topic_id = require_topic(log_epochs_of.topic)
    ORDER BY p.number, e.log_epoch;
END
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

-- name: require_epoch
-- A sealed log epoch; raises PS019.
CREATE OR REPLACE FUNCTION require_epoch(partition_id bigint, log_epoch integer) RETURNS log_epochs
LANGUAGE plpgsql STABLE AS $$
DECLARE
    found_row log_epochs%ROWTYPE;
BEGIN
    SELECT e.* INTO found_row FROM log_epochs AS e
    WHERE e.partition_id = require_epoch.partition_id AND e.log_epoch = require_epoch.log_epoch;
    IF NOT FOUND THEN
        PERFORM refuse('PS019', format('partition %s has no sealed log epoch %s', partition_id & 65535, log_epoch),
                       'Seal it first.');
    END IF;
    RETURN found_row;
END
$$;

-- name: require_place
-- The layouts that there are, and a row that a file can have; raises PS006.
CREATE OR REPLACE FUNCTION require_place(layout integer, first_row bigint) RETURNS void
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF layout IS NULL OR layout NOT IN (1, 2) OR first_row IS NULL OR first_row < 0
            OR (layout = 1 AND first_row > 0) THEN
        PERFORM refuse('PS006', format('a copy in layout %s from row %s on', layout, first_row),
                       'Layout 1 is a folder for each log epoch, from row 0 on; layout 2 is a file of the day.');
    END IF;
END
$$;

-- name: hold_off_clean
-- No run of clean begins on the topic of a partition before the caller's transaction has ended. Called before a copy is
-- recorded: a run either finds it where it is now, or sees that it is younger than the run. Topics are locked before
-- this, log epochs after it.
CREATE OR REPLACE FUNCTION hold_off_clean(partition_id bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM retention_policies AS r WHERE r.topic_id = hold_off_clean.partition_id >> 16 FOR SHARE;
END
$$;

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

-- name: reissue_seal
-- Gives a log epoch a new checksum and keeps the old one. No copy counts any more until it was made and read again, and
-- its bytes have to be counted again.
CREATE OR REPLACE FUNCTION reissue_seal(held erasures, sealed log_epochs, checksum text) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO reissued_seals (
        partition_id, log_epoch, old_checksum, checksum, erasure, reissued_by, reissued_at)
    VALUES (sealed.partition_id, sealed.log_epoch, sealed.checksum, reissue_seal.checksum, held.erasure, session_user,
            clock_timestamp());
    UPDATE log_epochs AS e SET checksum = reissue_seal.checksum, event_bytes = NULL
    WHERE e.partition_id = sealed.partition_id AND e.log_epoch = sealed.log_epoch;
    UPDATE epoch_copies AS c
    SET state = 'missing', detail = format('erasure %s', held.erasure), changed_at = clock_timestamp()
    WHERE c.partition_id = sealed.partition_id AND c.log_epoch = sealed.log_epoch;
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

-- name: lowest_position
-- The subscription that is furthest behind on a partition, and where it stands; NULL when nobody reads the topic. Those
-- whose policy lets nothing wait that was sealed at this time (NULL: of any age) are left out, and those that read the
-- archive. Any other one that stands below the low sequence counts: it gets an error, and it must not miss more than
-- was recorded. With NULL nobody is left out.
CREATE OR REPLACE FUNCTION lowest_position(
    partition_id bigint, sealed_at timestamptz, OUT subscription text, OUT "position" bigint
)
LANGUAGE sql STABLE AS $$
    SELECT s.name, stands.at
    FROM leases AS l
    JOIN subscriptions AS s ON s.id = l.subscription_id
    CROSS JOIN LATERAL (SELECT current_position(l.subscription_id, l.partition_id) AS at) AS stands
    WHERE l.partition_id = lowest_position.partition_id AND (
        lowest_position.sealed_at IS NULL OR NOT reads_archive(l.subscription_id, l.partition_id) AND (
            s.max_lag_seconds = 0
            OR lowest_position.sealed_at > clock_timestamp() - make_interval(secs => s.max_lag_seconds)))
    ORDER BY 2, 1
    LIMIT 1
$$;

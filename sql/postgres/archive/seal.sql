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

-- name: unsealed_logs
-- The topics with events above their last log epoch: how many there are in the partition that has most of them, and
-- for how long the oldest has been in the log.
CREATE OR REPLACE FUNCTION unsealed_logs()
RETURNS TABLE (topic text, events bigint, seconds double precision)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT t.address, max(s.high - s.sealed),
           extract(epoch FROM clock_timestamp() - min(sequenced_at_of(p.id, s.sealed + 1)))::double precision
    FROM topics AS t
    JOIN partitions AS p ON p.topic_id = t.id
    CROSS JOIN LATERAL (
        SELECT high_watermark(p.id) AS high, COALESCE((
            SELECT e.last_sequence FROM log_epochs AS e
            WHERE e.partition_id = p.id ORDER BY e.log_epoch DESC LIMIT 1), 0) AS sealed
    ) AS s
    WHERE s.high > s.sealed AND (NOT t.restricted AND (SELECT as_login()) OR has_right(t.namespace_id, 'any'))
    GROUP BY t.address
    ORDER BY t.address
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

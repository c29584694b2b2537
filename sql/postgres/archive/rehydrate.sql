-- name: begin_rehydration
-- Begins to bring back a log epoch, in the caller's transaction, which ends with finish_rehydration. false: it is there
-- already, so nothing is to be done but finish_rehydration. What an attempt that did not finish has left goes. Raises
-- PS018, PS019, PS025.
CREATE OR REPLACE FUNCTION begin_rehydration(request bigint, attempt integer, partition integer, log_epoch integer)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    sealed log_epochs%ROWTYPE := hold_rehydration(request, attempt, partition, log_epoch);
BEGIN
    IF is_rehydrated(sealed.partition_id, sealed.first_sequence) THEN
        RETURN false;
    END IF;
    DELETE FROM rehydrated_events AS r
    WHERE r.partition_id = sealed.partition_id AND r.sequence BETWEEN sealed.first_sequence AND sealed.last_sequence;
    RETURN true;
END
$$;

-- name: put_rehydrated
-- Brings some events of a log epoch: an array of objects with sequence, event_id, key, type, content_type, headers (the
-- text of a JSON object), payload in base64, and created_at and sequenced_at in microseconds since 1970. Nobody sees
-- them before finish_rehydration has compared all of them with the seal and the transaction has ended. Raises PS006,
-- PS018, PS019, PS025.
CREATE OR REPLACE FUNCTION put_rehydrated(
    request bigint, attempt integer, partition integer, log_epoch integer, events jsonb
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    sealed log_epochs%ROWTYPE := hold_rehydration(request, attempt, partition, log_epoch);
BEGIN
    INSERT INTO rehydrated_events (
        partition_id, sequence, event_id, key, type, content_type, headers, payload, created_at, sequenced_at)
    SELECT sealed.partition_id, i.sequence, i.event_id, i.key, i.type, i.content_type, i.headers::jsonb,
           decode(i.payload, 'base64'), timestamptz 'epoch' + i.created_at * interval '1 microsecond',
           timestamptz 'epoch' + i.sequenced_at * interval '1 microsecond'
    FROM jsonb_to_recordset(events) AS i (
        sequence bigint, event_id uuid, key text, type text, content_type text, headers text, payload text,
        created_at bigint, sequenced_at bigint)
    WHERE i.sequence BETWEEN sealed.first_sequence AND sealed.last_sequence
    ON CONFLICT DO NOTHING;
END
$$;

-- name: finish_rehydration
-- Lets everybody read a log epoch that was brought back, when its count and checksum equal the seal, and records its
-- range as done, all in the caller's transaction. Raises PS006, PS017, PS018, PS019, PS025.
CREATE OR REPLACE FUNCTION finish_rehydration(
    request bigint, attempt integer, partition integer, log_epoch integer, lease_seconds double precision DEFAULT 60
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    sealed log_epochs%ROWTYPE := hold_rehydration(request, attempt, partition, log_epoch);
    content record;
BEGIN
    SELECT * INTO content
    FROM rehydrated_checksum(sealed.partition_id, sealed.first_sequence, sealed.last_sequence);
    IF (sealed.event_count, sealed.checksum) IS DISTINCT FROM (content.event_count, content.checksum) THEN
        PERFORM refuse('PS017', format('what was brought of log epoch %s has %s events and checksum %s, the seal says '
                                       '%s and %s', log_epoch, content.event_count, content.checksum,
                                       sealed.event_count, sealed.checksum),
                       'Roll back and read another copy; backfill makes a damaged one again.');
    END IF;
    INSERT INTO rehydrated_epochs (partition_id, first_sequence, last_sequence, log_epoch, request, rehydrated_at)
    VALUES (sealed.partition_id, sealed.first_sequence, sealed.last_sequence, sealed.log_epoch,
            finish_rehydration.request, clock_timestamp())
    ON CONFLICT DO NOTHING;
    RETURN progress_backfill(request, attempt, partition, sealed.first_sequence, lease_seconds);
END
$$;

-- name: rehydrated_of
-- The log epochs of a topic that were dropped and brought back. Raises PS002.
CREATE OR REPLACE FUNCTION rehydrated_of(topic text)
RETURNS TABLE (
    partition integer, log_epoch integer, first_sequence bigint, last_sequence bigint, request bigint,
    rehydrated_at timestamptz
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    source_id bigint := require_topic(topic);
BEGIN
    RETURN QUERY
    SELECT p.number, e.log_epoch, e.first_sequence, e.last_sequence, e.request, e.rehydrated_at
    FROM partitions AS p JOIN rehydrated_epochs AS e ON e.partition_id = p.id
    WHERE p.topic_id = source_id
    ORDER BY p.number, e.first_sequence;
END
$$;

-- name: release_rehydrated
-- Takes log epochs of a topic away again that were brought back so many seconds ago, oldest first, at most max_epochs
-- (1 to 1,000). One that a subscription has not passed stays. Returns how many went. Raises PS002, PS006, PS018.
CREATE OR REPLACE FUNCTION release_rehydrated(
    topic text, older_than_seconds double precision DEFAULT 0, max_epochs integer DEFAULT 100
) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    source_id bigint := require_topic_for(topic, 'operate');
    epoch rehydrated_epochs%ROWTYPE;
    released integer := 0;
BEGIN
    PERFORM require_read_committed('release_rehydrated()');
    IF max_epochs IS NULL OR max_epochs NOT BETWEEN 1 AND 1000
        OR older_than_seconds IS NULL OR NOT (older_than_seconds BETWEEN 0 AND 1e9) THEN
        PERFORM refuse('PS006', format('a release of %s log epochs of %s s ago', max_epochs, older_than_seconds),
                       'Use 1 to 1,000 log epochs, and 0 s or more.');
    END IF;
    -- A seek locks the same row, so no subscription goes back to what is just being taken away.
    PERFORM FROM topics AS t WHERE t.id = source_id FOR NO KEY UPDATE;
    FOR epoch IN
        SELECT e.*
        FROM partitions AS p JOIN rehydrated_epochs AS e ON e.partition_id = p.id
        WHERE p.topic_id = source_id
          AND e.rehydrated_at <= clock_timestamp() - make_interval(secs => older_than_seconds)
          AND COALESCE((lowest_position(p.id, NULL)).position, e.last_sequence) >= e.last_sequence
        ORDER BY e.rehydrated_at, e.partition_id, e.first_sequence
        LIMIT max_epochs
    LOOP
        DELETE FROM rehydrated_epochs AS e
        WHERE e.partition_id = epoch.partition_id AND e.first_sequence = epoch.first_sequence;
        DELETE FROM rehydrated_events AS r
        WHERE r.partition_id = epoch.partition_id AND r.sequence BETWEEN epoch.first_sequence AND epoch.last_sequence;
        released := released + 1;
    END LOOP;
    RETURN released;
END
$$;

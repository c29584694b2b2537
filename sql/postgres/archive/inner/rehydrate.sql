-- name: is_rehydrated
-- Whether a sequence lies in a log epoch that was dropped and brought back.
CREATE OR REPLACE FUNCTION is_rehydrated(partition_id bigint, sequence bigint) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN COALESCE((
        SELECT e.last_sequence >= is_rehydrated.sequence
        FROM rehydrated_epochs AS e
        WHERE e.partition_id = is_rehydrated.partition_id AND e.first_sequence <= is_rehydrated.sequence
        ORDER BY e.first_sequence DESC
        LIMIT 1), false);
END
$$;

-- name: find_rehydrated_end
-- The last sequence up to which everything from a sequence on was rehydrated, at most max_events of them: no gap is
-- ever passed over.
CREATE OR REPLACE FUNCTION find_rehydrated_end(partition_id bigint, from_sequence bigint, max_events integer)
RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    wanted CONSTANT bigint := from_sequence + max_events - 1;
    found_end bigint := from_sequence - 1;
    epoch_end bigint;
BEGIN
    WHILE found_end < wanted LOOP
        SELECT e.last_sequence INTO epoch_end
        FROM rehydrated_epochs AS e
        WHERE e.partition_id = find_rehydrated_end.partition_id AND e.first_sequence <= found_end + 1
        ORDER BY e.first_sequence DESC
        LIMIT 1;
        EXIT WHEN COALESCE(epoch_end <= found_end, true);
        found_end := epoch_end;
    END LOOP;
    RETURN LEAST(found_end, wanted);
END
$$;

-- name: read_rehydrated
-- The events of a partition from a sequence on that was rehydrated, in order, up to the first one that was not. Rows of
-- a log epoch that nobody has compared with its seal are never read.
CREATE OR REPLACE FUNCTION read_rehydrated(partition_id bigint, from_sequence bigint, max_events integer)
RETURNS TABLE (
    sequence bigint, event_id uuid, key text, type text, content_type text, headers jsonb, payload bytea,
    created_at timestamptz, sequenced_at timestamptz
)
LANGUAGE sql STABLE ROWS 500 AS $$
    SELECT r.sequence, r.event_id, r.key, r.type, r.content_type, r.headers, r.payload, r.created_at, r.sequenced_at
    FROM rehydrated_events AS r
    WHERE r.partition_id = read_rehydrated.partition_id AND r.sequence >= read_rehydrated.from_sequence
      AND r.sequence <= find_rehydrated_end(read_rehydrated.partition_id, read_rehydrated.from_sequence,
                                            read_rehydrated.max_events)
    ORDER BY r.sequence
$$;

-- name: hold_rehydration
-- The fence of a rehydration: locks the request and the log epoch to the end of the caller's transaction, so that a log
-- epoch is brought back by one at a time. Raises PS005, PS006, PS018, PS019, PS025.
CREATE OR REPLACE FUNCTION hold_rehydration(request bigint, attempt integer, partition integer, log_epoch integer)
RETURNS log_epochs
LANGUAGE plpgsql AS $$
DECLARE
    held backfill_requests%ROWTYPE := hold_backfill(request, attempt);
    found_row log_epochs%ROWTYPE;
BEGIN
    SELECT e.* INTO found_row
    FROM log_epochs AS e
    WHERE e.partition_id = (held.topic_id << 16) | hold_rehydration.partition
      AND e.log_epoch = hold_rehydration.log_epoch
    FOR NO KEY UPDATE;
    IF found_row.dropped_at IS NULL OR held.kind <> 'rehydrate' OR NOT EXISTS (
        SELECT FROM backfill_units AS u
        WHERE u.request = held.id AND u.partition_id = found_row.partition_id AND u.log_epoch = found_row.log_epoch)
    THEN
        PERFORM refuse('PS019', format('log epoch %s of partition %s is not one that the request %s brings back',
                                       log_epoch, partition, request),
                       'backfill_work names the ranges of a request of the kind rehydrate.');
    END IF;
    RETURN found_row;
END
$$;

-- name: rehydrated_checksum
-- The checksum of a range of a partition that was brought back; see range_checksum.
CREATE OR REPLACE FUNCTION rehydrated_checksum(
    partition_id bigint, first_sequence bigint, last_sequence bigint, OUT event_count bigint, OUT checksum text
)
LANGUAGE sql STABLE AS $$
    SELECT count(*), encode(sha256(COALESCE(string_agg(
        event_digest(r.sequence, r.event_id, r.key, r.type, r.content_type, r.headers, r.payload, r.created_at),
        ''::bytea ORDER BY r.sequence), ''::bytea)), 'hex')
    FROM rehydrated_events AS r
    WHERE r.partition_id = rehydrated_checksum.partition_id
      AND r.sequence BETWEEN rehydrated_checksum.first_sequence AND rehydrated_checksum.last_sequence
$$;

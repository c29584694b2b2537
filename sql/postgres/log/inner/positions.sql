-- name: parse_lsn
-- The log epoch and the sequence that a position of the log (LSN) is made of, as text 'log_epoch.sequence'. Log epoch 0
-- stands for events that were not sealed yet. Raises PS006.
CREATE OR REPLACE FUNCTION parse_lsn(lsn text, OUT log_epoch integer, OUT sequence bigint)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    parts text[];
BEGIN
    IF lsn ~ '^(0|[1-9][0-9]{0,9})[.][1-9][0-9]{0,18}$' THEN
        parts := string_to_array(lsn, '.');
        IF parts[1]::numeric <= 2147483647 AND parts[2]::numeric <= 1000000000000000000 THEN
            log_epoch := parts[1];
            sequence := parts[2];
            RETURN;
        END IF;
    END IF;
    PERFORM refuse('PS006', format('"%s" is no position of the log', left(lsn, 100)),
                   'Write log_epoch.sequence: a log epoch of 0 to 2,147,483,647 and a sequence of 1 to 10^18.');
END
$$;

-- name: find_log_epoch_at
-- The sealed log epoch of a partition that holds a sequence; 0 when none does.
CREATE OR REPLACE FUNCTION find_log_epoch_at(partition_id bigint, sequence bigint) RETURNS integer
LANGUAGE sql STABLE AS $$
    SELECT COALESCE((
        SELECT CASE WHEN e.last_sequence >= find_log_epoch_at.sequence THEN e.log_epoch END
        FROM log_epochs AS e
        WHERE e.partition_id = find_log_epoch_at.partition_id AND e.first_sequence <= find_log_epoch_at.sequence
        ORDER BY e.first_sequence DESC
        LIMIT 1), 0)
$$;

-- name: require_sequence
-- The same for the id of a partition. Raises PS006, PS019.
CREATE OR REPLACE FUNCTION require_sequence(partition_id bigint, lsn text) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    given record;
BEGIN
    SELECT * INTO given FROM parse_lsn(lsn);
    IF given.log_epoch > 0 AND given.log_epoch <> find_log_epoch_at(partition_id, given.sequence) THEN
        PERFORM refuse('PS019', format('sequence %s of partition %s is not in log epoch %s', given.sequence,
                                       partition_id & 65535, given.log_epoch),
                       'The position is one of another partition or another history: lsn_of tells the present one.');
    END IF;
    RETURN given.sequence;
END
$$;

-- name: position_since
-- The position before the first event of a partition that was sequenced at a time or later, if the database knows it.
-- Otherwise position is NULL: such an event may be among those that were removed. The log epoch in which to look then
-- comes with it; NULL when no seal says so.
CREATE OR REPLACE FUNCTION position_since(
    partition_id bigint, low_sequence bigint, since timestamptz, OUT "position" bigint, OUT log_epoch integer,
    OUT first_sequence bigint, OUT last_sequence bigint
)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    watermark bigint := high_watermark(partition_id);
    wanted bigint;
BEGIN
    SELECT COALESCE(c.first_sequence + place.n - 1, c.first_sequence) INTO wanted
    FROM chunks AS c
    CROSS JOIN LATERAL (
        SELECT min(t.n) AS n FROM unnest(c.sequenced_ats) WITH ORDINALITY AS t (at, n) WHERE t.at >= since
    ) AS place
    WHERE c.partition_id = position_since.partition_id AND c.sequenced_at >= since
    ORDER BY c.first_sequence
    LIMIT 1;
    wanted := COALESCE(wanted, watermark + 1);
    position := wanted - 1;
    -- The index of what was dropped is removed too: then only a seal says when its last event was sequenced.
    IF wanted < low_sequence OR (wanted = low_sequence AND wanted BETWEEN 2 AND watermark
                                 AND sequenced_at_of(partition_id, wanted - 1) IS NULL) THEN
        SELECT e.log_epoch, e.first_sequence, e.last_sequence
        INTO position_since.log_epoch, position_since.first_sequence, position_since.last_sequence
        FROM log_epochs AS e
        WHERE e.partition_id = position_since.partition_id AND e.sequenced_until >= since
        ORDER BY e.sequenced_until, e.log_epoch
        LIMIT 1;
        IF FOUND THEN
            position := CASE WHEN position_since.first_sequence >= low_sequence THEN position END;
        ELSIF wanted < low_sequence OR find_log_epoch_at(partition_id, low_sequence - 1) = 0 THEN
            position := NULL;
        END IF;
    END IF;
END
$$;

-- name: position_before
-- The position before the first event that was sequenced at a time or later. If such an event may have been dropped,
-- this raises an error (PS016): no event is skipped silently.
CREATE OR REPLACE FUNCTION position_before(partition_id bigint, low_sequence bigint, since timestamptz) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    found_place record := position_since(partition_id, low_sequence, since);
BEGIN
    IF found_place.position IS NULL THEN
        PERFORM refuse('PS016', format('events sequenced since %s were dropped: the log begins at sequence %s', since,
                                       low_sequence),
                       'Name the archive targets, so that the time is looked up there, or start at "earliest".');
    END IF;
    RETURN found_place.position;
END
$$;

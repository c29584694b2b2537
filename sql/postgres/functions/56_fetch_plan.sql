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

-- name: log_epoch_at
-- The sealed log epoch of a partition that holds a sequence; 0 when none does.
CREATE OR REPLACE FUNCTION log_epoch_at(partition_id bigint, sequence bigint) RETURNS integer
LANGUAGE sql STABLE AS $$
    SELECT COALESCE((
        SELECT CASE WHEN e.last_sequence >= log_epoch_at.sequence THEN e.log_epoch END
        FROM log_epochs AS e
        WHERE e.partition_id = log_epoch_at.partition_id AND e.first_sequence <= log_epoch_at.sequence
        ORDER BY e.first_sequence DESC
        LIMIT 1), 0)
$$;

-- name: lsn_of
-- The position of a sequence in the log, as text and as the log epoch that is a part of it: 0 while the sequence is not
-- sealed. Raises PS002, PS005, PS006.
CREATE OR REPLACE FUNCTION lsn_of(topic text, partition integer, sequence bigint)
RETURNS TABLE (lsn text, log_epoch integer)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    source bigint := require_partition(topic, partition);
BEGIN
    log_epoch := log_epoch_at(source, lsn_of.sequence);
    lsn := format('%s.%s', log_epoch, lsn_of.sequence);
    PERFORM parse_lsn(lsn);
    RETURN NEXT;
END
$$;

-- name: sequence_of
-- The sequence of a position of the log, checked: its log epoch has to be the one that holds the sequence. Log epoch 0
-- is not checked, because the sequence may have been sealed since. Raises PS002, PS005, PS006, PS019.
CREATE OR REPLACE FUNCTION sequence_of(topic text, partition integer, lsn text) RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    source bigint := require_partition(topic, partition);
BEGIN
    RETURN checked_sequence(source, lsn);
END
$$;

-- name: checked_sequence
-- The same for the id of a partition. Raises PS006, PS019.
CREATE OR REPLACE FUNCTION checked_sequence(partition_id bigint, lsn text) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    given record;
BEGIN
    SELECT * INTO given FROM parse_lsn(lsn);
    IF given.log_epoch > 0 AND given.log_epoch <> log_epoch_at(partition_id, given.sequence) THEN
        PERFORM refuse('PS019', format('sequence %s of partition %s is not in log epoch %s', given.sequence,
                                       partition_id & 65535, given.log_epoch),
                       'The position is one of another partition or another history: lsn_of tells the present one.');
    END IF;
    RETURN given.sequence;
END
$$;

-- name: is_archived
-- Whether the log epoch that holds a sequence has a verified copy.
CREATE OR REPLACE FUNCTION is_archived(partition_id bigint, sequence bigint) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT FROM epoch_copies AS c
        WHERE c.partition_id = is_archived.partition_id AND c.state = 'verified'
          AND c.log_epoch = log_epoch_at(is_archived.partition_id, is_archived.sequence))
$$;

-- name: fetch_plan
-- Where to read the events of a partition from a sequence on: at most 1,000 segments, in order. A segment is a log
-- epoch or, with log_epoch NULL, what is not sealed yet. It is whole: it may begin before from_sequence, and end after
-- what is asked for. 'hot': fetch returns it, maybe because it was rehydrated. 'cold': it is in the archive only. A
-- segment has a row for each copy that was ever recorded of it, verified or missing, or one row without a target;
-- location, layout and first_row say where the copy is. For more than 1,000 segments ask again, from the last one's
-- end. No row: there are no such events yet. A segment that is hot may be dropped at any time; then fetch refuses it
-- (PS016), and a new plan says where it is.
-- Raises PS002, PS005, PS006, PS021.
CREATE OR REPLACE FUNCTION fetch_plan(
    topic text, partition integer, from_sequence bigint, max_events bigint DEFAULT 500
) RETURNS TABLE (
    place text, log_epoch integer, first_sequence bigint, last_sequence bigint, event_count bigint, checksum text,
    known_as text, target text, state text, location text, layout integer, first_row bigint
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    source bigint := require_partition(topic, partition);
    low bigint;
    name text;
    last_wanted bigint;
BEGIN
    IF max_events IS NULL OR max_events NOT BETWEEN 1 AND 1000000000000000000
        OR from_sequence IS NULL OR from_sequence NOT BETWEEN 1 AND 1000000000000000000 THEN
        PERFORM refuse('PS006', format('a plan of %s events from sequence %s', max_events, from_sequence),
                       'Sequences start at 1; plan 1 to 10^18 events.');
    END IF;
    SELECT p.low_sequence, t.known_as INTO low, name
    FROM partitions AS p JOIN topics AS t ON t.id = p.topic_id
    WHERE p.id = source;
    PERFORM require_readable(source, GREATEST(low, from_sequence), 0);  -- What is below is read from the archive.
    last_wanted := LEAST(from_sequence - 1 + max_events, high_watermark(source));
    RETURN QUERY
    SELECT r.place, r.log_epoch, r.first_sequence, r.last_sequence, r.event_count, r.checksum, name, r.target, r.state,
           r.location, r.layout, r.first_row
    FROM planned_rows(source, low, fetch_plan.from_sequence, last_wanted) AS r;
END
$$;

-- name: planned_rows
-- The segments of a plan with their copies. The copies are one range of the manifest's index, joined by hash: the
-- planner expects two rows, and would look 1,000 times for the copies of one log epoch. The order of targets is that of
-- their bytes, because comparing texts by the database's collation took half of the time.
CREATE OR REPLACE FUNCTION planned_rows(
    partition_id bigint, low_sequence bigint, from_sequence bigint, last_wanted bigint
) RETURNS TABLE (
    place text, log_epoch integer, first_sequence bigint, last_sequence bigint, event_count bigint, checksum text,
    target text, state text, location text, layout integer, first_row bigint
)
LANGUAGE plpgsql STABLE SET enable_nestloop = off AS $$
BEGIN
    RETURN QUERY
    WITH segments AS MATERIALIZED (
        SELECT * FROM planned_segments(planned_rows.partition_id, low_sequence, from_sequence, last_wanted)
    )
    SELECT CASE WHEN s.first_sequence < low_sequence AND NOT EXISTS (
               SELECT FROM rehydrated_epochs AS r
               WHERE r.partition_id = planned_rows.partition_id AND r.first_sequence = s.first_sequence)
           THEN 'cold' ELSE 'hot' END, s.log_epoch, s.first_sequence, s.last_sequence,
           s.last_sequence - s.first_sequence + 1, s.checksum, c.target, c.state, c.location, c.layout::integer,
           c.first_row
    FROM segments AS s
    LEFT JOIN (
        SELECT k.log_epoch, k.target, k.state, k.location, k.layout, k.first_row
        FROM epoch_copies AS k
        WHERE k.partition_id = planned_rows.partition_id
          AND k.log_epoch BETWEEN (SELECT min(b.log_epoch) FROM segments AS b)
                              AND (SELECT max(b.log_epoch) FROM segments AS b)
    ) AS c ON c.log_epoch = s.log_epoch
    ORDER BY s.first_sequence, c.target COLLATE "C";
END
$$;

-- name: planned_segments
-- The log epochs of a range, and what follows them unsealed. It has no settings, so that it is inlined into the query
-- that calls it.
CREATE OR REPLACE FUNCTION planned_segments(
    partition_id bigint, low_sequence bigint, from_sequence bigint, last_wanted bigint
) RETURNS TABLE (log_epoch integer, first_sequence bigint, last_sequence bigint, checksum text)
LANGUAGE sql STABLE ROWS 10 AS $$
    SELECT s.log_epoch, s.first_sequence, s.last_sequence, s.checksum
    FROM (
        (
            SELECT e.log_epoch, e.first_sequence, e.last_sequence, e.checksum
            FROM log_epochs AS e
            WHERE e.partition_id = planned_segments.partition_id
              AND e.first_sequence >= COALESCE((
                  SELECT b.first_sequence
                  FROM log_epochs AS b
                  WHERE b.partition_id = planned_segments.partition_id
                    AND b.first_sequence <= planned_segments.from_sequence
                  ORDER BY b.first_sequence DESC
                  LIMIT 1), 0)
              AND e.first_sequence <= planned_segments.last_wanted
              AND e.last_sequence >= planned_segments.from_sequence
            ORDER BY e.first_sequence
            LIMIT 1000
        )
        UNION ALL
        SELECT NULL, u.first_sequence, high_watermark(planned_segments.partition_id), NULL
        FROM (
            SELECT GREATEST(planned_segments.low_sequence, COALESCE((
                SELECT n.last_sequence
                FROM log_epochs AS n
                WHERE n.partition_id = planned_segments.partition_id
                ORDER BY n.first_sequence DESC
                LIMIT 1), 0) + 1) AS first_sequence
        ) AS u
        WHERE u.first_sequence <= planned_segments.last_wanted
    ) AS s
    WHERE planned_segments.from_sequence <= planned_segments.last_wanted
    ORDER BY s.first_sequence
    LIMIT 1000
$$;

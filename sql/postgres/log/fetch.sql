-- name: fetch
-- At most max_events events of a partition from a sequence on, never above the high watermark. Of log epochs that were
-- rehydrated it returns those that follow each other, and ends before the low sequence. Raises PS002, PS005, PS006,
-- PS016, PS021.
CREATE OR REPLACE FUNCTION "fetch"(
    topic text, partition integer, from_sequence bigint, max_events integer DEFAULT 500
) RETURNS TABLE (
    sequence bigint, event_id uuid, key text, type text, content_type text, headers jsonb, payload bytea,
    created_at timestamptz, sequenced_at timestamptz, history integer
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    source bigint := require_partition(topic, partition);
    present integer := current_history();
    found_rows bigint;
BEGIN
    IF max_events IS NULL OR max_events NOT BETWEEN 1 AND 100000
        OR from_sequence IS NULL OR from_sequence NOT BETWEEN 1 AND 1000000000000000000 THEN
        PERFORM refuse('PS006', format('cannot fetch %s events from sequence %s', max_events, from_sequence),
                       'Sequences start at 1; fetch 1 to 100,000 events at a time.');
    END IF;
    IF require_readable(source, from_sequence, 0) THEN
        RETURN QUERY
        SELECT r.*, present FROM read_rehydrated(source, "fetch".from_sequence, "fetch".max_events) AS r;
        RETURN;
    END IF;
    RETURN QUERY
    SELECT r.*, present FROM read_log(source, "fetch".from_sequence, "fetch".max_events) AS r;
    GET DIAGNOSTICS found_rows = ROW_COUNT;
    IF found_rows < LEAST(max_events, high_watermark(source) - from_sequence + 1) THEN
        -- Snapshots do not cover a DROP: a snapshot from before it still sees the old low sequence.
        PERFORM refuse('PS016', format('events from sequence %s on were dropped while this transaction was open',
                                       from_sequence),
                       'Read in a new transaction.');
    END IF;
END
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

-- name: high_watermarks
-- The readable range of every partition of a topic. Keep a position with its partition_id, not with the topic's
-- address: the topic may get another address, and another topic may get this one.
CREATE OR REPLACE FUNCTION high_watermarks(topic text)
RETURNS TABLE (partition integer, low_sequence bigint, high_watermark bigint, history integer, partition_id bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    source_id bigint := require_topic(topic);
BEGIN
    RETURN QUERY
    SELECT p.number, p.low_sequence, high_watermark(p.id), current_history(), p.id
    FROM partitions AS p
    WHERE p.topic_id = source_id
    ORDER BY p.number;
END
$$;

-- name: start_position
-- Where a new subscription starts: 'earliest' (the first event that is left), 'latest' (after the last event), a
-- sequence to begin with, a position of the log (LSN) instead, a time, or what plain_start knows. With a time it starts
-- with the first event that was sequenced then or later, however early that event was published. A sequence below the
-- low sequence is accepted where a verified copy holds it: then the consumers read the archive first. Raises PS006,
-- PS012, PS013, PS016, PS019, PS021, PS029.
CREATE OR REPLACE FUNCTION start_position(partition_id bigint, low_sequence bigint, start text) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    start := plain_start(partition_id, start);
    IF start = 'earliest' THEN
        RETURN low_sequence - 1;
    ELSIF start = 'latest' THEN
        RETURN high_watermark(partition_id);
    ELSIF start ~ '^[1-9][0-9]{0,17}$' THEN
        PERFORM require_readable(
            partition_id, CASE WHEN is_archived(partition_id, start::bigint)
                               THEN GREATEST(low_sequence, start::bigint) ELSE start::bigint END, 0);
        IF start::bigint > high_watermark(partition_id) + 1 THEN
            PERFORM refuse('PS012', format('sequence %s is beyond the high watermark', start),
                           'Start at or before the next sequence, or at "latest".');
        END IF;
        RETURN start::bigint - 1;
    ELSIF start ~ '^[0-9]+[.][0-9]+$' THEN
        RETURN start_position(partition_id, low_sequence, require_sequence(partition_id, start)::text);
    END IF;
    RETURN position_before(partition_id, low_sequence, start_time(start));
END
$$;

-- name: start_time
-- A time at which to start: ISO 8601 with its zone, and not in the future. Raises PS006.
CREATE OR REPLACE FUNCTION start_time(start text) RETURNS timestamptz
LANGUAGE plpgsql STABLE AS $$
DECLARE
    found_time timestamptz;
BEGIN
    IF start
        ~ $p$^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?(Z|[+-][0-9]{2}:?[0-9]{2})\Z$p$
    THEN
        BEGIN
            found_time := start::timestamptz;
        EXCEPTION WHEN data_exception THEN
            NULL;  -- There is no such day, or hour.
        END;
    END IF;
    IF found_time IS NULL THEN
        PERFORM refuse(
            'PS006', format('a subscription cannot start at "%s"', left(start, 100)),
            'Use "earliest", "latest", a sequence from 1 on, a position of the log, "bookmark:NAME", or a time with '
            'its zone: 2026-01-31T09:30:00+01:00.');
    ELSIF found_time > clock_timestamp() THEN
        PERFORM refuse('PS006', format('the time %s is in the future', start),
                       'Use "latest" for what is published from now on.');
    END IF;
    RETURN found_time;
END
$$;

-- name: position_in
-- Where a subscription stands in a partition. Raises PS013.
CREATE OR REPLACE FUNCTION position_in(subscription text, partition_id bigint) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    stands bigint := current_position((require_subscription(subscription)).id, partition_id);
BEGIN
    IF stands IS NULL THEN
        PERFORM refuse_unread(subscription, (
            SELECT t.address FROM partitions AS p JOIN topics AS t ON t.id = p.topic_id
            WHERE p.id = position_in.partition_id));
    END IF;
    RETURN stands;
END
$$;

-- name: start_in
-- The start that a JSON object names for a partition. Its keys are ids of partitions. Raises PS006.
CREATE OR REPLACE FUNCTION start_in(partition_id bigint, starts text) RETURNS text
LANGUAGE plpgsql STABLE AS $$
DECLARE
    found_start text;
BEGIN
    BEGIN
        found_start := starts::jsonb ->> partition_id::text;
    EXCEPTION WHEN data_exception THEN
        NULL;  -- It is no JSON.
    END;
    IF found_start IS NULL THEN
        PERFORM refuse('PS006', format('no start is named for partition %s', partition_id & 65535),
                       'Give a JSON object that has a start for the id of each partition.');
    END IF;
    RETURN found_start;
END
$$;

-- name: plain_start
-- A start in the words of start_position, for one that is written in another way: a JSON object of starts, by the ids
-- of partitions; 'bookmark:NAME'; or 'subscription:NAME', which is where that one stands. Raises PS006, PS013, PS021,
-- PS029.
CREATE OR REPLACE FUNCTION plain_start(partition_id bigint, start text) RETURNS text
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF start LIKE '{%' THEN
        start := start_in(partition_id, start);
    END IF;
    IF start LIKE 'bookmark:%' THEN
        RETURN bookmarked(partition_id, substr(start, 10)) + 1;
    ELSIF start LIKE 'subscription:%' THEN
        RETURN position_in(substr(start, 14), partition_id) + 1;
    END IF;
    RETURN start;
END
$$;

-- name: require_start_of_queue
-- Refuses a queue that would begin below the low sequence of a topic (PS016): no queue reads the archive.
CREATE OR REPLACE FUNCTION require_start_of_queue(owner_id bigint, source_id bigint) RETURNS void
LANGUAGE plpgsql STABLE AS $$
DECLARE
    wrong record;
BEGIN
    SELECT current_position(owner_id, p.id) + 1 AS start, p.low_sequence AS low INTO wrong
    FROM partitions AS p JOIN subscriptions AS s ON s.id = owner_id
    WHERE p.topic_id = source_id AND s.mode = 'queue' AND current_position(owner_id, p.id) < p.low_sequence - 1
    ORDER BY p.number
    LIMIT 1;
    IF FOUND THEN
        PERFORM refuse('PS016', format('sequence %s is below the low sequence %s, and a queue reads nothing from the '
                                       'archive', wrong.start, wrong.low),
                       'Begin at "earliest"; or read the history as a stream, whose consumers have archive=targets.');
    END IF;
END
$$;

-- name: log_epochs_of
-- The sealed log epochs of a topic, with the targets that hold a verified copy; known_as: see describe_topic.
CREATE OR REPLACE FUNCTION log_epochs_of(topic text)
RETURNS TABLE (
    partition integer, log_epoch integer, first_sequence bigint, last_sequence bigint, event_count bigint,
    checksum text, sealed_at timestamptz, dropped_at timestamptz, targets text[], known_as text
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    source_id bigint := require_topic(topic);
BEGIN
    RETURN QUERY
    SELECT p.number, e.log_epoch, e.first_sequence, e.last_sequence, e.event_count, e.checksum, e.sealed_at,
           e.dropped_at, ARRAY(
               SELECT c.target FROM epoch_copies AS c
               WHERE c.partition_id = e.partition_id AND c.log_epoch = e.log_epoch AND c.state = 'verified'
               ORDER BY c.target), t.known_as
    FROM partitions AS p JOIN log_epochs AS e ON e.partition_id = p.id JOIN topics AS t ON t.id = p.topic_id
    WHERE p.topic_id = source_id
    ORDER BY p.number, e.log_epoch;
END
$$;

-- name: log_epochs_sealed_on
-- The log epochs of a topic that were sealed on a day (UTC): the first of each partition and the last. A day lies
-- together in the archive. No row for a partition without any.
CREATE OR REPLACE FUNCTION log_epochs_sealed_on(topic text, sealed_date date)
RETURNS TABLE (partition integer, first_log_epoch integer, last_log_epoch integer)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    source_id bigint := require_topic(topic);
BEGIN
    RETURN QUERY
    SELECT p.number, min(e.log_epoch), max(e.log_epoch)
    FROM partitions AS p JOIN log_epochs AS e ON e.partition_id = p.id
    WHERE p.topic_id = source_id
      AND e.sealed_at >= log_epochs_sealed_on.sealed_date::timestamp AT TIME ZONE 'UTC'
      AND e.sealed_at < (log_epochs_sealed_on.sealed_date + 1)::timestamp AT TIME ZONE 'UTC'
    GROUP BY p.number
    ORDER BY p.number;
END
$$;

-- name: log_epochs_between
-- The log epochs of a topic that were sealed in a span of time, to_time not included; columns: see log_epochs_of. An
-- index finds them. Raises PS002.
CREATE OR REPLACE FUNCTION log_epochs_between(topic text, from_time timestamptz, to_time timestamptz)
RETURNS TABLE (
    partition integer, log_epoch integer, first_sequence bigint, last_sequence bigint, event_count bigint,
    checksum text, sealed_at timestamptz, dropped_at timestamptz, targets text[], known_as text
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    source_id bigint := require_topic(topic);
BEGIN
    RETURN QUERY
    SELECT p.number, e.log_epoch, e.first_sequence, e.last_sequence, e.event_count, e.checksum, e.sealed_at,
           e.dropped_at, ARRAY(
               SELECT c.target FROM epoch_copies AS c
               WHERE c.partition_id = e.partition_id AND c.log_epoch = e.log_epoch AND c.state = 'verified'
               ORDER BY c.target), t.known_as
    FROM partitions AS p JOIN log_epochs AS e ON e.partition_id = p.id JOIN topics AS t ON t.id = p.topic_id
    WHERE p.topic_id = source_id
      AND e.sealed_at >= log_epochs_between.from_time AND e.sealed_at < log_epochs_between.to_time
    ORDER BY p.number, e.log_epoch;
END
$$;

-- name: changed_hours
-- The hours (UTC) in which log epochs were sealed of which something changed after a time: sealed, or a copy recorded,
-- moved or lost. It looks at the first max_changes (1 to 10,000) changes after that time, which an index finds, and
-- tells how many of them an hour has, and when the last of these was. Raises PS006.
CREATE OR REPLACE FUNCTION changed_hours(after timestamptz, max_changes integer DEFAULT 1000)
RETURNS TABLE (topic text, hour timestamptz, changes bigint, changed_at timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    IF after IS NULL OR max_changes IS NULL OR max_changes NOT BETWEEN 1 AND 10000 THEN
        PERFORM refuse('PS006', format('the first %s changes after %s', max_changes, after),
                       'Give a time, and 1 to 10,000 changes.');
    END IF;
    RETURN QUERY
    SELECT f.address, date_trunc('hour', f.sealed_at, 'UTC'), count(*), max(f.changed_at)
    FROM (
        (SELECT t.address, e.sealed_at, e.sealed_at AS changed_at
         FROM log_epochs AS e JOIN partitions AS p ON p.id = e.partition_id JOIN topics AS t ON t.id = p.topic_id
         WHERE e.sealed_at > changed_hours.after
           AND (NOT t.restricted AND (SELECT as_login()) OR has_right(t.namespace_id, 'any'))
         ORDER BY e.sealed_at
         LIMIT max_changes)
        UNION ALL
        (SELECT t.address, e.sealed_at, c.changed_at
         FROM epoch_copies AS c
         JOIN log_epochs AS e ON e.partition_id = c.partition_id AND e.log_epoch = c.log_epoch
         JOIN partitions AS p ON p.id = c.partition_id
         JOIN topics AS t ON t.id = p.topic_id
         WHERE c.changed_at > changed_hours.after
           AND (NOT t.restricted AND (SELECT as_login()) OR has_right(t.namespace_id, 'any'))
         ORDER BY c.changed_at
         LIMIT max_changes)
        ORDER BY 3
        LIMIT max_changes
    ) AS f
    GROUP BY 1, 2
    ORDER BY 4, 1, 2;
END
$$;

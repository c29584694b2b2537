-- name: log_epochs_of
-- The sealed log epochs of a topic, with the targets that hold a verified copy, as a JSON array;
-- known_as: see describe_topic. Raises PS002.
CREATE PROCEDURE log_epochs_of(topic LONGTEXT)
READS SQL DATA
BEGIN
    CALL list_log_epochs('log_epochs_of()', topic, NULL, NULL, NULL);
END;

-- name: log_epochs_sealed_on
-- The log epochs of a topic that were sealed on a day (UTC): the first of each partition and the last. A day lies
-- together in the archive. No row for a partition without any. Raises PS002.
CREATE PROCEDURE log_epochs_sealed_on(topic LONGTEXT, sealed_date DATE)
READS SQL DATA
BEGIN
    DECLARE source_id BIGINT;
    CALL refuse_serializable('log_epochs_sealed_on()');
    CALL require_topic(topic, source_id);
    SELECT p.number AS `partition`, MIN(e.log_epoch) AS first_log_epoch, MAX(e.log_epoch) AS last_log_epoch
    FROM partitions AS p JOIN log_epochs AS e ON e.partition_id = p.id
    WHERE p.topic_id = source_id AND e.sealed_at >= sealed_date AND e.sealed_at < sealed_date + INTERVAL 1 DAY
    GROUP BY p.number
    ORDER BY p.number;
END;

-- name: log_epochs_between
-- The log epochs of a topic that were sealed in a span of time, to_time not included; columns: see log_epochs_of. An
-- index finds them. Raises PS002.
CREATE PROCEDURE log_epochs_between(topic LONGTEXT, from_time DATETIME(6), to_time DATETIME(6))
READS SQL DATA
BEGIN
    CALL list_log_epochs('log_epochs_between()', topic, NULL, from_time, to_time);
END;

-- name: changed_hours
-- The hours (UTC) in which log epochs were sealed of which something changed after a time: sealed, or a copy recorded,
-- moved or lost. It looks at the first max_changes (1 to 10,000) changes after that time, which an index finds, and
-- tells how many of them an hour has, and when the last of these was. Raises PS006.
CREATE PROCEDURE changed_hours(after DATETIME(6), max_changes INT)
READS SQL DATA
BEGIN
    CALL refuse_serializable('changed_hours()');
    IF NOT COALESCE(after IS NOT NULL AND max_changes BETWEEN 1 AND 10000, FALSE) THEN
        CALL refuse('PS006', CONCAT('the first ', COALESCE(max_changes, 'NULL'), ' changes after ',
                                    COALESCE(after, 'NULL'), ': give a time, and 1 to 10,000 changes'));
    END IF;
    SELECT f.address AS topic, CAST(DATE_FORMAT(f.sealed_at, '%Y-%m-%d %H:00:00') AS DATETIME(6)) AS hour,
           COUNT(*) AS changes, MAX(f.changed_at) AS changed_at
    FROM (
        SELECT u.address, u.sealed_at, u.changed_at
        FROM (
            (SELECT t.address, e.sealed_at, e.sealed_at AS changed_at
             FROM log_epochs AS e JOIN partitions AS p ON p.id = e.partition_id JOIN topics AS t ON t.id = p.topic_id
             WHERE e.sealed_at > after
               AND (NOT t.restricted AND @penstock_acting IS NULL OR has_right(t.namespace_id, 'any'))
             ORDER BY e.sealed_at
             LIMIT max_changes)
            UNION ALL
            (SELECT t.address, e.sealed_at, c.changed_at
             FROM epoch_copies AS c
             JOIN log_epochs AS e ON e.partition_id = c.partition_id AND e.log_epoch = c.log_epoch
             JOIN partitions AS p ON p.id = c.partition_id
             JOIN topics AS t ON t.id = p.topic_id
             WHERE c.changed_at > after
               AND (NOT t.restricted AND @penstock_acting IS NULL OR has_right(t.namespace_id, 'any'))
             ORDER BY c.changed_at
             LIMIT max_changes)
        ) AS u
        ORDER BY u.changed_at
        LIMIT max_changes
    ) AS f
    GROUP BY 1, 2
    ORDER BY 4, 1, 2;
END;

-- By design: functions of PostgreSQL return rows to each other. A procedure of MySQL returns them to the client, so all
-- that return the same columns call one that does.

-- name: list_log_epochs
-- The columns of log_epochs_of, for the log epochs that were sealed in a span of time (NULL: without that bound), and
-- of which a target holds no verified copy (NULL: all). Raises PS002.
CREATE PROCEDURE list_log_epochs(
    what VARCHAR(100), topic LONGTEXT, lacking_target VARCHAR(255), from_time DATETIME(6), to_time DATETIME(6)
)
READS SQL DATA
BEGIN
    DECLARE source_id BIGINT;
    DECLARE limit_before BIGINT UNSIGNED DEFAULT @@SESSION.group_concat_max_len;
    {{on error: SET SESSION group_concat_max_len = limit_before}}
    CALL refuse_serializable(what);
    CALL require_topic(topic, source_id);
    SET SESSION group_concat_max_len = 4294967295;
    SELECT p.number AS `partition`, e.log_epoch, e.first_sequence, e.last_sequence, e.event_count, e.checksum,
           e.sealed_at, e.dropped_at, COALESCE((
               SELECT JSON_ARRAYAGG(c.target) FROM epoch_copies AS c
               WHERE c.partition_id = e.partition_id AND c.log_epoch = e.log_epoch AND c.state = 'verified'
           ), '[]') AS targets, t.known_as
    FROM partitions AS p JOIN log_epochs AS e ON e.partition_id = p.id JOIN topics AS t ON t.id = p.topic_id
    WHERE p.topic_id = source_id
      AND e.sealed_at >= COALESCE(from_time, '1000-01-01') AND e.sealed_at < COALESCE(to_time, '9999-12-31')
      AND (lacking_target IS NULL OR NOT EXISTS (
          SELECT * FROM epoch_copies AS c
          WHERE c.partition_id = e.partition_id AND c.log_epoch = e.log_epoch AND c.target = lacking_target
            AND c.state = 'verified'
      ))
    ORDER BY p.number, e.log_epoch;
    SET SESSION group_concat_max_len = limit_before;
END;

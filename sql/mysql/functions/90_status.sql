-- name: log_status
-- The state of the log in one row: what waits, when the sequencer last found work, the oldest open transaction, and
-- how many event ids the storage can still take. For a login that does not pass the walls, it counts only what the
-- login may see, and figures that do not belong to a topic are NULL.
CREATE PROCEDURE log_status()
READS SQL DATA
BEGIN
    DECLARE waiting, lowest BIGINT DEFAULT 0;
    DECLARE oldest_transaction DOUBLE DEFAULT 0;
    DECLARE rejected, ready BIGINT;
    DECLARE whole BOOLEAN DEFAULT sees_all();
    CALL refuse_serializable('log_status()');
    BEGIN
        -- The catalog of transactions needs the right PROCESS.
        DECLARE CONTINUE HANDLER FOR 1227 BEGIN END;
        SELECT COALESCE(MAX(TIMESTAMPDIFF(SECOND, x.trx_started, SYSDATE())), 0) + 0e0 INTO oldest_transaction
        FROM information_schema.INNODB_TRX AS x
        WHERE x.trx_mysql_thread_id <> CONNECTION_ID();
    END;
    CALL find_unsequenced(waiting, lowest);
    CALL find_ids_ready(ready);
    CALL find_rejected_commits(rejected);
    SELECT waiting AS unsequenced_events, COALESCE((
               SELECT TIMESTAMPDIFF(MICROSECOND, e.created_at, UTC_TIMESTAMP(6)) / 1e6
               FROM events AS e
               WHERE e.id = lowest), 0e0) AS unsequenced_age_seconds,
           IF(whole, (SELECT TIMESTAMPDIFF(MICROSECOND, s.passed_at, UTC_TIMESTAMP(6)) / 1e6 FROM sequencer AS s), NULL)
               AS last_pass_age_seconds,
           IF(whole, oldest_transaction, NULL) AS oldest_transaction_seconds, IF(whole, ready, NULL) AS event_ids_ready,
           IF(whole, rejected, NULL) AS rejected_commits,
           (SELECT MAX(h.history) FROM histories AS h) AS history,
           (SELECT COUNT(t.id) FROM topics AS t WHERE whole OR NOT t.restricted OR has_right(t.namespace_id, 'any'))
               AS topics,
           (SELECT COUNT(s.id) FROM subscriptions AS s WHERE whole OR NOT reads_hidden(s.id)) AS subscriptions;
END;

-- name: find_ids_ready
-- How many ids the partitions of events can still take. It does not use the engine's own value of the
-- counter, which can be a day old.
CREATE PROCEDURE find_ids_ready(OUT ready BIGINT)
READS SQL DATA
BEGIN
    DECLARE used BIGINT;
    SELECT GREATEST(s.settled_block, COALESCE((SELECT MAX(p.block) FROM pending AS p), 0)) INTO used
    FROM sequencer AS s;
    SELECT MAX(CAST(p.PARTITION_DESCRIPTION AS SIGNED)) - used * 256 INTO ready
    FROM information_schema.PARTITIONS AS p
    WHERE p.TABLE_SCHEMA = DATABASE() AND p.TABLE_NAME = 'events';
END;

-- name: sequence_gaps
-- Partitions whose index of the log has a hole or an overlap: always empty unless something is badly wrong.
CREATE PROCEDURE sequence_gaps(topic VARCHAR(4000))
READS SQL DATA
BEGIN
    DECLARE owner_id BIGINT;
    CALL refuse_serializable('sequence_gaps()');
    CALL find_topic(topic, owner_id);
    SELECT g.number AS `partition`, g.expected, g.first_sequence AS found
    FROM (
        SELECT p.number, c.first_sequence, LENGTH(c.event_ids) = 8 * c.event_count AS is_whole,
               LAG(c.first_sequence + c.event_count) OVER (PARTITION BY p.id ORDER BY c.first_sequence) AS expected
        FROM partitions AS p JOIN chunks AS c ON c.partition_id = p.id
        WHERE p.topic_id = owner_id
    ) AS g
    WHERE g.first_sequence <> g.expected OR NOT g.is_whole
    ORDER BY g.number, g.first_sequence
    LIMIT 100;
END;

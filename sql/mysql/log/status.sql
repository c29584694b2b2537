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
           (SELECT COUNT(t.id) FROM topics AS t
            WHERE whole OR NOT t.restricted AND @penstock_acting IS NULL OR has_right(t.namespace_id, 'any'))
               AS topics,
           (SELECT COUNT(s.id) FROM subscriptions AS s WHERE whole OR NOT reads_hidden(s.id)) AS subscriptions;
END;

-- name: sequence_gaps
-- Partitions whose index of the log has a hole or an overlap: always empty unless something is badly wrong. Each
-- partition is looked at from a sequence on up to which it is known to be whole (a JSON array, by its number); else
-- from its first chunk.
CREATE PROCEDURE sequence_gaps(topic VARCHAR(4000), known JSON)
READS SQL DATA
BEGIN
    DECLARE owner_id, part_id, at, expected, found BIGINT;
    DECLARE part_number INT;
    DECLARE gaps LONGTEXT DEFAULT '[]';
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE parts CURSOR FOR
        SELECT p.id, p.number FROM partitions AS p WHERE p.topic_id = owner_id ORDER BY p.number;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    CALL refuse_serializable('sequence_gaps()');
    CALL require_topic(topic, owner_id);
    OPEN parts;
    part: LOOP
        FETCH parts INTO part_id, part_number;
        IF done THEN
            LEAVE part;
        END IF;
        SET at = COALESCE(CAST(JSON_UNQUOTE(JSON_EXTRACT(known, CONCAT('$[', part_number, ']'))) AS SIGNED), 0);
        gap: LOOP
            CALL find_gap(part_id, at, expected, found);
            IF found IS NULL OR JSON_LENGTH(gaps) >= 100 THEN
                LEAVE gap;
            END IF;
            SET gaps = JSON_ARRAY_APPEND(gaps, '$', JSON_ARRAY(part_number, expected, found)), at = found;
        END LOOP;
    END LOOP;
    CLOSE parts;
    SELECT g.number AS `partition`, g.expected, g.first_sequence AS found
    FROM JSON_TABLE(gaps, '$[*]' COLUMNS (
        number INT PATH '$[0]', expected BIGINT PATH '$[1]', first_sequence BIGINT PATH '$[2]'
    )) AS g
    ORDER BY g.number, g.first_sequence
    LIMIT 100;
END;

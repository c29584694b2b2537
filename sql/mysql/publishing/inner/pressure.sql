-- name: refuse_under_pressure
-- Refuses a publish to topics (a JSON array of ids) of which too much waits for its sequence (PS022).
CREATE PROCEDURE refuse_under_pressure(topic_ids JSON)
READS SQL DATA
BEGIN
    DECLARE problem VARCHAR(500);
    IF topic_ids IS NOT NULL THEN
        CALL pressure_problem(topic_ids, problem);
    END IF;
    IF problem IS NOT NULL THEN
        CALL refuse('PS022', problem);
    END IF;
END;

-- name: pressure_problem
-- Why topics (a JSON array of ids) take no event now, because too much of them waits for its sequence; or NULL. While
-- less waits in the whole log than the topic's limit, it reads nothing else. Above that, the last measurement decides.
-- If events wait and the last measurement is more than five seconds old, no sequencer is running, and the limit is
-- enforced without a measurement.
CREATE PROCEDURE pressure_problem(topic_ids JSON, OUT problem VARCHAR(500))
READS SQL DATA
check_pressure: BEGIN
    DECLARE lowest_limit, waiting, pressed_partition, pressed_events, pressed_bytes BIGINT;
    DECLARE pressed_topic VARCHAR(4000);
    DECLARE last_measure DATETIME(6);
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    SET problem = NULL;
    SELECT MIN(LEAST(COALESCE(t.max_unsequenced_events, 1000000),
                     COALESCE(t.max_unsequenced_bytes DIV GREATEST(t.max_payload_bytes, 1), 1000000)))
    INTO lowest_limit
    FROM topics AS t
    WHERE t.id IN (SELECT j.id FROM JSON_TABLE(topic_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS j);
    SELECT SUM(w.event_count) INTO waiting
    FROM (
        SELECT p.event_count - p.taken AS event_count
        FROM pending AS p
        WHERE p.block > (SELECT s.settled_block FROM sequencer AS s)
        ORDER BY p.block
        LIMIT 10000
    ) AS w;
    IF COALESCE(waiting, 0) < LEAST(lowest_limit, 10000) THEN
        LEAVE check_pressure;
    END IF;
    SELECT t.address, MOD(p.partition_id, 65536), p.events, p.bytes
    INTO pressed_topic, pressed_partition, pressed_events, pressed_bytes
    FROM pressure AS p JOIN topics AS t ON t.id = p.partition_id DIV 65536
    WHERE t.id IN (SELECT j.id FROM JSON_TABLE(topic_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS j)
      AND p.measured_at BETWEEN UTC_TIMESTAMP(6) - INTERVAL 5 SECOND AND UTC_TIMESTAMP(6) + INTERVAL 5 SECOND
    LIMIT 1;
    IF pressed_topic IS NOT NULL THEN
        SET problem = CONCAT(
            pressed_events, ' events of ', pressed_bytes, ' bytes wait for their sequence in partition ',
            pressed_partition, ' of topic "', LEFT(pressed_topic, 200), '"');
        LEAVE check_pressure;
    END IF;
    SELECT MAX(m.measured_at) INTO last_measure FROM pressure_measured AS m;
    IF NOT COALESCE(last_measure BETWEEN UTC_TIMESTAMP(6) - INTERVAL 5 SECOND
                                 AND UTC_TIMESTAMP(6) + INTERVAL 5 SECOND, FALSE) THEN
        SET problem = 'nobody gives events their sequences: start penstock upkeep';
    END IF;
END;

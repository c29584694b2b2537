-- name: set_backpressure
-- Limits how much of a topic may wait for its sequence, in events and in bytes of payload for each partition; NULL
-- means no limit. Publishers obey it at once. Raises PS002, PS006, PS018.
CREATE PROCEDURE set_backpressure(topic VARCHAR(4000), max_events BIGINT, max_bytes BIGINT)
BEGIN
    DECLARE owner_id BIGINT;
    {{on error: CALL undo_call()}}
    CALL begin_call('set_backpressure()');
    CALL require_topic_for(topic, 'operate', owner_id);
    IF max_events < 1 OR max_bytes < 1 THEN
        CALL refuse('PS006', CONCAT('the limits cannot be ', COALESCE(max_events, 'no'), ' events and ',
                                    COALESCE(max_bytes, 'no'), ' bytes'));
    END IF;
    UPDATE topics AS t
    SET t.max_unsequenced_events = max_events, t.max_unsequenced_bytes = max_bytes
    WHERE t.id = owner_id;
    CALL end_call();
END;

-- name: measure_pressure
-- Measures, among the oldest 100,000 waiting events, how much waits in the partitions of topics that have a limit,
-- and records the partitions at their limit. Returns how many those are. The sequencer's worker calls it once a
-- second; where no topic has a limit it does nothing.
CREATE PROCEDURE measure_pressure()
measure: BEGIN
    DECLARE present DATETIME(6) DEFAULT UTC_TIMESTAMP(6);
    DECLARE pressed, limited INT DEFAULT 0;
    DECLARE is_mine BOOLEAN DEFAULT FALSE;
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    {{on error: CALL undo_call()}}
    CALL begin_call('measure_pressure()');
    SELECT 1 INTO limited
    FROM topics AS t
    WHERE t.max_unsequenced_events IS NOT NULL OR t.max_unsequenced_bytes IS NOT NULL
    LIMIT 1;
    IF limited THEN
        -- A session that cannot lock the row leaves the work to the one that is measuring.
        SELECT m.singleton INTO is_mine FROM pressure_measured AS m FOR UPDATE SKIP LOCKED;
    END IF;
    IF NOT is_mine THEN
        SELECT 0 AS pressed;
        CALL end_call();
        LEAVE measure;
    END IF;
    REPLACE INTO pressure (partition_id, events, bytes, measured_at)
    SELECT w.partition_id, COUNT(*), SUM(w.bytes), present
    FROM (
        SELECT STRAIGHT_JOIN e.partition_id, LENGTH(e.payload) AS bytes
        FROM (
            SELECT p.block, p.event_count, p.taken
            FROM pending AS p
            WHERE p.block > (SELECT s.settled_block FROM sequencer AS s)
            ORDER BY p.block
            LIMIT 100000
        ) AS b
        JOIN places AS l
            ON l.size = 1 << CAST(CEIL(LOG2(b.event_count)) AS UNSIGNED) AND l.n >= b.taken AND l.n < b.event_count
        JOIN events AS e ON e.id = b.block * 256 + l.n
        LIMIT 100000
    ) AS w
    JOIN topics AS t ON t.id = w.partition_id DIV 65536
    GROUP BY w.partition_id, t.max_unsequenced_events, t.max_unsequenced_bytes
    HAVING COUNT(*) >= t.max_unsequenced_events OR SUM(w.bytes) >= t.max_unsequenced_bytes;
    DELETE FROM pressure WHERE measured_at <> present;
    UPDATE pressure_measured SET measured_at = present WHERE singleton;
    SELECT COUNT(*) INTO pressed FROM pressure AS p;
    SELECT pressed AS pressed;
    CALL end_call();
END;

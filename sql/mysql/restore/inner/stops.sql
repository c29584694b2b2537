-- name: stop_partition
-- Stops a partition for a subscription, or for all readers (0). Of several reports the one that is furthest
-- counts.
CREATE PROCEDURE stop_partition(part_id BIGINT, owner_id BIGINT, seen BIGINT, seen_history INT, source TEXT)
BEGIN
    DECLARE known_sequence BIGINT;
    DECLARE known_history INT;
    SELECT MAX(s.sequence), MAX(s.history) INTO known_sequence, known_history
    FROM stops AS s WHERE s.partition_id = part_id AND s.subscription_id = owner_id;
    IF known_history IS NULL OR seen_history > known_history
        OR (seen_history = known_history AND seen > known_sequence) THEN
        REPLACE INTO stops (partition_id, subscription_id, sequence, history, source)
        VALUES (part_id, owner_id, seen, seen_history, LEFT(source, 500));
    END IF;
END;

-- name: stop_reported
-- What report_positions does with each partition: a stop is for all readers where the login may operate the topic.
CREATE PROCEDURE stop_reported(
    partition_ids JSON, sequences JSON, seen_histories JSON, owner_id BIGINT, present INT, source TEXT, OUT known JSON
)
BEGIN
    DECLARE part_id, seen, of_namespace BIGINT;
    DECLARE seen_history, leased INT;
    DECLARE is_restricted, may_operate BOOLEAN;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE given CURSOR FOR
        SELECT p.id, g.sequence, h.history, t.restricted OR @penstock_acting IS NOT NULL, t.namespace_id
        FROM JSON_TABLE(partition_ids, '$[*]' COLUMNS (place FOR ORDINALITY, id BIGINT PATH '$')) AS i
        JOIN JSON_TABLE(sequences, '$[*]' COLUMNS (place FOR ORDINALITY, sequence BIGINT PATH '$')) AS g
            ON g.place = i.place
        JOIN JSON_TABLE(seen_histories, '$[*]' COLUMNS (place FOR ORDINALITY, history INT PATH '$')) AS h
            ON h.place = i.place
        JOIN partitions AS p ON p.id = i.id
        JOIN topics AS t ON t.id = p.topic_id
        ORDER BY p.id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    SET known = JSON_ARRAY();
    OPEN given;
    part: LOOP
        FETCH given INTO part_id, seen, seen_history, is_restricted, of_namespace;
        IF done THEN
            LEAVE part;
        END IF;
        SET may_operate = NOT is_restricted;
        IF is_restricted THEN
            SET may_operate = has_right(of_namespace, 'operate');
        END IF;
        SELECT COUNT(*) INTO leased FROM leases AS l WHERE l.subscription_id = owner_id AND l.partition_id = part_id;
        IF may_operate OR leased > 0 THEN
            SET known = JSON_ARRAY_APPEND(known, '$', part_id);
            IF seen_history > present OR (seen_history = present AND seen > high_watermark(part_id)) THEN
                CALL stop_partition(part_id, IF(may_operate, 0, owner_id), seen, seen_history, source);
            END IF;
        END IF;
    END LOOP;
    CLOSE given;
END;

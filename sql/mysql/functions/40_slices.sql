-- name: droppable_slices
-- The partitions of events in which every event is logically gone: sequenced, behind the low sequence, and none delayed. What is
-- not committed yet is looked for when they are dropped, behind a lock that ends every publisher's transaction. None while a
-- restore has left something to be repaired.
CREATE PROCEDURE droppable_slices()
READS SQL DATA
BEGIN
    DECLARE settled BIGINT;
    DECLARE is_torn BOOLEAN;
    CALL find_needs_repair(is_torn);
    SELECT s.settled_block INTO settled FROM sequencer AS s;
    SELECT s.slice, s.first_id, s.last_id
    FROM (
        SELECT p.PARTITION_NAME AS slice, CAST(p.PARTITION_DESCRIPTION AS SIGNED) - 1 AS last_id,
               COALESCE(LAG(CAST(p.PARTITION_DESCRIPTION AS SIGNED)) OVER (ORDER BY p.PARTITION_ORDINAL_POSITION), 0) AS first_id
        FROM information_schema.PARTITIONS AS p
        WHERE p.TABLE_SCHEMA = DATABASE() AND p.TABLE_NAME = 'events'
    ) AS s
    WHERE NOT is_torn AND s.last_id < settled * 256
      AND NOT EXISTS (SELECT * FROM pending AS w WHERE w.block * 256 <= s.last_id)
      AND NOT EXISTS (SELECT * FROM delayed_events AS d WHERE d.id <= s.last_id AND d.id >= s.first_id)
      AND NOT EXISTS (
          SELECT *
          FROM chunks AS c JOIN partitions AS p ON p.id = c.partition_id
          WHERE c.first_id <= s.last_id AND c.last_id >= s.first_id AND c.first_sequence + c.event_count > p.low_sequence)
    ORDER BY s.first_id;
END;

-- name: slices_ready
-- How many ids the events can still take, and in how many partitions they stand.
CREATE PROCEDURE slices_ready()
READS SQL DATA
BEGIN
    DECLARE ready, used BIGINT;
    CALL find_ids_ready(ready);
    SET used = GREATEST(
        (SELECT s.settled_block FROM sequencer AS s), COALESCE((SELECT MAX(p.block) FROM pending AS p), 0)) * 256;
    SELECT 'events' AS parent, used AS used, ready AS ready, NULL AS days, COUNT(*) AS slices
    FROM information_schema.PARTITIONS AS p
    WHERE p.TABLE_SCHEMA = DATABASE() AND p.TABLE_NAME = 'events';
END;

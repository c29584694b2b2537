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

-- name: find_gap
-- The first hole or overlap after a sequence in the index of a partition, which is known to be whole up to there; NULL
-- when there is none.
CREATE PROCEDURE find_gap(of_partition BIGINT, known BIGINT, OUT expected BIGINT, OUT found BIGINT)
READS SQL DATA
BEGIN
    SELECT MIN(w.expected), MIN(w.first_sequence) INTO expected, found
    FROM (
        SELECT g.expected, g.first_sequence
        FROM (
            SELECT c.first_sequence, LENGTH(c.event_ids) = 8 * c.event_count AS is_whole,
                   LAG(c.first_sequence + c.event_count) OVER (ORDER BY c.first_sequence) AS expected
            FROM chunks AS c
            WHERE c.partition_id = of_partition
              AND c.first_sequence >= COALESCE((
                  SELECT MAX(h.first_sequence) FROM chunks AS h
                  WHERE h.partition_id = of_partition AND h.first_sequence <= known), 0)
        ) AS g
        WHERE g.first_sequence > known AND (g.first_sequence <> g.expected OR NOT g.is_whole)
        ORDER BY g.first_sequence
        LIMIT 1
    ) AS w;
END;

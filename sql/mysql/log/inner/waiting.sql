-- By design: PostgreSQL counts what waits by its ticks, MySQL by its waiting blocks.

-- name: find_unsequenced
-- How many committed events wait for their sequence (counted up to 10,000 blocks), and the lowest id of them: of the
-- late blocks, above the floor, and now and then below it (see has_looked_below). While something waits below the
-- floor, every call looks there. A login that does not pass the walls sees only the events of topics that it may see
-- (up to 10,000).
CREATE PROCEDURE find_unsequenced(OUT waiting BIGINT, OUT lowest BIGINT)
READS SQL DATA
BEGIN
    DECLARE bottom, lowest_block BIGINT;
    SELECT IF(has_looked_below(), s.floor_block, 0) INTO bottom FROM sequencer AS s;
    SELECT COALESCE(SUM(w.used), 0), MIN(w.block * 256 + w.taken), MIN(w.block) INTO waiting, lowest, lowest_block
    FROM (
        (SELECT STRAIGHT_JOIN p.block, p.taken, p.event_count - p.taken AS used
         FROM late_blocks AS l JOIN pending AS p FORCE INDEX (PRIMARY) ON p.block = l.block
         WHERE l.block <= bottom AND p.event_count > 0
         ORDER BY l.block
         LIMIT 10000)
        UNION ALL
        (SELECT p.block, p.taken, p.event_count - p.taken
         FROM pending AS p FORCE INDEX (PRIMARY)
         WHERE p.block > bottom AND p.event_count > 0
         ORDER BY p.block
         LIMIT 10000)
        ORDER BY block
        LIMIT 10000
    ) AS w;
    IF bottom = 0 THEN
        SELECT IF(lowest_block <= s.floor_block, NULL, UNIX_TIMESTAMP()) INTO @penstock_looked FROM sequencer AS s;
    END IF;
    IF NOT sees_all() THEN
        SELECT COUNT(w.id), MIN(w.id) INTO waiting, lowest
        FROM (
            SELECT STRAIGHT_JOIN e.id
            FROM pending AS p FORCE INDEX (PRIMARY)
            JOIN places AS l
                ON l.size = 1 << CAST(CEIL(LOG2(p.event_count)) AS UNSIGNED) AND l.n >= p.taken AND l.n < p.event_count
            JOIN events AS e ON e.id = p.block * 256 + l.n
            JOIN (
                SELECT t.id FROM topics AS t
                WHERE NOT t.restricted AND @penstock_acting IS NULL OR has_right(t.namespace_id, 'any')
                LIMIT 100000000
            ) AS v ON v.id = e.partition_id DIV 65536
            WHERE p.block >= lowest_block AND p.event_count > 0
            ORDER BY p.block
            LIMIT 10000
        ) AS w;
    END IF;
END;

-- name: find_unsequenced
-- How many committed events wait for their sequence (counted up to 10,000 blocks), and the lowest id of them. A login
-- that does not pass the walls sees only those of topics that it may see (up to 10,000).
CREATE PROCEDURE find_unsequenced(OUT waiting BIGINT, OUT lowest BIGINT)
READS SQL DATA
BEGIN
    IF NOT sees_all() THEN
        SELECT COUNT(w.id), MIN(w.id) INTO waiting, lowest
        FROM (
            SELECT e.id
            FROM events AS e
            JOIN pending AS p ON p.block = e.id DIV 256 AND p.taken <= e.id MOD 256
            JOIN (
                SELECT t.id FROM topics AS t WHERE NOT t.restricted OR has_right(t.namespace_id, 'any') LIMIT 100000000
            ) AS v ON v.id = e.partition_id DIV 65536
            WHERE e.id >= (SELECT s.settled_block * 256 FROM sequencer AS s)
            ORDER BY e.id
            LIMIT 10000
        ) AS w;
    ELSE
        SELECT COALESCE(SUM(w.event_count), 0), MIN(w.id) INTO waiting, lowest
        FROM (
            SELECT p.event_count - p.taken AS event_count, p.block * 256 + p.taken AS id
            FROM pending AS p
            WHERE p.block > (SELECT s.settled_block FROM sequencer AS s)
            ORDER BY p.block
            LIMIT 10000
        ) AS w;
    END IF;
END;

-- name: unsequenced
-- How many committed events wait for their sequence (counted up to 10,000 blocks) and for how long the oldest
-- of them has waited.
CREATE PROCEDURE unsequenced()
READS SQL DATA
BEGIN
    DECLARE waiting, lowest BIGINT DEFAULT 0;
    CALL refuse_serializable('unsequenced()');
    CALL find_unsequenced(waiting, lowest);
    SELECT waiting AS events, COALESCE((
        SELECT TIMESTAMPDIFF(MICROSECOND, e.created_at, UTC_TIMESTAMP(6)) / 1e6
        FROM events AS e
        WHERE e.id = lowest), 0e0) AS oldest_age_seconds;
END;

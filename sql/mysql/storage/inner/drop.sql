-- By design: a slice is a table of its own on PostgreSQL, and a partition that only a program can drop on MySQL.

-- name: settled_events
-- No event with an id below the result can still come, or waits for its sequence: all below the floor except the late
-- blocks, and what a counter that was set back has put there. None at all while a restore has left something to be
-- repaired.
CREATE PROCEDURE settled_events(OUT settled_id BIGINT)
READS SQL DATA
BEGIN
    DECLARE is_torn BOOLEAN;
    CALL find_needs_repair(is_torn);
    SELECT IF(is_torn, 0, 1) * LEAST(
               (s.floor_block + 1) * 256,
               COALESCE((SELECT MIN(l.block) * 256 FROM late_blocks AS l), 9223372036854775807),
               COALESCE((SELECT MIN(p.block) * 256 FROM pending AS p WHERE p.event_count > 0), 9223372036854775807))
    INTO settled_id
    FROM sequencer AS s;
END;

-- name: first_open_block
-- The lowest id of a relay's block that is open; all after it may be open.
CREATE FUNCTION first_open_block() RETURNS BIGINT
READS SQL DATA
BEGIN
    DECLARE found BIGINT;
    SELECT MIN(n.id) INTO found
    FROM (
        SELECT b.id, b.first_sequence, current_position(l.subscription_id, l.partition_id) AS position
        FROM leases AS l JOIN blocks AS b ON b.id = (
            SELECT o.id FROM blocks AS o FORCE INDEX (blocks_newest)
            WHERE o.subscription_id = l.subscription_id AND o.partition_id = l.partition_id
            ORDER BY o.subscription_id DESC, o.partition_id DESC, o.id DESC
            LIMIT 1)
        LIMIT 100000000  -- Keeps it from being merged into the query.
    ) AS n
    WHERE n.first_sequence = n.position + 1;
    RETURN COALESCE(found, 9223372036854775807);
END;

-- name: newest_positions
-- Of each lease, the id of its newest row of the ledger.
CREATE OR REPLACE SQL SECURITY INVOKER VIEW newest_positions AS
SELECT l.subscription_id, l.partition_id, (
           SELECT p.id
           FROM positions AS p FORCE INDEX (positions_newest)
           WHERE p.subscription_id = l.subscription_id AND p.partition_id = l.partition_id
           ORDER BY p.subscription_id DESC, p.partition_id DESC, p.id DESC
           LIMIT 1) AS id
FROM leases AS l;

-- By design: a slice is a table of its own on PostgreSQL, and a partition that only a program can make on MySQL.

-- name: slices
-- The partitions of the insert-only tables, as the catalog has them: slices of ids, each from first_id to last_id.
CREATE OR REPLACE SQL SECURITY INVOKER VIEW slices AS
SELECT p.TABLE_NAME AS parent, p.PARTITION_NAME AS slice,
       COALESCE(LAG(CAST(p.PARTITION_DESCRIPTION AS SIGNED)) OVER (
           PARTITION BY p.TABLE_NAME ORDER BY p.PARTITION_ORDINAL_POSITION), 0) AS first_id,
       CAST(p.PARTITION_DESCRIPTION AS SIGNED) - 1 AS last_id, p.TABLE_ROWS AS row_estimate
FROM information_schema.PARTITIONS AS p
WHERE p.TABLE_SCHEMA = DATABASE() AND p.PARTITION_NAME IS NOT NULL;

-- name: slice_sources
-- The counters by which the insert-only tables are cut into slices, and the highest number given out that can
-- be seen.
CREATE OR REPLACE SQL SECURITY INVOKER VIEW slice_sources AS
SELECT 'events' AS parent, 256 * GREATEST((SELECT s.settled_block FROM sequencer AS s),
                                          COALESCE((SELECT MAX(p.block) FROM pending AS p), 0)) AS used
UNION ALL SELECT 'positions', COALESCE((SELECT MAX(p.id) FROM positions AS p), 0)
UNION ALL SELECT 'lease_history', COALESCE((SELECT MAX(h.id) FROM lease_history AS h), 0)
UNION ALL SELECT 'blocks', COALESCE((SELECT MAX(b.id) FROM blocks AS b), 0)
UNION ALL SELECT 'relay_failures', COALESCE((SELECT MAX(b.id) FROM blocks AS b), 0);

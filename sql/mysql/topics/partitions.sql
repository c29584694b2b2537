-- name: partition_of
-- The partition of a key: the same on every engine and in Python. Stored events keep the partition that they were
-- given.
CREATE PROCEDURE partition_of(`key` LONGTEXT, partitions INT)
NO SQL
BEGIN
    SELECT MOD(CRC32(`key`), partitions) AS `partition`;
END;

-- By design: PostgreSQL tells clusters and timelines apart, MySQL servers and the age of a table.

-- name: log_identity
-- Which server this is, and when log_mark was made (seconds since 1970). MySQL keeps the first in its data directory:
-- a copy of the directory has the same one, a replica another one. The second is the time of the CREATE TABLE.
-- MariaDB identifies a server only by its server_id, which replicas must not share; but there the second is the time
-- of the file, so that a copy of the files is recognized too.
CREATE PROCEDURE log_identity(OUT server VARCHAR(200), OUT made BIGINT)
READS SQL DATA
BEGIN
    DECLARE zone VARCHAR(64) DEFAULT @@SESSION.time_zone;
    -- In a zone with summer time, one hour of the year occurs twice.
    SET SESSION time_zone = '+00:00';
    SELECT COALESCE(MAX(UNIX_TIMESTAMP(t.CREATE_TIME)), 0) INTO made
    FROM information_schema.TABLES AS t
    WHERE t.TABLE_SCHEMA = DATABASE() AND t.TABLE_NAME = 'log_mark';
    SET SESSION time_zone = zone;
    SET server = /*!80000 @@GLOBAL.server_uuid */ /*M! @@GLOBAL.server_id */;
END;

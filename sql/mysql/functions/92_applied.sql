-- name: applied_migrations
-- What was applied to the schema, by migration number; 0 stands for the functions. So programs whose login may not read
-- tables can tell whether the schema fits them.
CREATE PROCEDURE applied_migrations()
READS SQL DATA
BEGIN
    CALL refuse_serializable('applied_migrations()');
    SELECT m.version, m.name, m.checksum, m.oldest_program, m.program, m.applied_at, m.applied_by
    FROM schema_migrations AS m
    ORDER BY m.version;
END;

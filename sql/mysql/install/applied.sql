-- name: applied_migrations
-- The migrations that were applied to the schema, by number; 0 stands for the functions. From it, a program whose
-- login may not read tables can tell whether the schema fits the program.
CREATE PROCEDURE applied_migrations()
READS SQL DATA
BEGIN
    CALL refuse_serializable('applied_migrations()');
    SELECT m.version, m.name, m.checksum, m.oldest_program, m.program, m.applied_at, m.applied_by
    FROM schema_migrations AS m
    ORDER BY m.version;
END;

-- name: applied_migrations
-- The migrations that were applied to the schema, by number; 0 stands for the functions. From it, a program whose
-- login may not read tables can tell whether the schema fits the program.
CREATE OR REPLACE FUNCTION applied_migrations()
RETURNS TABLE (
    version integer, name text, checksum text, oldest_program integer, program text, applied_at timestamptz,
    applied_by text
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT m.version, m.name, m.checksum, m.oldest_program, m.program, m.applied_at, m.applied_by
    FROM schema_migrations AS m
    ORDER BY m.version
$$;

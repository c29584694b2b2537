-- name: applied_migrations
-- What was applied to the schema, by migration number; 0 stands for the functions. So programs whose login may not read
-- tables can tell whether the schema fits them.
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

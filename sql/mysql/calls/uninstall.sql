-- name: installed_parts
-- What the schema has: tables and procedures, with their names. MariaDB lists the session's own temporary tables too.
-- reads only
SELECT t.TABLE_NAME, 'table' FROM information_schema.TABLES AS t
WHERE t.TABLE_SCHEMA = %(schema)s AND t.TABLE_TYPE <> 'TEMPORARY'
UNION ALL
SELECT r.ROUTINE_NAME, 'function' FROM information_schema.ROUTINES AS r WHERE r.ROUTINE_SCHEMA = %(schema)s
ORDER BY 2, 1

-- name: installed_slices
-- Slices are partitions here. This is the table by which clean exchanges one; it is left when clean was killed.
-- reads only
SELECT 'events_rest'

-- name: installed_users
-- Views of other schemas that use a table of this one: they would be broken.
-- reads only
SELECT CONCAT(v.TABLE_SCHEMA, '.', v.TABLE_NAME)
FROM information_schema.VIEWS AS v
WHERE v.TABLE_SCHEMA <> %(schema)s AND LOCATE(CONCAT('`', %(schema)s, '`.'), v.VIEW_DEFINITION) > 0
ORDER BY 1

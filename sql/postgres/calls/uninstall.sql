-- name: installed_parts
-- What the schema has: tables, functions, and, of those that no other program may have put there, their names.
SELECT c.relname::text, CASE WHEN c.relispartition THEN 'slice' ELSE 'table' END
FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = %(schema)s AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
UNION ALL
SELECT p.proname::text, 'function'
FROM pg_catalog.pg_proc AS p JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
WHERE n.nspname = %(schema)s
UNION ALL
SELECT s.slot_name::text, 'slot'
FROM pg_catalog.pg_replication_slots AS s
WHERE s.database = current_database()
ORDER BY 2, 1

-- name: installed_slices
-- The slices of tables, also those that clean has detached and not dropped yet, and the one that is being merged.
SELECT s.slice FROM penstock.slices AS s
UNION ALL SELECT 'chunks_merged'

-- name: installed_users
-- What outside of the schema uses something in it, and would go with it, or would lose a part. Who owns an object is
-- told by its id, never by its name; what has no schema (a cast, an extension, a publication) is outside.
WITH places (classid, objid, home) AS (
    SELECT c.tableoid, c.oid, c.relnamespace FROM pg_catalog.pg_class AS c
    UNION ALL SELECT p.tableoid, p.oid, p.pronamespace FROM pg_catalog.pg_proc AS p
    UNION ALL SELECT t.tableoid, t.oid, t.typnamespace FROM pg_catalog.pg_type AS t
    UNION ALL SELECT k.tableoid, k.oid, k.connamespace FROM pg_catalog.pg_constraint AS k
    UNION ALL SELECT e.tableoid, e.oid, e.stxnamespace FROM pg_catalog.pg_statistic_ext AS e
    UNION ALL SELECT a.tableoid, a.oid, a.defaclnamespace FROM pg_catalog.pg_default_acl AS a
    UNION ALL SELECT n.tableoid, n.oid, n.oid FROM pg_catalog.pg_namespace AS n
    UNION ALL
    SELECT part.classid, part.objid, c.relnamespace
    FROM (
        SELECT r.tableoid, r.oid, r.ev_class FROM pg_catalog.pg_rewrite AS r
        UNION ALL SELECT g.tableoid, g.oid, g.tgrelid FROM pg_catalog.pg_trigger AS g
        UNION ALL SELECT f.tableoid, f.oid, f.adrelid FROM pg_catalog.pg_attrdef AS f
        UNION ALL SELECT y.tableoid, y.oid, y.polrelid FROM pg_catalog.pg_policy AS y
    ) AS part (classid, objid, relation)
    JOIN pg_catalog.pg_class AS c ON c.oid = part.relation
)
SELECT DISTINCT (pg_catalog.pg_identify_object(d.classid, d.objid, d.objsubid)).identity
FROM pg_catalog.pg_namespace AS n
JOIN places AS used ON used.home = n.oid
JOIN pg_catalog.pg_depend AS d ON d.refclassid = used.classid AND d.refobjid = used.objid
LEFT JOIN places AS own ON own.classid = d.classid AND own.objid = d.objid
WHERE n.nspname = %(schema)s AND d.deptype IN ('n', 'a') AND own.home IS DISTINCT FROM n.oid
ORDER BY 1

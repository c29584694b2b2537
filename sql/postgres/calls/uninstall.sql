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

-- name: installed_users
-- What outside of the schema uses something in it, and would go with it: views, triggers, defaults.
SELECT DISTINCT (pg_catalog.pg_identify_object(d.classid, d.objid, d.objsubid)).identity
FROM pg_catalog.pg_depend AS d
JOIN pg_catalog.pg_namespace AS n ON n.nspname = %(schema)s
LEFT JOIN pg_catalog.pg_class AS c ON d.refclassid = 'pg_catalog.pg_class'::regclass AND c.oid = d.refobjid
LEFT JOIN pg_catalog.pg_proc AS p ON d.refclassid = 'pg_catalog.pg_proc'::regclass AND p.oid = d.refobjid
WHERE n.oid IN (c.relnamespace, p.pronamespace) AND d.deptype = 'n'
  AND d.classid IN ('pg_catalog.pg_rewrite'::regclass, 'pg_catalog.pg_trigger'::regclass,
                    'pg_catalog.pg_attrdef'::regclass, 'pg_catalog.pg_constraint'::regclass)
  AND strpos((pg_catalog.pg_identify_object(d.classid, d.objid, d.objsubid)).identity,
             pg_catalog.quote_ident(%(schema)s) || '.') = 0
ORDER BY 1

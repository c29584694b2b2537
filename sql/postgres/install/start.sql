-- name: check_functions
-- The functions were made in the order of their files, whatever they call. Now that all exist, their bodies are
-- checked, as PostgreSQL checks them otherwise when each is made.
SET LOCAL check_function_bodies = on;
SELECT fmgr_sql_validator(p.oid)
FROM pg_proc AS p JOIN pg_language AS l ON l.oid = p.prolang
WHERE p.xmin = pg_current_xact_id()::xid AND l.lanname = 'sql';
SELECT plpgsql_validator(p.oid)
FROM pg_proc AS p JOIN pg_language AS l ON l.oid = p.prolang
WHERE p.xmin = pg_current_xact_id()::xid AND l.lanname = 'plpgsql';

-- name: revoke_from_public
-- PostgreSQL gives EXECUTE on every new function to PUBLIC. This revokes it, so that only granted roles keep
-- it.
DO $rights$
BEGIN
    EXECUTE format('REVOKE ALL ON ALL FUNCTIONS IN SCHEMA %I FROM PUBLIC', current_schema());
    EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA %I FROM PUBLIC', current_schema());
END
$rights$;

-- name: grant_to_installed_roles
-- Gives rights on new functions to the roles that were installed before. This needs no right to create roles. A role
-- with such a name that was never installed in this database gets nothing.
SELECT grant_functions(k.kind)
FROM unnest('{accounts,consumer,gateway,installer,operator,publisher,reader}'::text[]) AS k (kind)
JOIN pg_roles AS r ON r.rolname = current_schema() || '_' || k.kind
JOIN pg_namespace AS n ON n.nspname = current_schema()
JOIN LATERAL aclexplode(n.nspacl) AS a ON a.grantee = r.oid AND a.privilege_type = 'USAGE';

-- name: first_slices
-- Creates the first storage.
SELECT ensure_slices();

-- name: first_era
-- Creates the first era: transaction numbers are compared within an era, so there must be one to begin with.
INSERT INTO eras (era, system_identifier, timeline, boundary_id, base, settled)
SELECT 1, i.system_identifier, i.timeline, 0, committed_snapshot(), pg_current_xact_id()
FROM log_identity() AS i
WHERE NOT EXISTS (SELECT FROM eras);

-- name: first_tick
-- Creates the first tick: the sequencer works on differences between snapshots, so it needs one from before any
-- event.
INSERT INTO ticks (id, base, target, last_id, complete, highest_id, horizon)
SELECT 1, committed_snapshot(), committed_snapshot(), 0, true, 0, pg_current_xact_id()
WHERE NOT EXISTS (SELECT FROM ticks);

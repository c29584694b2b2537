-- By design: a GRANT commits on MySQL, so the program makes it, and the roles are recorded.

-- name: grant_functions
-- Gives one of the roles USAGE on the schema and EXECUTE on its functions, and takes back any other rights that it
-- had there.
CREATE OR REPLACE FUNCTION grant_functions(kind text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    role_name text := current_schema() || '_' || kind;
    called regprocedure;
BEGIN
    EXECUTE format('REVOKE ALL ON ALL FUNCTIONS IN SCHEMA %I FROM %I', current_schema(), role_name);
    EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA %I FROM %I', current_schema(), role_name);
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', current_schema(), role_name);
    FOR called IN
        SELECT p.oid
        FROM function_roles() AS f JOIN pg_proc AS p ON p.proname = f.function
        WHERE p.pronamespace = to_regnamespace(quote_ident(current_schema())) AND kind = ANY (f.roles)
        ORDER BY p.oid
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', called, role_name);
    END LOOP;
END
$$;

-- name: revoke_from_public
-- PostgreSQL gives EXECUTE on every new function to everybody; nobody keeps it who was not granted it.
DO $rights$
BEGIN
    EXECUTE format('REVOKE ALL ON ALL FUNCTIONS IN SCHEMA %I FROM PUBLIC', current_schema());
    EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA %I FROM PUBLIC', current_schema());
END
$rights$;

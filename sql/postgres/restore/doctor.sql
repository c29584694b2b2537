-- By design: only PostgreSQL's log knows its cluster by functions that a server may refuse.

-- name: untold_identity
-- What the log cannot learn of its server, because the server refuses these functions to the owner of the schema:
-- 'cluster' or 'timeline'.
CREATE OR REPLACE FUNCTION untold_identity() RETURNS TABLE (what text, functions text, login text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT u.what, u.functions, current_user::text
    FROM log_identity() AS i
    CROSS JOIN LATERAL (
        VALUES ('cluster', i.system_identifier IS NULL, 'pg_control_system()'),
               ('timeline', i.timeline IS NULL, 'pg_current_wal_insert_lsn(), pg_walfile_name(pg_lsn)')
    ) AS u (what, is_untold, functions)
    WHERE u.is_untold
$$;

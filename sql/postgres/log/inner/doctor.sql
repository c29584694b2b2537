-- By design: on MySQL the doctor reads the server's own tables, see calls/doctor.sql.

-- name: wal_since
-- How many bytes of WAL were written since this position. NULL on a replica, and where the server refuses to tell.
CREATE OR REPLACE FUNCTION wal_since(place pg_lsn) RETURNS numeric
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN CASE WHEN NOT pg_is_in_recovery() THEN pg_wal_lsn_diff(pg_current_wal_lsn(), place) END;
EXCEPTION WHEN insufficient_privilege OR feature_not_supported OR undefined_function THEN
    RETURN NULL;
END
$$;

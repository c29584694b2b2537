-- By design: MySQL has no NOTIFY.

-- name: notices_used
-- How full the queue of notices is, from 0 to 1. Where the server refuses to tell, it counts as empty.
CREATE OR REPLACE FUNCTION notices_used() RETURNS double precision
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN pg_notification_queue_usage();
EXCEPTION WHEN insufficient_privilege OR feature_not_supported OR undefined_function THEN
    RETURN 0;
END
$$;

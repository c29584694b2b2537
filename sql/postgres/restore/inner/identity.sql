-- By design: PostgreSQL tells clusters and timelines apart, MySQL servers and the age of a table.

-- name: log_identity
-- The cluster, and its timeline: a restore changes one of the two. NULL is what the server refuses to tell the owner of
-- the schema, as a managed server may. An unknown cluster or timeline counts as the same. A block with an exception
-- handler that writes nothing takes no transaction number; the two cost a pass 1 to 3 microseconds.
CREATE OR REPLACE FUNCTION log_identity(OUT system_identifier bigint, OUT timeline text)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    BEGIN
        SELECT c.system_identifier INTO system_identifier FROM pg_control_system() AS c;
    EXCEPTION WHEN insufficient_privilege OR feature_not_supported OR undefined_function THEN
        system_identifier := NULL;
    END;
    BEGIN
        timeline := left(pg_walfile_name(pg_current_wal_insert_lsn()), 8);
    EXCEPTION WHEN insufficient_privilege OR feature_not_supported OR undefined_function THEN
        timeline := NULL;
    END;
END
$$;

-- name: learn_identity
-- Completes the present era by what the server refused to tell when the era began.
CREATE OR REPLACE FUNCTION learn_identity() RETURNS void
LANGUAGE sql VOLATILE AS $$
    UPDATE eras AS e
    SET system_identifier = COALESCE(e.system_identifier, i.system_identifier),
        timeline = COALESCE(e.timeline, i.timeline)
    FROM log_identity() AS i
    WHERE e.era = (current_era()).era
      AND (e.system_identifier IS NULL AND i.system_identifier IS NOT NULL
           OR e.timeline IS NULL AND i.timeline IS NOT NULL)
$$;

-- name: is_one_cluster
-- Whether all eras from this one on ran for certain in the present cluster. If not, a restore has written the rows of
-- older eras anew, maybe with higher numbers than those of the transactions that published them; is_own_number() may
-- then take such a row for one that its own transaction has written.
CREATE OR REPLACE FUNCTION is_one_cluster(since integer) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT NOT EXISTS (
        SELECT FROM eras AS e, log_identity() AS i
        WHERE e.era >= is_one_cluster.since AND (e.system_identifier = i.system_identifier) IS NOT TRUE)
$$;

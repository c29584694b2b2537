-- By design: on MySQL the doctor reads the server's own tables, see calls/doctor.sql.

-- name: sequencer_state
-- How long the oldest committed event waits for its sequence and how many do (counted up to 10,000), how long ago a
-- pass was made, and which session has locked the sequencer's row, and for how long.
CREATE OR REPLACE FUNCTION sequencer_state(
    OUT waiting_events bigint, OUT waiting_seconds double precision, OUT last_pass_seconds double precision,
    OUT pid integer, OUT login text, OUT application text, OUT held_seconds double precision
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT u.events, u.oldest_age_seconds,
           extract(epoch FROM clock_timestamp() - (SELECT t.passed_at FROM ticks AS t ORDER BY t.id DESC LIMIT 1)),
           h.pid, h.login, h.application, h.held_seconds
    FROM unsequenced() AS u
    LEFT JOIN LATERAL (
        SELECT l.pid, a.usename::text AS login, a.application_name AS application,
               extract(epoch FROM clock_timestamp() - a.xact_start)::double precision AS held_seconds
        FROM pg_locks AS l JOIN pg_stat_activity AS a ON a.pid = l.pid
        WHERE l.locktype = 'relation' AND l.relation = to_regclass('sequencer') AND l.mode = 'RowShareLock'
          AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
        ORDER BY a.xact_start
        LIMIT 1
    ) AS h ON true
$$;

-- name: snapshot_holders
-- What keeps the database from removing old versions of rows, oldest first: sessions with an open transaction (in
-- another database of the server only if it has written), prepared transactions, and replication slots that are not
-- read. For a prepared transaction, doing names the leases that it has locked. For a query it gives only the first
-- word, because the rest may be data. One row of the kind 'hidden' counts the sessions that the owner of the schema
-- may not see; login is then that owner.
CREATE OR REPLACE FUNCTION snapshot_holders()
RETURNS TABLE (
    kind text, name text, database text, login text, application text, age_seconds double precision, doing text
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT 'session', a.pid::text, a.datname::text, a.usename::text, a.application_name,
           extract(epoch FROM clock_timestamp() - a.xact_start)::double precision,
           concat_ws(', ', a.state, upper(substring(a.query FROM $p$^\s*([A-Za-z]+)$p$)))
    FROM pg_stat_activity AS a
    WHERE a.pid <> pg_backend_pid() AND a.xact_start IS NOT NULL AND a.backend_type <> 'autovacuum worker'
      AND (a.backend_xid IS NOT NULL OR a.backend_xmin IS NOT NULL AND a.datname = current_database())
    UNION ALL
    SELECT 'prepared', p.gid, p.database::text, p.owner::text, NULL,
           extract(epoch FROM clock_timestamp() - p.prepared)::double precision,
           CASE WHEN p.database = current_database() THEN leases_prepared(p.transaction) END
    FROM pg_prepared_xacts AS p
    UNION ALL
    -- From PostgreSQL 17 on it is known since when a slot has not been used.
    SELECT 'slot', s.slot_name::text, s.database::text, NULL, s.plugin::text,
           extract(epoch FROM clock_timestamp() - (to_jsonb(s) ->> 'inactive_since')::timestamptz)::double precision,
           'keeps ' || pg_size_pretty(wal_since(s.restart_lsn)) || ' of WAL'
    FROM pg_replication_slots AS s
    WHERE NOT s.active AND NOT s.temporary
      AND (s.restart_lsn IS NOT NULL OR s.xmin IS NOT NULL OR s.catalog_xmin IS NOT NULL)
    UNION ALL
    SELECT 'hidden', count(*)::text, NULL, current_user::text, NULL, NULL, NULL
    FROM pg_stat_activity AS a
    WHERE a.query = '<insufficient privilege>' AND a.datid IS NOT NULL AND a.usesysid IS NOT NULL
    HAVING count(*) > 0
    ORDER BY 6 DESC NULLS LAST
$$;

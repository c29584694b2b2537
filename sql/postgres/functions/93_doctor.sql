-- name: leases_prepared
-- The leases that a prepared transaction has locked, whichever consumer held them: no consumer can take them over.
-- NULL when there are none. Rows that it locked within a savepoint cannot be named.
CREATE OR REPLACE FUNCTION leases_prepared(transaction xid) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT COALESCE(
        (SELECT string_agg(format('partition %s of %s for "%s"', p.number, t.address, s.name), ', '
                           ORDER BY s.name, t.address, p.number)
         FROM leases AS l
         JOIN subscriptions AS s ON s.id = l.subscription_id
         JOIN partitions AS p ON p.id = l.partition_id
         JOIN topics AS t ON t.id = p.topic_id
         WHERE l.xmax = leases_prepared.transaction),
        (SELECT 'some partition'
         FROM pg_locks AS x
         JOIN pg_locks AS k ON k.virtualtransaction = x.virtualtransaction AND k.pid IS NULL
         WHERE x.transactionid = leases_prepared.transaction AND x.granted AND x.pid IS NULL
           AND k.relation = to_regclass('leases') AND k.mode IN ('RowShareLock', 'RowExclusiveLock')
           AND k.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
         LIMIT 1))
$$;

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

-- name: storage_shortage
-- The insert-only tables with storage for less than the given number of days at the highest rate so far, or with so
-- few ids left that a burst may use them up. For the delayed events, days counts what is ready beyond the longest
-- delay.
CREATE OR REPLACE FUNCTION storage_shortage(least_days double precision)
RETURNS TABLE (parent text, ready bigint, days double precision)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT u.parent, COALESCE(r.ready, 0), r.days
    FROM slice_sources() AS u LEFT JOIN slices_ready() AS r ON r.parent = u.parent
    WHERE r.parent IS NULL OR r.days < storage_shortage.least_days
       OR r.ready < CASE WHEN u.parent = 'events' THEN 1000000 ELSE 100000 END
    UNION ALL
    SELECT 'delayed', NULL, d.days
    FROM (
        SELECT (COALESCE(max(s.last_id), 0) / 1000000.0 - extract(epoch FROM clock_timestamp())
                - COALESCE((SELECT t.value FROM settings AS t WHERE t.name = 'longest_delay_seconds'), 2592000))
               / 86400 AS days
        FROM slices AS s
        WHERE s.parent = 'delayed'
    ) AS d
    WHERE d.days < 0
    ORDER BY 1
$$;

-- name: broken_slices
-- Slices that are not in their place: half detached, detached or missing. condemned: the slice is no longer needed,
-- and clean was interrupted while it dropped it. used: some of its ids have been given out. begun_seconds: how long
-- ago clean began to detach it (NULL: clean did not). busy: a session is working on it now.
CREATE OR REPLACE FUNCTION broken_slices()
RETURNS TABLE (
    parent text, slice text, first_id bigint, last_id bigint, state text, condemned boolean, used boolean,
    begun_seconds double precision, busy boolean
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT s.parent, s.slice, s.first_id, s.last_id, f.state, s.condemned_tx IS NOT NULL,
           COALESCE(NOT (u.used > 0 AND s.first_id > u.used), true),
           extract(epoch FROM clock_timestamp() - s.detaching_since)::double precision,
           EXISTS (SELECT FROM pg_stat_activity AS a
                   WHERE a.state = 'active' AND a.pid <> pg_backend_pid() AND strpos(a.query, s.slice) > 0)
    FROM slices AS s
    LEFT JOIN slice_sources() AS u ON u.parent = s.parent
    LEFT JOIN pg_class AS c ON c.oid = to_regclass(quote_ident(s.slice))
    LEFT JOIN pg_inherits AS i ON i.inhrelid = c.oid AND i.inhparent = to_regclass(quote_ident(s.parent))
    CROSS JOIN LATERAL (
        SELECT CASE WHEN c.oid IS NULL THEN 'missing' WHEN i.inhrelid IS NULL THEN 'detached'
                    WHEN i.inhdetachpending THEN 'half detached' END
    ) AS f (state)
    WHERE f.state IS NOT NULL
    ORDER BY s.parent, s.first_id
$$;

-- name: published_unkeyed
-- The tables of the log that a publication has with their updates or deletions, and that have no replica identity: the
-- server refuses these. has_key: it has a primary key. The slices of the index of the log are not among them, because
-- nothing updates them.
CREATE OR REPLACE FUNCTION published_unkeyed()
RETURNS TABLE (publication text, published text, has_key boolean)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT p.pubname::text, c.relname::text, k.has_key
    FROM pg_publication AS p
    JOIN pg_publication_tables AS v ON v.pubname = p.pubname AND v.schemaname = current_schema()
    JOIN pg_class AS r ON r.relname = v.tablename AND r.relnamespace = current_schema()::regnamespace
    CROSS JOIN LATERAL (
        SELECT r.oid AS id
        UNION
        SELECT t.relid FROM pg_partition_tree(r.oid) AS t WHERE t.isleaf
    ) AS l
    JOIN pg_class AS c ON c.oid = l.id AND c.relkind = 'r'
    CROSS JOIN LATERAL (
        SELECT EXISTS (SELECT FROM pg_index AS i WHERE i.indrelid = c.oid AND i.indisprimary) AS has_key,
               EXISTS (SELECT FROM pg_index AS i WHERE i.indrelid = c.oid AND i.indisreplident) AS has_other
    ) AS k
    WHERE (p.pubupdate OR p.pubdelete)
      AND NOT CASE c.relreplident WHEN 'd' THEN k.has_key WHEN 'i' THEN k.has_other ELSE c.relreplident = 'f' END
      AND c.relname <> 'chunks_merged'
      AND NOT EXISTS (
          SELECT FROM pg_inherits AS h WHERE h.inhrelid = c.oid AND h.inhparent = to_regclass('chunks'))
    ORDER BY 1, 2
$$;

-- By design: on MySQL the doctor reads the server's own tables, see calls/doctor.sql.

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

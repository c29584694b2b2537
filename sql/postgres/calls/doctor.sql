-- name: doctor_endpoint
-- The server to which the connection leads. Through a pooler its address is not the one that the client
-- connected to.
SELECT pg_is_in_recovery(), host(inet_server_addr()), inet_server_port(), current_user::text

-- name: doctor_primary
-- Where a replica gets its data from.
SELECT sender_host, sender_port FROM pg_stat_wal_receiver

-- name: doctor_settings
-- The server's settings that matter, and where each comes from.
SELECT name, setting, unit, source, context
FROM pg_settings
WHERE name IN (
    'autovacuum', 'default_transaction_isolation', 'default_transaction_read_only', 'fsync', 'full_page_writes',
    'statement_timeout', 'synchronous_commit', 'track_counts', 'transaction_timeout'
)

-- name: doctor_backend
-- The server process of this connection: through a pooler it can change from one transaction to the next.
SELECT pg_backend_pid()

-- name: doctor_snapshots
-- What keeps old versions of rows from being removed, oldest first.
SELECT kind, name, database, login, application, age_seconds, doing FROM penstock.snapshot_holders()

-- name: doctor_sequencer
-- What waits for the sequencer, and which session holds its lock.
SELECT waiting_events, waiting_seconds, last_pass_seconds, pid, login, application, held_seconds
FROM penstock.sequencer_state()

-- name: doctor_storage
-- The tables that have too little storage ready.
SELECT parent, ready, days FROM penstock.storage_shortage(%(least_days)s::double precision)

-- name: doctor_slices
-- Slices that are not in their place.
SELECT parent, slice, first_id, last_id, state, condemned, used, begun_seconds, busy FROM penstock.broken_slices()

-- name: doctor_notices
-- How full the queue of notices is, which all databases share, and the session with the longest open transaction: a
-- listening session reads no notices before its transaction ends.
SELECT u.usage, a.pid, a.usename::text, a.datname::text, a.application_name, a.age_seconds
FROM (SELECT pg_notification_queue_usage() AS usage OFFSET 0) AS u
LEFT JOIN LATERAL (
    SELECT s.pid, s.usename, s.datname, s.application_name,
           extract(epoch FROM clock_timestamp() - s.xact_start)::double precision AS age_seconds
    FROM pg_stat_activity AS s
    WHERE s.xact_start IS NOT NULL AND s.backend_type = 'client backend' AND s.pid <> pg_backend_pid()
    ORDER BY s.xact_start
    LIMIT 1
) AS a ON true
WHERE u.usage >= %(least)s::double precision

-- name: doctor_identity
-- What the log cannot learn of its server, the functions that the server refuses, and to whom.
SELECT what, functions, login FROM penstock.untold_identity()

-- name: doctor_published
-- Tables whose updates and deletions the server refuses because a publication has them.
SELECT publication, published, has_key FROM penstock.published_unkeyed()

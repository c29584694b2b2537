-- name: doctor_endpoint
-- The login, and what the server is.
-- reads only
SELECT CURRENT_USER(), VERSION()

-- name: doctor_settings
-- The server's settings that matter, as a new session gets them. One that a server does not know is left out.
-- reads only
SHOW GLOBAL VARIABLES WHERE Variable_name IN (
    'auto_increment_increment', 'innodb_doublewrite', 'innodb_flush_log_at_trx_commit', 'innodb_read_only', 'log_bin',
    'max_allowed_packet', 'read_only', 'sql_mode', 'super_read_only', 'sync_binlog', 'transaction_isolation',
    'tx_isolation'
)

-- name: doctor_backend
-- The server thread of this connection.
-- reads only
SELECT CONNECTION_ID()

-- name: doctor_snapshots
-- Open transactions, oldest first: they keep the server from removing old versions of rows. Times are in the
-- time zone of the machine's clock. Thread 0 is a prepared transaction whose session is gone. Only the first
-- word of a statement is given.
-- reads only
SELECT
    IF(x.trx_mysql_thread_id = 0, 'prepared', 'session') AS kind, x.trx_mysql_thread_id AS name, p.DB AS `database`,
    p.USER AS login, p.HOST AS application,
    TIMESTAMPDIFF(SECOND, x.trx_started, CONVERT_TZ(NOW(), @@session.time_zone, 'SYSTEM')) AS age_seconds,
    CONCAT_WS(', ', LOWER(p.COMMAND), UPPER(SUBSTRING_INDEX(TRIM(x.trx_query), ' ', 1))) AS doing
FROM information_schema.INNODB_TRX AS x
LEFT JOIN information_schema.PROCESSLIST AS p ON p.ID = x.trx_mysql_thread_id
WHERE x.trx_mysql_thread_id <> CONNECTION_ID()
ORDER BY age_seconds DESC, x.trx_mysql_thread_id

-- name: doctor_prepared
-- The prepared transactions, with what is needed to end each.
-- reads only
XA RECOVER

-- name: doctor_locks
-- The session whose transaction has held locks for longest. Not every server tells which rows it has locked.
-- reads only
SELECT x.trx_mysql_thread_id AS pid, p.USER AS login, p.HOST AS host,
       TIMESTAMPDIFF(SECOND, x.trx_started, CONVERT_TZ(NOW(), @@session.time_zone, 'SYSTEM')) AS held_seconds
FROM information_schema.INNODB_TRX AS x
LEFT JOIN information_schema.PROCESSLIST AS p ON p.ID = x.trx_mysql_thread_id
WHERE x.trx_mysql_thread_id <> CONNECTION_ID() AND x.trx_rows_locked > 0
ORDER BY x.trx_started, x.trx_mysql_thread_id
LIMIT 1

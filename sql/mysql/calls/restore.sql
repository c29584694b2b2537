-- name: restore_status
-- What is beyond the end of the log after a restore.
-- reads only
CALL penstock.restore_status()

-- name: histories_of
-- The histories of the log.
-- reads only
CALL penstock.histories_of()

-- name: history_starts_of
-- How far a position of a history may be kept in each partition of a topic.
-- reads only
CALL penstock.history_starts_of(%(topic)s, %(history)s)

-- name: reconcile
-- Begins the next history.
CALL penstock.reconcile(%(reason)s)

-- name: report_positions
-- Reports the positions that a program outside the database has seen.
CALL penstock.report_positions(%(partition_ids)s, %(sequences)s, %(histories)s, %(source)s, %(subscription)s)

-- name: restore_status
-- What lies beyond the log.
-- reads only
CALL penstock.restore_status()

-- name: histories_of
-- The lines of the log's history.
-- reads only
CALL penstock.histories_of()

-- name: reconcile
-- Opens the next history.
CALL penstock.reconcile(%(reason)s)

-- name: report_position
-- What somebody outside has seen of a partition.
CALL penstock.report_position(%(topic)s, %(partition)s, %(sequence)s, %(history)s, %(source)s)

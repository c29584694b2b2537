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

-- name: report_positions
-- What somebody outside has seen of some partitions.
CALL penstock.report_positions(%(partition_ids)s, %(sequences)s, %(histories)s, %(source)s, %(subscription)s)

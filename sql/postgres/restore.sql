-- name: restore_status
-- What lies beyond the log.
SELECT topic, partition, high_watermark, sequence, history, source, reported_at FROM penstock.restore_status()

-- name: histories_of
-- The lines of the log's history.
SELECT history, reason, opened_at FROM penstock.histories_of()

-- name: reconcile
-- Opens the next history.
SELECT penstock.reconcile(%(reason)s)

-- name: report_position
-- What somebody outside has seen of a partition.
SELECT stopped, high_watermark, present_history
FROM penstock.report_position(
    %(topic)s, %(partition)s::integer, %(sequence)s::bigint, %(history)s::integer, %(source)s)

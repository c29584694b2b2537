-- name: restore_status
-- What lies beyond the log.
SELECT topic, partition, high_watermark, sequence, history, source, reported_at FROM penstock.restore_status()

-- name: histories_of
-- The lines of the log's history.
SELECT history, reason, opened_at FROM penstock.histories_of()

-- name: reconcile
-- Opens the next history.
SELECT penstock.reconcile(%(reason)s)

-- name: report_positions
-- What somebody outside has seen of some partitions.
SELECT partition_id, stopped, high_watermark, present_history
FROM penstock.report_positions(
    %(partition_ids)s::bigint[], %(sequences)s::bigint[], %(histories)s::integer[], %(source)s, %(subscription)s)

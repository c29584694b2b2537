-- name: restore_status
-- What is beyond the end of the log after a restore.
SELECT topic, partition, high_watermark, sequence, history, source, reported_at FROM penstock.restore_status()

-- name: histories_of
-- The histories of the log.
SELECT history, reason, opened_at FROM penstock.histories_of()

-- name: history_starts_of
-- How far a position of a history may be kept in each partition of a topic.
SELECT partition, position FROM penstock.history_starts_of(%(topic)s, %(history)s::integer)

-- name: reconcile
-- Begins the next history.
SELECT penstock.reconcile(%(reason)s)

-- name: report_positions
-- Reports the positions that a program outside the database has seen.
SELECT partition_id, stopped, high_watermark, present_history
FROM penstock.report_positions(
    %(partition_ids)s::bigint[], %(sequences)s::bigint[], %(histories)s::integer[], %(source)s, %(subscription)s)

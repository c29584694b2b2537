-- name: request_backfill
-- Asks for a window of a topic to be brought again; answers the request, its ranges and its events.
CALL penstock.request_backfill(
    %(topic)s, %(kind)s, %(target)s, %(partition)s, %(from_sequence)s, %(to_sequence)s, %(from_time)s, %(to_time)s,
    %(dry_run)s, %(priority)s, %(max_attempts)s
)

-- name: claim_backfill
-- The next request that is due; no row when there is none.
CALL penstock.claim_backfill(%(run)s, %(lease_seconds)s, %(request)s, %(kinds)s)

-- name: extend_backfill
-- Says that the runner of a request is alive.
CALL penstock.extend_backfill(%(request)s, %(attempt)s, %(lease_seconds)s)

-- name: backfill_work
-- The ranges of a request that are not done.
CALL penstock.backfill_work(%(request)s, %(attempt)s, %(max_units)s, %(after_partition)s, %(after_sequence)s)

-- name: progress_backfill
-- Records that a range is done; answers how many events are.
CALL penstock.progress_backfill(
    %(request)s, %(attempt)s, %(partition)s, %(first_sequence)s, %(lease_seconds)s
)

-- name: finish_backfill
-- Ends a request of which every range is done.
CALL penstock.finish_backfill(%(request)s, %(attempt)s)

-- name: fail_backfill
-- Ends an attempt that did not do everything; answers the request's state.
CALL penstock.fail_backfill(%(request)s, %(attempt)s, %(error)s, %(base_seconds)s)

-- name: cancel_backfill
-- Ends a request that waits or runs; answers whether there was anything to cancel.
CALL penstock.cancel_backfill(%(request)s)

-- name: list_backfills
-- The newest requests of the topics that the login may read.
-- reads only
CALL penstock.list_backfills(%(topic)s, %(state)s, %(request)s, %(max_rows)s)

-- name: backfill_ranges
-- The ranges of a request, and which attempt has done each.
-- reads only
CALL penstock.backfill_ranges(%(request)s, %(max_rows)s, %(after_partition)s, %(after_sequence)s)

-- name: begin_rehydration
-- Begins to bring back a log epoch; false when it is there already.
CALL penstock.begin_rehydration(%(request)s, %(attempt)s, %(partition)s, %(log_epoch)s)

-- name: put_rehydrated
-- Brings some of its events.
CALL penstock.put_rehydrated(%(request)s, %(attempt)s, %(partition)s, %(log_epoch)s, %(events)s)

-- name: finish_rehydration
-- Compares what was brought with the seal, and lets everybody read it; answers how many events are done.
CALL penstock.finish_rehydration(%(request)s, %(attempt)s, %(partition)s, %(log_epoch)s, %(lease_seconds)s)

-- name: rehydrated_of
-- The log epochs of a topic that were brought back.
-- reads only
CALL penstock.rehydrated_of(%(topic)s)

-- name: release_rehydrated
-- Takes some of them away again; answers how many.
CALL penstock.release_rehydrated(%(topic)s, %(older_than_seconds)s, %(max_epochs)s)

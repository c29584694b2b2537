-- name: request_backfill
-- Asks for a window of a topic to be brought again; answers the request, its ranges and its events.
SELECT * FROM penstock.request_backfill(
    %(topic)s, %(kind)s, %(target)s, %(partition)s::integer, %(from_sequence)s::bigint, %(to_sequence)s::bigint,
    %(from_time)s::timestamptz, %(to_time)s::timestamptz, %(dry_run)s, %(priority)s::integer,
    %(max_attempts)s::integer)

-- name: claim_backfill
-- The next request that is due; no row when there is none.
SELECT * FROM penstock.claim_backfill(
    %(run)s, %(lease_seconds)s::double precision, %(request)s::bigint, %(kinds)s::text[])

-- name: extend_backfill
-- Says that the runner of a request is alive.
SELECT penstock.extend_backfill(%(request)s::bigint, %(attempt)s::integer, %(lease_seconds)s::double precision)

-- name: backfill_work
-- The ranges of a request that are not done.
SELECT * FROM penstock.backfill_work(
    %(request)s::bigint, %(attempt)s::integer, %(max_units)s::integer, %(after_partition)s::integer,
    %(after_sequence)s::bigint)

-- name: progress_backfill
-- Records that a range is done; answers how many events are.
SELECT penstock.progress_backfill(
    %(request)s::bigint, %(attempt)s::integer, %(partition)s::integer, %(first_sequence)s::bigint,
    %(lease_seconds)s::double precision)

-- name: finish_backfill
-- Ends a request of which every range is done.
SELECT penstock.finish_backfill(%(request)s::bigint, %(attempt)s::integer)

-- name: fail_backfill
-- Ends an attempt that did not do everything; answers the request's state.
SELECT penstock.fail_backfill(
    %(request)s::bigint, %(attempt)s::integer, %(error)s, %(base_seconds)s::double precision)

-- name: cancel_backfill
-- Ends a request that waits or runs; answers whether there was anything to cancel.
SELECT penstock.cancel_backfill(%(request)s::bigint)

-- name: list_backfills
-- The newest requests of the topics that the login may read.
SELECT * FROM penstock.list_backfills(%(topic)s, %(state)s, %(request)s::bigint, %(max_rows)s::integer)

-- name: backfill_ranges
-- The ranges of a request, and which attempt has done each.
SELECT * FROM penstock.backfill_ranges(
    %(request)s::bigint, %(max_rows)s::integer, %(after_partition)s::integer, %(after_sequence)s::bigint)

-- name: begin_rehydration
-- Begins to bring back a log epoch; false when it is there already.
SELECT penstock.begin_rehydration(
    %(request)s::bigint, %(attempt)s::integer, %(partition)s::integer, %(log_epoch)s::integer)

-- name: put_rehydrated
-- Brings some of its events.
SELECT penstock.put_rehydrated(
    %(request)s::bigint, %(attempt)s::integer, %(partition)s::integer, %(log_epoch)s::integer, %(events)s::jsonb)

-- name: finish_rehydration
-- Compares what was brought with the seal, and lets everybody read it; answers how many events are done.
SELECT penstock.finish_rehydration(
    %(request)s::bigint, %(attempt)s::integer, %(partition)s::integer, %(log_epoch)s::integer,
    %(lease_seconds)s::double precision)

-- name: rehydrated_of
-- The log epochs of a topic that were brought back.
SELECT * FROM penstock.rehydrated_of(%(topic)s)

-- name: release_rehydrated
-- Takes some of them away again; answers how many.
SELECT penstock.release_rehydrated(%(topic)s, %(older_than_seconds)s::double precision, %(max_epochs)s::integer)

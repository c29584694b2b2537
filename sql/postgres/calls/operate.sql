-- name: set_retention
-- How long events of a topic are kept at least, and in how many verified copies; returns the policy's version.
SELECT penstock.set_retention(
    %(topic)s, %(minimum_age_seconds)s::bigint, %(copies)s::integer, %(origin)s, %(targets)s::text[],
    %(max_bytes)s::bigint)

-- name: retention_of
-- The retention policies that are in force.
SELECT topic, minimum_age_seconds, copies, version, updated_at, origin, targets, max_bytes FROM penstock.retention_of()

-- name: retention_limits
-- How full the topics are that have a limit, and what keeps the oldest log epoch above it.
SELECT topic, max_bytes, size, uncounted, above, partition, log_epoch, hold FROM penstock.retention_limits()

-- name: place_hold
-- Places a legal hold. Returns how many events of the range the database no longer has.
SELECT penstock.place_hold(
    %(topic)s, %(name)s, %(reason)s, %(partition)s::integer, %(first_sequence)s::bigint, %(last_sequence)s::bigint)

-- name: release_hold
-- Releases a legal hold. Returns whether there was one of this name.
SELECT penstock.release_hold(%(topic)s, %(name)s, %(reason)s)

-- name: list_holds
-- The legal holds of one topic, or of all.
SELECT topic, name, partition, first_sequence, last_sequence, reason, placed_at, placed_by, released_at, released_by,
       release_reason
FROM penstock.list_holds(%(topic)s, %(released)s)

-- name: list_skips
-- What retention removed before a subscription had read it.
SELECT subscription, topic, partition, log_epoch, first_sequence, last_sequence, max_lag_seconds, skipped_at, unread,
       reason, limit_bytes, size_bytes
FROM penstock.list_skips(%(subscription)s)

-- name: expire_dead_letters
-- Deletes dead letters that are older than their policy says. Returns how many.
SELECT penstock.expire_dead_letters(%(max_rows)s::integer)

-- name: forget_letter_copies
-- Deletes what was kept to find copies of dead letters that are gone. Returns how many rows.
SELECT penstock.forget_letter_copies(%(max_rows)s::integer)

-- name: remove_leftovers
-- Deletes what removed subscriptions have left, some rows at a time. Returns how many.
SELECT penstock.remove_leftovers(%(max_rows)s::integer)

-- name: list_removals
-- Removed subscriptions of which something is still to be deleted.
SELECT subscription, removed_at, rows_left, idle_seconds FROM penstock.list_removals()

-- name: copies_of
-- Every copy of a topic's log epochs that was ever recorded, and whether it is there.
SELECT partition, log_epoch, target, state, detail, changed_at, location, layout, first_row
FROM penstock.copies_of(%(topic)s)

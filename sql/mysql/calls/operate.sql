-- name: set_retention
-- How long events of a topic are kept at least, and in how many verified copies; returns the policy's version.
CALL penstock.set_retention(%(topic)s, %(minimum_age_seconds)s, %(copies)s, %(origin)s, %(targets)s, %(max_bytes)s)

-- name: retention_of
-- The retention policies in force.
-- reads only
-- json: 6
CALL penstock.retention_of()

-- name: retention_limits
-- How full the topics are that have a limit, and what keeps the oldest log epoch above it.
-- reads only
CALL penstock.retention_limits()

-- name: place_hold
-- Places a legal hold. Returns how many events of the range the database no longer has.
CALL penstock.place_hold(
    %(topic)s, %(name)s, %(reason)s, %(partition)s, %(first_sequence)s, %(last_sequence)s
)

-- name: release_hold
-- Releases a legal hold. Returns whether there was one of this name.
CALL penstock.release_hold(%(topic)s, %(name)s, %(reason)s)

-- name: list_holds
-- The legal holds of one topic, or of all.
-- reads only
CALL penstock.list_holds(%(topic)s, %(released)s)

-- name: list_skips
-- What retention removed before a subscription had read it.
-- reads only
CALL penstock.list_skips(%(subscription)s)

-- name: expire_dead_letters
-- Deletes dead letters that are older than their policy says. Returns how many.
CALL penstock.expire_dead_letters(%(max_rows)s)

-- name: forget_letter_copies
-- Deletes what was kept to find copies of dead letters that are gone. Returns how many rows.
CALL penstock.forget_letter_copies(%(max_rows)s)

-- name: remove_leftovers
-- Deletes what removed subscriptions have left, some rows at a time. Returns how many.
CALL penstock.remove_leftovers(%(max_rows)s)

-- name: list_removals
-- Removed subscriptions of which something is still to be deleted.
-- reads only
CALL penstock.list_removals()

-- name: copies_of
-- Every copy of a topic's log epochs that was ever recorded, and whether it is there.
-- reads only
CALL penstock.copies_of(%(topic)s)

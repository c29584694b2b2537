-- name: set_retention
-- How long events of a topic are kept at least, and in how many verified copies; answers the policy's version.
SELECT penstock.set_retention(
    %(topic)s, %(minimum_age_seconds)s::bigint, %(copies)s::integer, %(origin)s, %(targets)s::text[])

-- name: retention_of
-- The retention policies that are in force.
SELECT topic, minimum_age_seconds, copies, version, updated_at, origin, targets FROM penstock.retention_of()

-- name: copies_of
-- Every copy of a topic's log epochs that was ever recorded, and whether it is there.
SELECT partition, log_epoch, target, state, detail, changed_at, location, layout, first_row
FROM penstock.copies_of(%(topic)s)

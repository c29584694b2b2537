-- name: set_retention
-- How long events of a topic are kept at least, and in how many verified copies; returns the policy's version.
CALL penstock.set_retention(%(topic)s, %(minimum_age_seconds)s, %(copies)s, %(origin)s, %(targets)s)

-- name: retention_of
-- The retention policies in force.
-- reads only
-- json: 6
CALL penstock.retention_of()

-- name: copies_of
-- Every copy of a topic's log epochs that was ever recorded, and whether it is there.
-- reads only
CALL penstock.copies_of(%(topic)s)

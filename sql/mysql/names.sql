-- name: is_installed
-- One row when Penstock's procedures are in the schema; asks the catalog, so it never fails.
-- reads only
SELECT 1 FROM information_schema.ROUTINES WHERE ROUTINE_SCHEMA = %(schema)s AND ROUTINE_NAME = 'topic_lookup'

-- name: topic_lookup
-- What a publisher needs to know of a topic; no row when there is none.
-- reads only
CALL penstock.topic_lookup(%(topic)s)

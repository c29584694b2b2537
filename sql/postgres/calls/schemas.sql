-- name: set_schema
-- Puts a schema in force.
SELECT penstock.set_schema(
    %(topic)s, %(type)s, %(kind)s, %(definition)s, %(compatibility)s, %(after_version)s::integer
)

-- name: schemas_of
-- The schemas of a topic.
SELECT type, version, kind, definition, compatibility, set_at, set_by
FROM penstock.schemas_of(%(topic)s, %(type)s, %(all_versions)s::boolean)

-- name: delete_schema
-- Removes a schema.
SELECT penstock.delete_schema(%(topic)s, %(type)s)

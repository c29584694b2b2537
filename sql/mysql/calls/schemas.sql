-- name: set_schema
-- Puts a schema in force.
-- limits the session
CALL penstock.set_schema(
    %(topic)s, %(type)s, %(kind)s, %(definition)s, %(compatibility)s, %(after_version)s
)

-- name: schemas_of
-- The schemas of a topic.
-- limits the session
CALL penstock.schemas_of(%(topic)s, %(type)s, %(all_versions)s)

-- name: delete_schema
-- Removes a schema.
-- limits the session
CALL penstock.delete_schema(%(topic)s, %(type)s)

-- name: create_namespace
-- Creates one namespace below an existing parent. Returns its id.
SELECT penstock.create_namespace(%(path)s)

-- name: rename_namespace
-- Gives a namespace another name. Returns its new path.
SELECT penstock.rename_namespace(%(path)s, %(new_name)s)

-- name: move_namespace
-- Moves a namespace under another parent, or to the root. Returns its new path.
SELECT penstock.move_namespace(%(path)s, %(new_parent)s)

-- name: delete_namespace
-- Deletes a namespace with everything below it. Returns how many topics were deleted.
SELECT penstock.delete_namespace(%(path)s, %(with_topics)s)

-- name: namespace_exists
-- Whether there is a namespace that the login may see.
SELECT penstock.namespace_exists(%(path)s)

-- name: list_namespaces
-- All namespaces, parents first.
SELECT path, created_at FROM penstock.list_namespaces()

-- name: create_topic
-- Creates a topic with its partitions. Returns its id.
SELECT penstock.create_topic(%(topic)s, %(partitions)s::integer, %(strategy)s)

-- name: ensure_topic
-- Creates a topic unless it exists. Returns its id.
SELECT penstock.ensure_topic(%(topic)s, %(partitions)s::integer, %(strategy)s, %(create_namespaces)s)

-- name: rename_topic
-- Gives a topic another name. Returns its new address.
SELECT penstock.rename_topic(%(topic)s, %(new_name)s)

-- name: move_topic
-- Moves a topic into another namespace. Returns its new address.
SELECT penstock.move_topic(%(topic)s, %(namespace)s)

-- name: resize_topic
-- Gives a topic more partitions. Returns how many it had.
SELECT penstock.resize_topic(%(topic)s, %(partitions)s::integer)

-- name: delete_topic
-- Deletes a topic with its events.
SELECT penstock.delete_topic(%(topic)s, %(with_subscriptions)s)

-- name: list_topics
-- The topics at or below a namespace; all topics when the namespace is ''.
SELECT topic, partitions, created_at, strategy FROM penstock.list_topics(%(namespace)s, %(after)s, %(max_rows)s::bigint)

-- name: describe_topic
-- What is set for a topic, and how many subscriptions read it.
SELECT
    partitions, strategy, max_payload_bytes, max_unsequenced_events, max_unsequenced_bytes, restricted,
    subscriptions, created_at, topic_id, known_as
FROM penstock.describe_topic(%(topic)s)

-- name: grant_namespace
-- Gives a login a right in a namespace.
SELECT penstock.grant_namespace(%(namespace)s, %(login)s, %(verb)s)

-- name: revoke_namespace
-- Takes a right back. Returns whether it existed.
SELECT penstock.revoke_namespace(%(namespace)s, %(login)s, %(verb)s, %(unrestrict)s)

-- name: grants_of
-- The rights that were given at or below a namespace; all rights when the namespace is ''.
SELECT namespace, login, verb, granted_at, granted_by, kind, topic, subscription FROM penstock.grants_of(%(namespace)s)

-- name: install_rights
-- Gives the roles the functions that they may call.
SELECT penstock.install_rights()

-- name: function_roles
-- Which role may call which function.
SELECT function, roles FROM penstock.function_roles() ORDER BY function

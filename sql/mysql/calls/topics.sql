-- name: create_namespace
-- Creates one namespace below an existing parent. Returns its id.
CALL penstock.create_namespace(%(path)s)

-- name: rename_namespace
-- Gives a namespace another name. Returns its new path.
CALL penstock.rename_namespace(%(path)s, %(new_name)s)

-- name: move_namespace
-- Moves a namespace under another parent, or to the root. Returns its new path.
CALL penstock.move_namespace(%(path)s, %(new_parent)s)

-- name: delete_namespace
-- Deletes a namespace with everything below it. Returns how many topics were deleted.
CALL penstock.delete_namespace(%(path)s, %(with_topics)s)

-- name: namespace_exists
-- Whether there is a namespace.
-- reads only
CALL penstock.namespace_exists(%(path)s)

-- name: list_namespaces
-- All namespaces, parents first.
-- reads only
CALL penstock.list_namespaces()

-- name: create_topic
-- Creates a topic with its partitions. Returns its id.
CALL penstock.create_topic(%(topic)s, %(partitions)s, %(strategy)s)

-- name: ensure_topic
-- Creates a topic unless it exists. Returns its id.
CALL penstock.ensure_topic(%(topic)s, %(partitions)s, %(strategy)s, %(create_namespaces)s)

-- name: rename_topic
-- Gives a topic another name. Returns its new address.
CALL penstock.rename_topic(%(topic)s, %(new_name)s)

-- name: move_topic
-- Moves a topic into another namespace. Returns its new address.
CALL penstock.move_topic(%(topic)s, %(namespace)s)

-- name: resize_topic
-- Gives a topic more partitions. Returns how many it had.
CALL penstock.resize_topic(%(topic)s, %(partitions)s)

-- name: delete_topic
-- Deletes a topic with its events.
CALL penstock.delete_topic(%(topic)s, %(with_subscriptions)s)

-- name: list_topics
-- The topics at or below a namespace; all topics when the namespace is ''.
-- reads only
CALL penstock.list_topics(%(namespace)s, %(after)s, %(max_rows)s)

-- name: describe_topic
-- What is set for a topic, and how many subscriptions read it.
-- reads only
CALL penstock.describe_topic(%(topic)s)

-- name: grant_namespace
-- Gives a login a right in a namespace.
CALL penstock.grant_namespace(%(namespace)s, %(login)s, %(verb)s)

-- name: revoke_namespace
-- Takes a right back. Returns whether it existed.
CALL penstock.revoke_namespace(%(namespace)s, %(login)s, %(verb)s, %(unrestrict)s)

-- name: grants_of
-- The rights that were given at or below a namespace; all rights when the namespace is ''.
-- reads only
CALL penstock.grants_of(%(namespace)s)

-- name: install_rights
-- Records the roles that were made.
CALL penstock.install_rights()

-- name: function_roles
-- Which role may call which procedure.
-- reads only
-- json: 1
CALL penstock.function_roles()

-- name: role_members
-- The members of the roles that were installed.
-- reads only
-- json: 1
CALL penstock.role_members()

-- name: refresh_roles
-- Records who is in which role, where the server cannot be asked each time.
CALL penstock.refresh_roles()

-- name: create_namespace
-- Creates one namespace below an existing parent; answers its id.
CALL penstock.create_namespace(%(path)s)

-- name: rename_namespace
-- Gives a namespace another name; answers its new path.
CALL penstock.rename_namespace(%(path)s, %(new_name)s)

-- name: move_namespace
-- Moves a namespace under another parent, or to the root; answers its new path.
CALL penstock.move_namespace(%(path)s, %(new_parent)s)

-- name: delete_namespace
-- Deletes a namespace with all that is below it; answers how many topics that were.
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
-- Creates a topic with its partitions; answers its id.
CALL penstock.create_topic(%(topic)s, %(partitions)s, %(strategy)s)

-- name: ensure_topic
-- Creates a topic unless it is there; returns its id.
CALL penstock.ensure_topic(%(topic)s, %(partitions)s, %(strategy)s, %(create_namespaces)s)

-- name: rename_topic
-- Gives a topic another name; answers its new address.
CALL penstock.rename_topic(%(topic)s, %(new_name)s)

-- name: move_topic
-- Moves a topic into another namespace; answers its new address.
CALL penstock.move_topic(%(topic)s, %(namespace)s)

-- name: resize_topic
-- Gives a topic more partitions; answers how many it had.
CALL penstock.resize_topic(%(topic)s, %(partitions)s)

-- name: delete_topic
-- Deletes a topic with its events.
CALL penstock.delete_topic(%(topic)s, %(with_subscriptions)s)

-- name: list_topics
-- The topics at or below a namespace; all of them when it is empty.
-- reads only
CALL penstock.list_topics(%(namespace)s)

-- name: describe_topic
-- What is set for a topic, and how many subscriptions read it.
-- reads only
CALL penstock.describe_topic(%(topic)s)

-- name: grant_namespace
-- Gives a login a right in a namespace.
CALL penstock.grant_namespace(%(namespace)s, %(login)s, %(verb)s)

-- name: revoke_namespace
-- Takes a right back; answers whether it was there.
CALL penstock.revoke_namespace(%(namespace)s, %(login)s, %(verb)s, %(unrestrict)s)

-- name: grants_of
-- The rights that are given at or below a namespace; all of them when it is empty.
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
-- Who is in the roles that were installed.
-- reads only
-- json: 1
CALL penstock.role_members()

-- name: refresh_roles
-- Looks who is in which role, where the server cannot be asked each time.
CALL penstock.refresh_roles()

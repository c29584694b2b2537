-- name: set_policy
-- Sets a policy as a whole. Returns its version.
SELECT penstock.set_policy(%(kind)s, %(scope)s, %(name)s, %(settings)s::jsonb, %(origin)s)

-- name: clear_policy
-- Removes all that a policy sets. Returns its version.
SELECT penstock.clear_policy(%(kind)s, %(scope)s, %(name)s, %(origin)s)

-- name: policy_of
-- The settings in force for a scope, and where they come from.
SELECT kind, setting, value, source, source_name, version, origin FROM penstock.policy_of(%(scope)s, %(name)s)

-- name: policy_history
-- Every version of a policy; the settings as text, because drivers read JSON in different ways.
SELECT version, settings::text, origin, updated_at, updated_by
FROM penstock.policy_history(%(kind)s, %(scope)s, %(name)s)

-- name: list_policies
-- Every policy that sets something; the settings as text.
SELECT kind, scope, name, settings::text, version, origin, updated_at, updated_by FROM penstock.list_policies()

-- name: claim_relays
-- Records the file whose relays the database follows.
SELECT penstock.claim_relays(%(origin)s)

-- name: relays_claimed_by
-- The origin of the file whose relays the database follows.
SELECT origin FROM penstock.relays_claimed_by()

-- name: subscription_policy
-- The settings in force for a subscription, from one row.
SELECT policy_version, heartbeat_seconds, lease_seconds, release_seconds, target_qps, max_consumers, refresh_seconds,
       max_attempts, first_backoff_seconds, longest_backoff_seconds, jitter, exhausted
FROM penstock.subscription_policy(%(subscription)s)

-- name: set_policy
-- Sets a policy as a whole. Returns its version.
CALL penstock.set_policy(%(kind)s, %(scope)s, %(name)s, %(settings)s, %(origin)s)

-- name: clear_policy
-- Removes all that a policy sets. Returns its version.
CALL penstock.clear_policy(%(kind)s, %(scope)s, %(name)s, %(origin)s)

-- name: policy_of
-- The settings in force for a scope, and where they come from.
-- reads only
CALL penstock.policy_of(%(scope)s, %(name)s)

-- name: policy_history
-- Every version of a policy; the settings as text.
-- reads only
CALL penstock.policy_history(%(kind)s, %(scope)s, %(name)s)

-- name: list_policies
-- Every policy that sets something; the settings as text.
-- reads only
CALL penstock.list_policies()

-- name: claim_relays
-- Records the file whose relays the database follows.
CALL penstock.claim_relays(%(origin)s)

-- name: relays_claimed_by
-- The origin of the file whose relays the database follows.
-- reads only
CALL penstock.relays_claimed_by()

-- name: subscription_policy
-- The settings in force for a subscription, from one row.
-- reads only
CALL penstock.subscription_policy(%(subscription)s)

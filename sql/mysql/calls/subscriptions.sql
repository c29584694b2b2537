-- name: subscribe
-- Creates a subscription, or adds topics to it.
CALL penstock.subscribe(%(subscription)s, %(topics)s, %(start)s, 'stream')

-- name: configure_subscription
-- Sets the times of a subscription.
CALL penstock.configure_subscription(
    %(subscription)s, %(heartbeat_seconds)s, %(lease_seconds)s, %(release_seconds)s
)

-- name: unsubscribe
-- Removes a subscription.
CALL penstock.unsubscribe(%(subscription)s)

-- name: position
-- Where a subscription stands on a topic.
-- reads only
CALL penstock.`position`(%(subscription)s, %(topic)s)

-- name: seek
-- Sets the position of one partition and takes the lease from its holder.
CALL penstock.seek(%(subscription)s, %(topic)s, %(partition)s, %(start)s)

-- name: reset_subscription
-- Sets the positions of a subscription, or of its partitions of one topic.
CALL penstock.reset_subscription(%(subscription)s, %(start)s, %(topic)s)

-- name: pause_subscription
-- Pauses a subscription: no lease is handed out from now on.
CALL penstock.pause_subscription(%(subscription)s, %(reason)s)

-- name: resume_subscription
-- Resumes a subscription: leases are handed out again.
CALL penstock.resume_subscription(%(subscription)s)

-- name: list_subscriptions
-- Every subscription that the login may see.
-- json: 2
-- reads only
CALL penstock.list_subscriptions(%(of_mode)s, %(namespace)s, %(after)s, %(max_rows)s)

-- name: describe_subscription
-- One subscription, as in list_subscriptions.
-- json: 2
-- reads only
CALL penstock.describe_subscription(%(subscription)s)

-- name: subscription_consumers
-- The members of one subscription, or of all.
-- json: 3
-- reads only
CALL penstock.subscription_consumers(%(subscription)s)

-- name: unleased_cursors
-- The partitions that can be leased.
-- reads only
CALL penstock.unleased_cursors(%(subscription)s)

-- name: leased_cursors
-- The leases that are held.
-- reads only
CALL penstock.leased_cursors(%(subscription)s)

-- name: subscription_statistics
-- One row for each subscription.
-- reads only
CALL penstock.subscription_statistics(%(subscription)s)

-- name: subscription_lag
-- Positions, lag and holders, of one subscription or of all.
-- reads only
CALL penstock.subscription_lag(%(subscription)s)

-- name: rejected_commits
-- How many commits the fence has refused.
-- reads only
CALL penstock.rejected_commits()

-- name: take_overs
-- How often a lease changed hands because its holder's time ran out.
-- reads only
CALL penstock.take_overs(%(subscription)s)

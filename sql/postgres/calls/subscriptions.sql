-- name: subscribe
-- Creates a subscription, or adds topics to it.
SELECT penstock.subscribe(%(subscription)s, %(topics)s::text[], %(start)s)

-- name: configure_subscription
-- Sets the times of a subscription.
SELECT penstock.configure_subscription(
    %(subscription)s, %(heartbeat_seconds)s, %(lease_seconds)s, %(release_seconds)s
)

-- name: unsubscribe
-- Removes a subscription.
SELECT penstock.unsubscribe(%(subscription)s)

-- name: position
-- Where a subscription stands on a topic.
SELECT partition, "position", history FROM penstock.position(%(subscription)s, %(topic)s)

-- name: seek
-- Sets the position of one partition and takes the lease from its holder.
SELECT penstock.seek(%(subscription)s, %(topic)s, %(partition)s::integer, %(start)s)

-- name: reset_subscription
-- Sets the positions of a subscription, or of its partitions of one topic.
SELECT topic, partition, "position" FROM penstock.reset_subscription(%(subscription)s, %(start)s, %(topic)s)

-- name: pause_subscription
-- Pauses a subscription: no lease is handed out from now on.
SELECT penstock.pause_subscription(%(subscription)s, %(reason)s)

-- name: resume_subscription
-- Resumes a subscription: leases are handed out again.
SELECT penstock.resume_subscription(%(subscription)s)

-- name: list_subscriptions
-- Every subscription that the login may see.
SELECT
    name, mode, topics, heartbeat_seconds, lease_seconds, release_seconds, max_consumers, created_at, paused_at,
    paused_by, paused_reason, dead_letters_to, dead_letters_origin, dead_letters_problem
FROM penstock.list_subscriptions(%(of_mode)s, %(namespace)s, %(after)s, %(max_rows)s::bigint)

-- name: describe_subscription
-- One subscription, as in list_subscriptions.
SELECT
    name, mode, topics, heartbeat_seconds, lease_seconds, release_seconds, max_consumers, created_at, paused_at,
    paused_by, paused_reason, dead_letters_to, dead_letters_origin, dead_letters_problem
FROM penstock.describe_subscription(%(subscription)s)

-- name: subscription_consumers
-- The members of one subscription, or of all.
SELECT
    subscription, consumer, weight, topics, joined_at, heartbeat_at, deadline, live, leases, last_error, last_error_at
FROM penstock.subscription_consumers(%(subscription)s)

-- name: unleased_cursors
-- The partitions that can be leased.
SELECT
    subscription, topic, partition, "position", high_watermark, lag_events, lag_seconds, state, holder, lease_epoch
FROM penstock.unleased_cursors(%(subscription)s)

-- name: leased_cursors
-- The leases that are held.
SELECT
    subscription, topic, partition, holder, state, lease_epoch, "position", high_watermark, lag_events, acquired_at,
    deadline, release_deadline
FROM penstock.leased_cursors(%(subscription)s)

-- name: subscription_statistics
-- One row for each subscription.
SELECT
    subscription, heartbeat_seconds, active_partitions, active_consumers, active_weight, moves, take_overs, changed_at,
    paused_at
FROM penstock.subscription_statistics(%(subscription)s)

-- name: subscription_lag
-- Positions, lag and holders, of one subscription or of all.
SELECT
    subscription, topic, partition, "position", high_watermark, lag_events, lag_seconds, state, holder, lease_epoch
FROM penstock.subscription_lag(%(subscription)s)

-- name: rejected_commits
-- How many commits the fence has refused.
SELECT penstock.rejected_commits()

-- name: take_overs
-- How often a lease changed hands because its holder's time ran out.
SELECT penstock.take_overs(%(subscription)s)

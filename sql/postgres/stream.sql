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

-- name: join
-- Becomes a member of a subscription.
SELECT heartbeat_seconds, lease_seconds, history
FROM penstock.join(%(subscription)s, %(consumer)s, %(session)s, %(weight)s, %(topics)s::text[])

-- name: heartbeat
-- Stays a member.
SELECT penstock.heartbeat(%(subscription)s, %(consumer)s, %(session)s)

-- name: heartbeats
-- The same for all consumers of a process.
SELECT place, standing, check_in_seconds, COALESCE(pace_seconds, 0)
FROM penstock.heartbeats(%(subscriptions)s::text[], %(consumers)s::text[], %(sessions)s::uuid[])

-- name: heartbeats_alone
-- The same in a transaction of its own, whose commit does not wait for the disk.
SELECT place, standing, check_in_seconds, COALESCE(pace_seconds, 0)
FROM penstock.heartbeats(%(subscriptions)s::text[], %(consumers)s::text[], %(sessions)s::uuid[])
WHERE set_config('synchronous_commit', 'off', true) = 'off'

-- name: check_in
-- Stays a member, and gives and takes leases.
SELECT topic, partition, partition_id, lease_epoch, state, "position", history
FROM penstock.check_in(%(subscription)s, %(consumer)s, %(session)s, %(fresh)s)

-- name: held_leases
-- What a consumer holds, for one that does not know what became of its last commits.
SELECT topic, partition, partition_id, lease_epoch, state, "position", history
FROM penstock.held_leases(%(subscription)s, %(consumer)s)

-- name: poll
-- Events of held leases, each after its own position. Headers as text, as in fetch.
SELECT
    partition_id, sequence, event_id, key, type, content_type, headers::text, payload, created_at,
    sequenced_at
FROM penstock.poll(
    %(subscription)s, %(consumer)s, %(partition_ids)s::bigint[], %(lease_epochs)s::bigint[],
    %(after)s::bigint[], %(max_events)s::integer, %(max_each)s::integer
)

-- name: commit
-- Moves positions forward, fenced by the leases.
SELECT penstock.commit(
    %(subscription)s, %(consumer)s, %(partition_ids)s::bigint[], %(lease_epochs)s::bigint[],
    %(positions)s::bigint[], %(after)s::bigint[]
)

-- name: release
-- Gives leases back.
SELECT penstock.release(
    %(subscription)s, %(consumer)s, %(partition_ids)s::bigint[], %(lease_epochs)s::bigint[]
)

-- name: leave
-- Ends a membership and frees its leases.
SELECT penstock.leave(%(subscription)s, %(consumer)s, %(session)s)

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
-- No lease is handed out from now on.
SELECT penstock.pause_subscription(%(subscription)s, %(reason)s)

-- name: resume_subscription
-- Leases are handed out again.
SELECT penstock.resume_subscription(%(subscription)s)

-- name: list_subscriptions
-- Every subscription that the login may see.
SELECT
    name, mode, topics, heartbeat_seconds, lease_seconds, release_seconds, max_consumers, created_at, paused_at, paused_by,
    paused_reason
FROM penstock.list_subscriptions()

-- name: describe_subscription
-- One of them.
SELECT
    name, mode, topics, heartbeat_seconds, lease_seconds, release_seconds, max_consumers, created_at, paused_at, paused_by,
    paused_reason
FROM penstock.describe_subscription(%(subscription)s)

-- name: report_error
-- The last error of a consumer.
SELECT penstock.report_error(%(subscription)s, %(consumer)s, %(session)s, %(error)s)

-- name: subscription_consumers
-- The members of one subscription, or of all.
SELECT
    subscription, consumer, weight, topics, joined_at, heartbeat_at, deadline, live, leases, last_error, last_error_at
FROM penstock.subscription_consumers(%(subscription)s)

-- name: unleased_cursors
-- What can be leased.
SELECT
    subscription, topic, partition, "position", high_watermark, lag_events, lag_seconds, state, holder, lease_epoch
FROM penstock.unleased_cursors(%(subscription)s)

-- name: leased_cursors
-- What is held.
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

-- name: claim
-- Leases one partition; NULL when another was faster.
SELECT penstock.claim(
    %(subscription)s, %(consumer)s, %(session)s, %(partition_id)s::bigint, %(lease_epoch)s::bigint
)

-- name: lease_states
-- Every partition of a subscription, who holds it and how far it was read.
SELECT partition_id, holder, live, lease_epoch, "position" FROM penstock.lease_states(%(subscription)s)

-- name: active_consumers
-- The live consumers of a subscription.
SELECT consumer, weight FROM penstock.active_consumers(%(subscription)s)

-- name: lead_subscription
-- The term of a leader; NULL when another consumer leads.
SELECT penstock.lead_subscription(%(subscription)s, %(consumer)s, %(session)s)

-- name: assign_partitions
-- Writes down a leader's decision.
SELECT penstock.assign_partitions(
    %(subscription)s, %(consumer)s, %(session)s, %(term)s::bigint, %(holders)s
)

-- name: assignment_of
-- What the leader has decided.
SELECT term, holders FROM penstock.assignment_of(%(subscription)s)

-- name: mark_low_water
-- Copies positions of a registry outside of the database.
SELECT penstock.mark_low_water(
    %(subscription)s, %(partition_ids)s::bigint[], %(lease_epochs)s::bigint[], %(positions)s::bigint[]
)

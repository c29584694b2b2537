-- name: join
-- Becomes a member of a subscription.
SELECT heartbeat_seconds, lease_seconds, history
FROM penstock.join(%(subscription)s, %(consumer)s, %(session)s, %(weight)s, %(topics)s::text[])

-- name: heartbeat
-- Stays a member.
SELECT penstock.heartbeat(%(subscription)s, %(consumer)s, %(session)s)

-- name: heartbeats
-- The heartbeat of all consumers of a process.
SELECT place, standing, check_in_seconds, COALESCE(pace_seconds, 0)
FROM penstock.heartbeats(%(subscriptions)s::text[], %(consumers)s::text[], %(sessions)s::uuid[])

-- name: heartbeats_alone
-- The heartbeat of all consumers of a process in a separate transaction, whose commit does not wait for the
-- disk.
SELECT place, standing, check_in_seconds, COALESCE(pace_seconds, 0)
FROM penstock.heartbeats(%(subscriptions)s::text[], %(consumers)s::text[], %(sessions)s::uuid[])
WHERE set_config('synchronous_commit', 'off', true) = 'off'

-- name: check_in
-- Stays a member, and gives and takes leases.
SELECT topic, partition, partition_id, lease_epoch, state, "position", history
FROM penstock.check_in(%(subscription)s, %(consumer)s, %(session)s, %(fresh)s)

-- name: held_leases
-- The leases that a consumer holds, for one that does not know whether its last commits succeeded.
SELECT topic, partition, partition_id, lease_epoch, state, "position", history
FROM penstock.held_leases(%(subscription)s, %(consumer)s)

-- name: poll
-- Events of held leases, each after its own position. Headers come as text, as in fetch.
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

-- name: report_error
-- Records the last error of a consumer.
SELECT penstock.report_error(%(subscription)s, %(consumer)s, %(session)s, %(error)s)

-- name: claim
-- Leases one partition; NULL when another consumer was faster.
SELECT penstock.claim(
    %(subscription)s, %(consumer)s, %(session)s, %(partition_id)s::bigint, %(lease_epoch)s::bigint
)

-- name: lease_states
-- Every partition of a subscription, which consumer holds it and how far it was read.
SELECT partition_id, holder, live, lease_epoch, "position" FROM penstock.lease_states(%(subscription)s)

-- name: active_consumers
-- The live consumers of a subscription.
SELECT consumer, weight FROM penstock.active_consumers(%(subscription)s)

-- name: lead_subscription
-- The term of a leader; NULL when another consumer leads.
SELECT penstock.lead_subscription(%(subscription)s, %(consumer)s, %(session)s)

-- name: assign_partitions
-- Records a leader's decision.
SELECT penstock.assign_partitions(
    %(subscription)s, %(consumer)s, %(session)s, %(term)s::bigint, %(holders)s
)

-- name: assignment_of
-- The last decision of the leader.
SELECT term, holders FROM penstock.assignment_of(%(subscription)s)

-- name: mark_low_water
-- Copies positions from a registry outside the database.
SELECT penstock.mark_low_water(
    %(subscription)s, %(partition_ids)s::bigint[], %(lease_epochs)s::bigint[], %(positions)s::bigint[]
)

-- name: note_archive_reads
-- Records that the holders of leases read the archive.
SELECT penstock.note_archive_reads(%(subscription)s, %(partition_ids)s::bigint[], %(lease_epochs)s::bigint[])

-- name: withdraw_archive_reads
-- Takes it back: who reads now has no targets.
SELECT penstock.withdraw_archive_reads(%(subscription)s, %(partition_ids)s::bigint[])

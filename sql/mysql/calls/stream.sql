-- name: join
-- Becomes a member of a subscription.
CALL penstock.`join`(%(subscription)s, %(consumer)s, %(session)s, %(weight)s, %(topics)s)

-- name: heartbeat
-- Stays a member.
CALL penstock.heartbeat(%(subscription)s, %(consumer)s, %(session)s)

-- name: heartbeats
-- The heartbeat of all consumers of a process: place, standing, seconds until the check-in, seconds between two of
-- them.
CALL penstock.heartbeats(%(subscriptions)s, %(consumers)s, %(sessions)s)

-- name: heartbeats_alone
-- The heartbeat of all consumers of a process in a separate transaction. Here only a setting of the whole server
-- decides whether a commit waits for the disk.
CALL penstock.heartbeats(%(subscriptions)s, %(consumers)s, %(sessions)s)

-- name: check_in
-- Stays a member, and gives and takes leases.
CALL penstock.check_in(%(subscription)s, %(consumer)s, %(session)s, %(fresh)s)

-- name: held_leases
-- The leases that a consumer holds, for one that does not know whether its last commits succeeded.
-- reads only
CALL penstock.held_leases(%(subscription)s, %(consumer)s)

-- name: poll
-- Events of held leases, each after its own position.
-- reads only
CALL penstock.poll(
    %(subscription)s, %(consumer)s, %(partition_ids)s, %(lease_epochs)s, %(after)s, %(max_events)s,
    %(max_each)s
)

-- name: commit
-- Moves positions forward, fenced by the leases.
-- limits the session
CALL penstock.`commit`(
    %(subscription)s, %(consumer)s, %(partition_ids)s, %(lease_epochs)s, %(positions)s, %(after)s
)

-- name: release
-- Gives leases back.
CALL penstock.`release`(%(subscription)s, %(consumer)s, %(partition_ids)s, %(lease_epochs)s)

-- name: leave
-- Ends a membership and frees its leases.
CALL penstock.`leave`(%(subscription)s, %(consumer)s, %(session)s)

-- name: report_error
-- Records the last error of a consumer.
CALL penstock.report_error(%(subscription)s, %(consumer)s, %(session)s, %(error)s)

-- name: claim
-- Leases one partition; NULL when another consumer was faster.
CALL penstock.claim(%(subscription)s, %(consumer)s, %(session)s, %(partition_id)s, %(lease_epoch)s)

-- name: lease_states
-- Every partition of a subscription, which consumer holds it and how far it was read.
-- reads only
CALL penstock.lease_states(%(subscription)s)

-- name: active_consumers
-- The live consumers of a subscription.
-- reads only
CALL penstock.active_consumers(%(subscription)s)

-- name: lead_subscription
-- The term of a leader; NULL when another consumer leads.
CALL penstock.lead_subscription(%(subscription)s, %(consumer)s, %(session)s)

-- name: assign_partitions
-- Records a leader's decision.
CALL penstock.assign_partitions(%(subscription)s, %(consumer)s, %(session)s, %(term)s, %(holders)s)

-- name: assignment_of
-- The last decision of the leader.
-- reads only
CALL penstock.assignment_of(%(subscription)s)

-- name: mark_low_water
-- Copies positions from a registry outside the database.
CALL penstock.mark_low_water(%(subscription)s, %(partition_ids)s, %(lease_epochs)s, %(positions)s)

-- name: note_archive_reads
-- Records that the holders of leases read the archive.
CALL penstock.note_archive_reads(%(subscription)s, %(partition_ids)s, %(lease_epochs)s)

-- name: withdraw_archive_reads
-- Takes it back: who reads now has no targets.
CALL penstock.withdraw_archive_reads(%(subscription)s, %(partition_ids)s)

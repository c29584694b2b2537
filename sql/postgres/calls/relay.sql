-- name: open_block
-- Records the block that is about to be sent, or finds the one that was recorded and is still open.
SELECT block_id, first_sequence, last_sequence, repeated, attempt, topic, known_as
FROM penstock.open_block(
    %(subscription)s, %(consumer)s, %(partition_id)s::bigint, %(lease_epoch)s::bigint,
    %(max_events)s::integer, %(max_bytes)s::bigint
)

-- name: open_cold_block
-- The same for events that only the archive has.
SELECT block_id, first_sequence, last_sequence, repeated, attempt, topic, known_as
FROM penstock.open_cold_block(
    %(subscription)s, %(consumer)s, %(partition_id)s::bigint, %(lease_epoch)s::bigint, %(up_to)s::bigint
)

-- name: dead_letters_between
-- What of a range of a partition a relay does not send.
SELECT sequence, up_to
FROM penstock.dead_letters_between(
    %(subscription)s, %(partition_id)s::bigint, %(first_sequence)s::bigint, %(last_sequence)s::bigint
)

-- name: missing_events
-- What a sink lacks that ends before the position of its relay.
SELECT missing, low_sequence, is_put
FROM penstock.missing_events(
    %(subscription)s, %(partition_id)s::bigint, %(first_sequence)s::bigint, %(last_sequence)s::bigint
)

-- name: leave_out
-- Records that a sink does not have these events because a person has left them out.
SELECT penstock.leave_out(
    %(subscription)s, %(consumer)s, %(partition_id)s::bigint, %(lease_epoch)s::bigint, %(first_sequence)s::bigint,
    %(last_sequence)s::bigint
)

-- name: stay_put
-- After a block of which nothing was sent: a position that a person has put is still one.
SELECT penstock.stay_put(%(subscription)s, %(consumer)s, %(partition_id)s::bigint, %(lease_epoch)s::bigint)

-- name: read_block
-- The events of a block, without its dead letters. Headers come as text, as in fetch.
SELECT
    sequence, event_id, key, type, content_type, headers::text, payload, created_at, sequenced_at
FROM penstock.read_block(
    %(subscription)s, %(partition_id)s::bigint, %(first_sequence)s::bigint, %(last_sequence)s::bigint
)

-- name: relay_failure
-- Counts a failed attempt of the open block. Returns the seconds to wait.
SELECT penstock.relay_failure(
    %(subscription)s, %(consumer)s, %(partition_id)s::bigint, %(lease_epoch)s::bigint, %(block_id)s::bigint, %(error)s,
    %(base_seconds)s, %(max_seconds)s
)

-- name: dead_letter
-- Gives up one event of the open block.
SELECT penstock.dead_letter(
    %(subscription)s, %(consumer)s, %(partition_id)s::bigint, %(lease_epoch)s::bigint, %(sequence)s::bigint, %(reason)s
)

-- name: publish_relayed
-- Publishes the events of another database's relay, if its partition stands where it is expected.
SELECT moved, history, sequence, event_id::text FROM penstock.publish_relayed(
    topic => %(topic)s, installation => %(installation)s, relay => %(relay)s, known_as => %(known_as)s,
    source_partition => %(source_partition)s::integer, expected_history => %(expected_history)s::integer,
    expected_sequence => %(expected_sequence)s::bigint, to_history => %(to_history)s::integer,
    to_sequence => %(to_sequence)s::bigint, last_event_id => %(last_event_id)s::uuid,
    payloads => %(payloads)s::bytea[], keys => %(keys)s::text[], types => %(types)s::text[],
    content_types => %(content_types)s::text[], headers => %(headers)s::text[], event_ids => %(event_ids)s::uuid[],
    partitions => %(partitions)s::integer[])

-- name: relayed_to
-- How far another database's relay has come here, and which installation this is.
SELECT history, sequence, event_id::text, here, partitions
FROM penstock.relayed_to(
    %(topic)s, %(installation)s, %(relay)s, %(known_as)s, %(source_partition)s::integer
)

-- name: sweep
-- Removes consumers whose time has run out.
SELECT expired_consumers, locked_leases FROM penstock.sweep(%(max_rows)s::integer)

-- name: resolve_block
-- Ends a block of which its sink cannot tell whether it was sent.
SELECT penstock.resolve_block(%(subscription)s, %(topic)s, %(partition)s::integer, %(was_sent)s::boolean)

-- name: passed_places
-- Up to where each place of a relay's sink was sent events.
SELECT place, last_sequence, is_put
FROM penstock.passed_places(%(subscription)s, %(partition_id)s::bigint, %(most_places)s::integer)

-- name: note_places
-- Records what a relay has left out, and where its events went.
SELECT penstock.note_places(
    %(subscription)s, %(consumer)s, %(partition_id)s::bigint, %(lease_epoch)s::bigint, %(places)s::text[],
    %(sequences)s::bigint[], %(left_out)s::bigint, %(up_to)s::bigint
)

-- name: note_breaker
-- Records whether a relay leaves its sink alone.
SELECT penstock.note_breaker(%(subscription)s, %(consumer)s, %(state)s, %(error)s)

-- name: relay_status
-- What a relay does in each partition.
SELECT topic, partition, events_per_second, attempts, last_error, failed_at, left_out, breaker, breaker_at
FROM penstock.relay_status(%(subscription)s)

-- name: bury_claims
-- Makes received events dead letters at once.
SELECT penstock.bury_claims(
    %(subscription)s, %(claims)s::bigint[], %(first_sequences)s::bigint[], %(last_sequences)s::bigint[],
    %(tokens)s::uuid[], %(reason)s, %(partly)s
)

-- name: relayed_events
-- What has become of events of a queue.
SELECT sequence, event_id::text, state, attempts, last_error, next_attempt_at
FROM penstock.relayed_events(
    %(subscription)s, %(topic)s, %(partition)s::integer, %(from_sequence)s::bigint, %(max_events)s::integer
)

-- name: queue_relay_status
-- Where the relay of a queue stands.
SELECT ready, in_flight, delayed, dead, last_error, failed_at, breaker, away_since
FROM penstock.queue_relay_status(%(subscription)s)

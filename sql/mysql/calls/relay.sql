-- name: open_block
-- Records the block that is about to be sent, or finds the one that was recorded and is still open.
-- limits the session
CALL penstock.open_block(
    %(subscription)s, %(consumer)s, %(partition_id)s, %(lease_epoch)s, %(max_events)s, %(max_bytes)s
)

-- name: open_cold_block
-- The same for events that only the archive has.
-- limits the session
CALL penstock.open_cold_block(
    %(subscription)s, %(consumer)s, %(partition_id)s, %(lease_epoch)s, %(up_to)s
)

-- name: dead_letters_between
-- What of a range of a partition a relay does not send.
-- reads only
CALL penstock.dead_letters_between(%(subscription)s, %(partition_id)s, %(first_sequence)s, %(last_sequence)s)

-- name: missing_events
-- What a sink lacks that ends before the position of its relay.
-- reads only
CALL penstock.missing_events(%(subscription)s, %(partition_id)s, %(first_sequence)s, %(last_sequence)s)

-- name: leave_out
-- Records that a sink does not have these events because a person has left them out.
CALL penstock.leave_out(
    %(subscription)s, %(consumer)s, %(partition_id)s, %(lease_epoch)s, %(first_sequence)s, %(last_sequence)s
)

-- name: stay_put
-- After a block of which nothing was sent: a position that a person has put is still one.
-- limits the session
CALL penstock.stay_put(%(subscription)s, %(consumer)s, %(partition_id)s, %(lease_epoch)s)

-- name: read_block
-- The events of a block, without its dead letters.
-- reads only
CALL penstock.read_block(%(subscription)s, %(partition_id)s, %(first_sequence)s, %(last_sequence)s)

-- name: relay_failure
-- Counts a failed attempt of the open block. Returns the seconds to wait.
-- limits the session
CALL penstock.relay_failure(
    %(subscription)s, %(consumer)s, %(partition_id)s, %(lease_epoch)s, %(block_id)s, %(error)s, %(base_seconds)s,
    %(max_seconds)s
)

-- name: dead_letter
-- Gives up one event of the open block.
-- limits the session
CALL penstock.dead_letter(
    %(subscription)s, %(consumer)s, %(partition_id)s, %(lease_epoch)s, %(sequence)s, %(reason)s
)

-- name: publish_relayed
-- Publishes the events of another database's relay, if its partition stands where it is expected.
-- limits the session
CALL penstock.publish_relayed(
    %(topic)s, %(installation)s, %(relay)s, %(known_as)s, %(source_partition)s, %(expected_history)s,
    %(expected_sequence)s, %(to_history)s, %(to_sequence)s, %(last_event_id)s, %(events)s
)

-- name: relayed_to
-- How far another database's relay has come here, and which installation this is.
-- reads only
CALL penstock.relayed_to(%(topic)s, %(installation)s, %(relay)s, %(known_as)s, %(source_partition)s)

-- name: sweep
-- Removes consumers whose time has run out.
CALL penstock.sweep(%(max_rows)s)

-- name: resolve_block
-- Ends a block of which its sink cannot tell whether it was sent.
CALL penstock.resolve_block(%(subscription)s, %(topic)s, %(partition)s, %(was_sent)s)

-- name: passed_places
-- Up to where each place of a relay's sink was sent events.
-- limits the session
CALL penstock.passed_places(%(subscription)s, %(partition_id)s, %(most_places)s)

-- name: note_places
-- Records what a relay has left out, and where its events went.
-- limits the session
CALL penstock.note_places(
    %(subscription)s, %(consumer)s, %(partition_id)s, %(lease_epoch)s, %(places)s, %(sequences)s, %(left_out)s,
    %(up_to)s
)

-- name: note_breaker
-- Records whether a relay leaves its sink alone.
-- limits the session
CALL penstock.note_breaker(%(subscription)s, %(consumer)s, %(state)s, %(error)s)

-- name: relay_status
-- What a relay does in each partition.
-- limits the session
CALL penstock.relay_status(%(subscription)s)

-- name: bury_claims
-- Makes received events dead letters at once.
-- json: 0
-- limits the session
CALL penstock.bury_claims(
    %(subscription)s, %(claims)s, %(first_sequences)s, %(last_sequences)s, %(tokens)s, %(reason)s, %(partly)s
)

-- name: relayed_events
-- What has become of events of a queue.
-- reads only
CALL penstock.relayed_events(%(subscription)s, %(topic)s, %(partition)s, %(from_sequence)s, %(max_events)s)

-- name: queue_relay_status
-- Where the relay of a queue stands.
-- reads only
CALL penstock.queue_relay_status(%(subscription)s)

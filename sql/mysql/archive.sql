-- name: archive_fetch
-- What the archive stores of each event; event id and headers as the text that the database has for them.
-- reads only
CALL penstock.`fetch`(%(topic)s, %(partition)s, %(from_sequence)s, %(max_events)s)

-- name: low_sequences
-- Each partition of a topic and the first sequence that the database still has.
-- reads only
CALL penstock.low_sequences(%(topic)s)

-- name: seal
-- The next log epoch of a partition; no row when there is nothing to seal.
CALL penstock.seal(%(topic)s, %(partition)s, %(max_events)s, %(max_age_seconds)s)

-- name: log_epochs_of
-- The sealed log epochs of a topic, with the targets that hold a verified copy.
-- reads only
-- json: 8
CALL penstock.log_epochs_of(%(topic)s)

-- name: missing_copies
-- The sealed log epochs of a topic of which a target holds no verified copy.
-- reads only
-- json: 8
CALL penstock.missing_copies(%(topic)s, %(target)s)

-- name: record_copy
-- Records a copy whose count and checksum, as read back, equal the seal's.
CALL penstock.record_copy(
    %(topic)s, %(partition)s, %(log_epoch)s, %(target)s, %(location)s, %(event_count)s, %(checksum)s
)

-- name: forget_copy
-- Marks a copy as missing; backfill makes it again.
CALL penstock.forget_copy(%(topic)s, %(partition)s, %(log_epoch)s, %(target)s, %(reason)s)

-- name: clean
-- Moves the low sequences of a topic as far as its retention policy allows.
CALL penstock.clean(%(topic)s)

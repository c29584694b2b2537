-- name: find_erasable
-- The sequences of a window that hold the events, or events of the key, that are to be erased, and their ids.
SELECT sequence, event_id::text
FROM penstock.find_erasable(
    %(topic)s, %(partition)s::integer, %(from_sequence)s::bigint, %(max_events)s::integer, %(event_ids)s::uuid[],
    %(key)s)

-- name: begin_erasure
-- Opens an erasure, or finds the open one of the same event or key; returns its id.
SELECT penstock.begin_erasure(%(topic)s, %(event_id)s::uuid, %(key)s, %(reason)s, %(replace_key)s)::text

-- name: erase_events
-- Replaces events of one log epoch by tombstones; returns how many.
SELECT penstock.erase_events(
    %(erasure)s::uuid, %(partition)s::integer, %(sequences)s::bigint[], %(old_checksum)s, %(checksum)s)

-- name: erase_letters
-- Replaces dead letters by tombstones; returns how many.
SELECT penstock.erase_letters(%(erasure)s::uuid, %(key)s, %(max_rows)s::integer)

-- name: finish_erasure
-- Ends an erasure.
SELECT penstock.finish_erasure(%(erasure)s::uuid)

-- name: copies_of_erasure
-- Copies of dead letters in other topics that are still to be erased.
SELECT topic, event_id::text, waits
FROM penstock.copies_of_erasure(%(erasure)s::uuid, %(key)s, %(max_rows)s::integer)

-- name: list_erasures
-- The record of erasures, newest first.
SELECT erasure::text, topic, event_id::text, by_key, replace_key, reason, requested_by, requested_at, finished_at,
       events, letters, seals
FROM penstock.list_erasures(%(topic)s)

-- name: reissued_of
-- The log epochs whose checksum was issued again.
SELECT partition, log_epoch, old_checksum, checksum, erasure::text, reason, reissued_by, reissued_at
FROM penstock.reissued_of(%(topic)s)

-- name: erased_of
-- The places of erased events between two sequences.
SELECT sequence, erasure::text, replace_key
FROM penstock.erased_of(
    %(topic)s, %(partition)s::integer, %(first_sequence)s::bigint, %(last_sequence)s::bigint, %(max_rows)s::integer)

-- name: find_erasable
-- The sequences of a window that hold the events, or events of the key, that are to be erased, and their ids.
-- reads only
CALL penstock.find_erasable(
    %(topic)s, %(partition)s, %(from_sequence)s, %(max_events)s, %(event_ids)s, %(key)s
)

-- name: begin_erasure
-- Opens an erasure, or finds the open one of the same event or key; returns its id.
CALL penstock.begin_erasure(%(topic)s, %(event_id)s, %(key)s, %(reason)s, %(replace_key)s)

-- name: erase_events
-- Replaces events of one log epoch by tombstones; returns how many.
CALL penstock.erase_events(%(erasure)s, %(partition)s, %(sequences)s, %(old_checksum)s, %(checksum)s)

-- name: erase_letters
-- Replaces dead letters by tombstones; returns how many.
CALL penstock.erase_letters(%(erasure)s, %(key)s, %(max_rows)s)

-- name: finish_erasure
-- Ends an erasure.
CALL penstock.finish_erasure(%(erasure)s)

-- name: copies_of_erasure
-- Copies of dead letters in other topics that are still to be erased.
-- reads only
CALL penstock.copies_of_erasure(%(erasure)s, %(key)s, %(max_rows)s)

-- name: list_erasures
-- The record of erasures, newest first.
-- reads only
CALL penstock.list_erasures(%(topic)s)

-- name: reissued_of
-- The log epochs whose checksum was issued again.
-- reads only
CALL penstock.reissued_of(%(topic)s)

-- name: erased_of
-- The places of erased events between two sequences.
-- reads only
CALL penstock.erased_of(
    %(topic)s, %(partition)s, %(first_sequence)s, %(last_sequence)s, %(max_rows)s
)

-- name: sequence
-- One pass of the sequencer.
SELECT sequenced, more, busy, grown FROM penstock.sequence(%(max_events)s::integer)

-- name: sequence_and_announce
-- One pass of the sequencer, whose commit wakes consumers.
SELECT sequenced, more, busy, grown, CASE WHEN sequenced > 0 THEN penstock.announce(grown) END
FROM penstock.sequence(%(max_events)s::integer)

-- name: wake_sequencer
-- Lets an idle sequencer look at once. For after a COMMIT, on a connection of its own.
SELECT penstock.wake_sequencer()

-- name: ensure_slices
-- Prepares storage ahead, for delayed events too. Returns how many slices were added.
SELECT penstock.ensure_slices()

-- name: unsequenced
-- What waits for the sequencer.
SELECT events, oldest_age_seconds FROM penstock.unsequenced()

-- name: log_status
-- The state of the log in one row.
SELECT
    unsequenced_events, unsequenced_age_seconds, last_pass_age_seconds, oldest_transaction_seconds,
    event_ids_ready, rejected_commits, history, topics, subscriptions
FROM penstock.log_status()

-- name: sequence_gaps
-- Holes in the index of the log; none unless something is badly wrong.
SELECT partition, expected, found FROM penstock.sequence_gaps(%(topic)s, %(known)s::bigint[])

-- name: fetch
-- Events of one partition from a sequence on, in order. Headers come as text, because the client decodes them
-- faster than its driver does.
SELECT
    sequence, event_id, key, type, content_type, headers::text, payload, created_at, sequenced_at, history
FROM penstock.fetch(%(topic)s, %(partition)s::integer, %(from_sequence)s::bigint, %(max_events)s::integer)

-- name: position_at
-- The position before the first event that was sequenced at a time or later.
SELECT penstock.position_at(%(topic)s, %(partition)s::integer, %(since)s::timestamptz)

-- name: locate_time
-- The position before a time, or the log epoch in which to look for it.
SELECT position, log_epoch, first_sequence, last_sequence
FROM penstock.locate_time(%(topic)s, %(partition)s::integer, %(since)s::timestamptz)

-- name: place_bookmark
-- Gives a position of a topic a name.
SELECT partition, position, history FROM penstock.place_bookmark(%(topic)s, %(name)s, %(start)s)

-- name: drop_bookmark
-- Removes a bookmark. Returns whether there was one of this name.
SELECT penstock.drop_bookmark(%(topic)s, %(name)s)

-- name: list_bookmarks
-- The bookmarks of one topic, or of all.
SELECT topic, name, partition, position, history, is_lost, placed_at, placed_by
FROM penstock.list_bookmarks(%(topic)s)

-- name: bookmark_positions
-- Where a bookmark stands in each partition of a topic.
SELECT partition, position FROM penstock.bookmark_positions(%(topic)s, %(name)s)

-- name: high_watermarks
-- The readable range of every partition of a topic.
SELECT partition, low_sequence, high_watermark, history, partition_id FROM penstock.high_watermarks(%(topic)s)

-- name: fetch_plan
-- Where to read the events of a partition: the segments in order, with a row for each recorded copy.
SELECT
    place, log_epoch, first_sequence, last_sequence, event_count, checksum, known_as, target, state, location, layout,
    first_row
FROM penstock.fetch_plan(%(topic)s, %(partition)s::integer, %(from_sequence)s::bigint, %(max_events)s::bigint)

-- name: lsn_of
-- The position of a sequence in the log.
SELECT lsn, log_epoch FROM penstock.lsn_of(%(topic)s, %(partition)s::integer, %(sequence)s::bigint)

-- name: sequence_of
-- The sequence of a position of the log, checked.
SELECT penstock.sequence_of(%(topic)s, %(partition)s::integer, %(lsn)s)

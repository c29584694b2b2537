-- name: sequence
-- One pass of the sequencer.
-- json: 3
CALL penstock.`sequence`(%(max_events)s)

-- name: sequence_and_announce
-- One pass of the sequencer. It cannot wake consumers here: they look with grown_since.
-- json: 3
CALL penstock.`sequence`(%(max_events)s)

-- name: nothing_waits
-- Whether a pass would find nothing.
-- reads only
CALL penstock.nothing_waits()

-- name: grown_since
-- The newest pass, and which partitions the last passes brought events to.
-- reads only
CALL penstock.grown_since(%(after)s)

-- name: unsequenced
-- What waits for the sequencer.
-- reads only
CALL penstock.unsequenced()

-- name: fetch
-- Events of one partition from a sequence on, in order.
-- reads only
CALL penstock.`fetch`(%(topic)s, %(partition)s, %(from_sequence)s, %(max_events)s)

-- name: position_at
-- The position before the first event that was sequenced at a time or later.
-- reads only
CALL penstock.position_at(%(topic)s, %(partition)s, %(since)s)

-- name: locate_time
-- The position before a time, or the log epoch in which to look for it.
-- reads only
CALL penstock.locate_time(%(topic)s, %(partition)s, %(since)s)

-- name: place_bookmark
-- Gives a position of a topic a name.
CALL penstock.place_bookmark(%(topic)s, %(name)s, %(start)s)

-- name: drop_bookmark
-- Removes a bookmark. Returns whether there was one of this name.
CALL penstock.drop_bookmark(%(topic)s, %(name)s)

-- name: list_bookmarks
-- The bookmarks of one topic, or of all.
-- reads only
CALL penstock.list_bookmarks(%(topic)s)

-- name: bookmark_positions
-- Where a bookmark stands in each partition of a topic.
-- reads only
CALL penstock.bookmark_positions(%(topic)s, %(name)s)

-- name: high_watermarks
-- The readable range of every partition of a topic.
-- reads only
CALL penstock.high_watermarks(%(topic)s)

-- name: fetch_plan
-- Where to read the events of a partition: the segments in order, with a row for each recorded copy.
-- reads only
CALL penstock.fetch_plan(%(topic)s, %(partition)s, %(from_sequence)s, %(max_events)s)

-- name: lsn_of
-- The position of a sequence in the log.
-- reads only
CALL penstock.lsn_of(%(topic)s, %(partition)s, %(sequence)s)

-- name: sequence_of
-- The sequence of a position of the log, checked.
-- reads only
CALL penstock.sequence_of(%(topic)s, %(partition)s, %(lsn)s)

-- name: log_status
-- The state of the log in one row.
-- reads only
CALL penstock.log_status()

-- name: sequence_gaps
-- Holes in the index of the log; none unless something is badly wrong.
-- reads only
CALL penstock.sequence_gaps(%(topic)s, %(known)s)

-- name: slices_ready
-- How many ids each insert-only table can still take.
-- reads only
CALL penstock.slices_ready()

-- name: note_slice_rates
-- Notes how fast each table takes ids.
CALL penstock.note_slice_rates()

-- name: missing_slices
-- The tables that need another slice, and which.
-- reads only
CALL penstock.missing_slices()

-- name: droppable_slices
-- The slices that are no longer needed.
-- reads only
CALL penstock.droppable_slices()

-- name: sparse_slices
-- The slices of events of which only little is still needed.
-- reads only
CALL penstock.sparse_slices()

-- name: carry_positions
-- Copies old positions to newer slices, so that the old slices can be dropped.
CALL penstock.carry_positions(%(max_rows)s)

-- name: settle_blocks
-- Raises the floor of the sequencer as far as it goes.
CALL penstock.settle_blocks()

-- name: raise_event_ids
-- Raises the counter of event ids above what was sequenced or waits.
CALL penstock.raise_event_ids()

-- name: mergeable_partitions
-- The partitions of topics whose part of the index can become smaller.
-- reads only
CALL penstock.mergeable_partitions()

-- name: merge_chunks
-- Makes the index of one partition smaller by one step.
CALL penstock.merge_chunks(%(partition_id)s)

-- name: note_kept_slice
-- Says which slice is about to be replaced, NULL: none. It waits for erasures that are under way.
UPDATE penstock.slice_being_kept SET slice = %(slice)s

-- name: fill_rest
-- Copies what is needed of a slice of events into the table that will replace it. It waits for an erasure of them.
INSERT INTO penstock.events_rest
SELECT STRAIGHT_JOIN e.*
FROM (
    SELECT n.id FROM penstock.needed_events AS n
    WHERE n.first_id <= %(last_id)s AND n.last_id >= %(first_id)s AND n.id BETWEEN %(first_id)s AND %(last_id)s
    UNION
    SELECT d.id FROM penstock.delayed_events AS d WHERE d.id BETWEEN %(first_id)s AND %(last_id)s
) AS k
JOIN penstock.events AS e FORCE INDEX (PRIMARY) ON e.id = k.id
LOCK IN SHARE MODE

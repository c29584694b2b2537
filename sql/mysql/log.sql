-- name: sequence
-- One pass of the sequencer.
-- json: 3
CALL penstock.`sequence`(%(max_events)s)

-- name: announce
-- Nobody can be woken here: consumers look for themselves.
-- reads only
SELECT NULL FROM (SELECT %(grown)s AS grown) AS g WHERE FALSE

-- name: unsequenced
-- What waits for the sequencer.
-- reads only
CALL penstock.unsequenced()

-- name: fetch
-- Events of one partition from a sequence on, in order.
-- reads only
CALL penstock.`fetch`(%(topic)s, %(partition)s, %(from_sequence)s, %(max_events)s)

-- name: high_watermarks
-- The readable range of every partition of a topic.
-- reads only
CALL penstock.high_watermarks(%(topic)s)

-- name: log_status
-- The state of the log in one row.
-- reads only
CALL penstock.log_status()

-- name: sequence_gaps
-- Holes in the index of the log; none unless something is badly wrong.
-- reads only
CALL penstock.sequence_gaps(%(topic)s)

-- name: slices_ready
-- How many ids the events can still take.
-- reads only
CALL penstock.slices_ready()

-- name: droppable_slices
-- The partitions of events that nobody needs.
-- reads only
CALL penstock.droppable_slices()

-- name: settle_blocks
-- Raises the floor of the sequencer as far as it goes.
CALL penstock.settle_blocks()

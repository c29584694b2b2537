-- name: needed_events
-- The events that are readable, found from the index of the log alone.
CREATE OR REPLACE SQL SECURITY INVOKER VIEW needed_events AS
SELECT i.first_id, i.last_id, i.id
FROM partitions AS p
STRAIGHT_JOIN logged_ids AS i ON i.partition_id = p.id AND i.first_sequence + i.event_count > p.low_sequence
WHERE i.sequence >= p.low_sequence;

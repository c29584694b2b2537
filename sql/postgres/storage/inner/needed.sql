-- name: needed_events
-- The events with ids in a range that are still needed: readable, or not due yet. By the index of the log alone.
CREATE OR REPLACE FUNCTION needed_events(lowest_id bigint, highest_id bigint) RETURNS TABLE (id bigint)
LANGUAGE sql STABLE AS $$
    SELECT i.id
    FROM chunks AS c
    JOIN partitions AS p ON p.id = c.partition_id
    CROSS JOIN LATERAL unnest(c.event_ids) WITH ORDINALITY AS i (id, n)
    WHERE c.first_id <= needed_events.highest_id AND c.last_id >= needed_events.lowest_id
      AND c.first_sequence + c.event_count > p.low_sequence
      AND c.first_sequence + i.n > p.low_sequence
      AND i.id BETWEEN needed_events.lowest_id AND needed_events.highest_id
    UNION ALL
    SELECT d.id
    FROM (SELECT t.due, t.due_id FROM ticks AS t ORDER BY t.id DESC LIMIT 1) AS taken
    JOIN delayed AS d ON d.due >= taken.due AND (d.due, d.id) > (taken.due, taken.due_id)
    WHERE d.id BETWEEN needed_events.lowest_id AND needed_events.highest_id
$$;

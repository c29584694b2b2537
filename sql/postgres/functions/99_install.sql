-- name: first_slices
-- Storage to begin with.
SELECT ensure_slices();

-- name: first_tick
-- The sequencer works on differences between snapshots, so there must be one to begin with: today's, before any event.
INSERT INTO ticks (id, base, target, last_id, complete, highest_id)
SELECT 1, pg_current_snapshot(), pg_current_snapshot(), 0, true, 1
WHERE NOT EXISTS (SELECT FROM ticks);

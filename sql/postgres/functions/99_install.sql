-- name: first_slices
-- Storage to begin with.
SELECT ensure_slices();

-- name: first_tick
-- The sequencer works on differences between snapshots, so there must be one to begin with: today's, before any event.
INSERT INTO ticks (id, base, target, last_id, complete, highest_id, horizon)
SELECT 1, committed_snapshot(), committed_snapshot(), 0, true, 1, pg_current_xact_id()
WHERE NOT EXISTS (SELECT FROM ticks);

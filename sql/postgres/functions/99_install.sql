-- name: first_slices
-- Creates the first storage.
SELECT ensure_slices();

-- name: first_era
-- Creates the first era: transaction numbers are compared within an era, so there must be one to begin with.
INSERT INTO eras (era, system_identifier, timeline, boundary_id, base, settled)
SELECT 1, i.system_identifier, i.timeline, 0, committed_snapshot(), pg_current_xact_id()
FROM log_identity() AS i
WHERE NOT EXISTS (SELECT FROM eras);

-- name: first_tick
-- Creates the first tick: the sequencer works on differences between snapshots, so it needs one from before any
-- event.
INSERT INTO ticks (id, base, target, last_id, complete, highest_id, horizon)
SELECT 1, committed_snapshot(), committed_snapshot(), 0, true, 0, pg_current_xact_id()
WHERE NOT EXISTS (SELECT FROM ticks);

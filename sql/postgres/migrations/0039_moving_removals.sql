-- name: when_removals_moved
-- When something of a removal was deleted last: one that does not move on is told by the doctor.
ALTER TABLE removals ADD COLUMN moved_at timestamptz NOT NULL DEFAULT clock_timestamp();

-- name: events_due_at
-- An event that is to come later: not before due_at. NULL is at once.
ALTER TABLE events ADD COLUMN due_at timestamptz;

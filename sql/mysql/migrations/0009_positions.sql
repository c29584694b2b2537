-- name: drop_newest_position
-- The view newest_positions has taken its place.
DROP FUNCTION IF EXISTS newest_position;

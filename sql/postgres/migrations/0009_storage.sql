-- name: storage_begins
-- The statements of this migration follow.
SELECT 1;

-- name: rights_begin
-- The statements of this migration follow.
SELECT 1;

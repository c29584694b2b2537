-- name: reserved_29
-- The number is taken by a change that is not in this branch.
SELECT 1;

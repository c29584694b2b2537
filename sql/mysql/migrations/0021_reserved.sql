-- name: reserved_21
-- The number is taken by a change that is not in this branch.
DO 0;

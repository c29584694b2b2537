-- name: let_origins_name_the_file
-- A policy is owned by the file that has set it, so its origin says which: 'file ' and its name. The functions check
-- it.
ALTER TABLE policies DROP CONSTRAINT IF EXISTS policies_origin_check;
ALTER TABLE retention_policies DROP CONSTRAINT IF EXISTS retention_policies_origin_check;

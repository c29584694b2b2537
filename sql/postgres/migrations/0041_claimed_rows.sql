-- name: which_rows_were_claimed
-- How many rows a version had, and a digest of them. NULL: it was claimed before there were these columns, or by a
-- program that does not say it; then a repetition is not compared.
ALTER TABLE claimed_writes ADD COLUMN events bigint, ADD COLUMN digest text COLLATE "C";

-- name: slices_detaching_since
-- Since when clean has been detaching a slice; NULL where it was somebody else, or a version before this one.
ALTER TABLE slices ADD COLUMN detaching_since timestamptz;

-- name: replaced_broken_slices
-- It tells more now.
DROP FUNCTION IF EXISTS broken_slices();

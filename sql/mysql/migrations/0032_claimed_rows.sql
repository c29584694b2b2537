-- name: drop_change_for_claimed_rows
-- What an installation that broke off has left.
DROP PROCEDURE IF EXISTS change_for_claimed_rows;

-- name: create_change_for_claimed_rows
-- How many rows a version had, and a digest of them. NULL: it was claimed before there were these columns, or by a
-- program that does not say it; then a repetition is not compared.
CREATE PROCEDURE change_for_claimed_rows()
BEGIN
    IF NOT EXISTS (
        SELECT * FROM information_schema.COLUMNS AS c
        WHERE c.TABLE_SCHEMA = DATABASE() AND c.TABLE_NAME = 'claimed_writes' AND c.COLUMN_NAME = 'digest') THEN
        ALTER TABLE claimed_writes ADD COLUMN events BIGINT, ADD COLUMN digest VARCHAR(100);
    END IF;
END;

-- name: change_for_claimed_rows
-- Waits for whoever uses the table, a second at a time.
CALL change_for_claimed_rows();

-- name: forget_change_for_claimed_rows
-- It was for this migration.
DROP PROCEDURE change_for_claimed_rows;

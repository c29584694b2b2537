-- name: drop_change_for_removals
-- What an installation that broke off has left.
DROP PROCEDURE IF EXISTS change_for_removals;

-- name: create_change_for_removals
-- When something of a removal was deleted last: one that does not move on is told by the doctor.
CREATE PROCEDURE change_for_removals()
BEGIN
    IF NOT EXISTS (
        SELECT * FROM information_schema.COLUMNS AS c
        WHERE c.TABLE_SCHEMA = DATABASE() AND c.TABLE_NAME = 'removals' AND c.COLUMN_NAME = 'moved_at') THEN
        ALTER TABLE removals ADD COLUMN moved_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6));
    END IF;
END;

-- name: change_for_removals
-- Waits for whoever uses the table, a second at a time.
CALL change_for_removals();

-- name: forget_change_for_removals
-- It was for this migration.
DROP PROCEDURE change_for_removals;

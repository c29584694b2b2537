-- name: count_uncovered
-- How many of the partitions that somebody is short of are not free, less what was asked back since the last survey. A migration can be
-- applied again after it was cut short, so what is there already is passed over.
CREATE PROCEDURE count_uncovered()
BEGIN
    IF NOT EXISTS (
        SELECT * FROM information_schema.COLUMNS AS c
        WHERE c.TABLE_SCHEMA = DATABASE() AND c.TABLE_NAME = 'surveys' AND c.COLUMN_NAME = 'uncovered') THEN
        ALTER TABLE surveys ADD COLUMN uncovered BIGINT NOT NULL DEFAULT 0;
    END IF;
END;

-- name: call_count_uncovered
-- Waits for whoever uses the table.
CALL count_uncovered();

-- name: forget_count_uncovered
-- It was for this migration.
DROP PROCEDURE count_uncovered;

-- name: create_shares
-- The quotas of those who held too little or too much at the last survey, for the check-ins until the next one.
CREATE TABLE IF NOT EXISTS shares (
    subscription_id BIGINT NOT NULL,
    consumer VARCHAR(255) NOT NULL,
    quota BIGINT NOT NULL,
    PRIMARY KEY (subscription_id, consumer)
) ENGINE = InnoDB;

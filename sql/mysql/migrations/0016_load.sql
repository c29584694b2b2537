-- name: index_and_count
-- What one consumer holds is found by an index; and a survey says how many of the partitions that somebody is short of are not free, less
-- what was asked back since. A migration can be applied again after it was cut short, so what is there already is passed over.
CREATE PROCEDURE index_and_count()
BEGIN
    IF NOT EXISTS (
        SELECT * FROM information_schema.STATISTICS AS i
        WHERE i.TABLE_SCHEMA = DATABASE() AND i.TABLE_NAME = 'leases' AND i.INDEX_NAME = 'leases_holder') THEN
        ALTER TABLE leases ADD INDEX leases_holder (subscription_id, holder);
    END IF;
    IF NOT EXISTS (
        SELECT * FROM information_schema.COLUMNS AS c
        WHERE c.TABLE_SCHEMA = DATABASE() AND c.TABLE_NAME = 'surveys' AND c.COLUMN_NAME = 'uncovered') THEN
        ALTER TABLE surveys ADD COLUMN uncovered BIGINT NOT NULL DEFAULT 0;
    END IF;
END;

-- name: call_index_and_count
-- Waits for whoever uses the tables.
CALL index_and_count();

-- name: forget_index_and_count
-- It was for this migration.
DROP PROCEDURE index_and_count;

-- name: create_shares
-- The quotas of those who held too little or too much at the last survey, for the check-ins until the next one.
CREATE TABLE IF NOT EXISTS shares (
    subscription_id BIGINT NOT NULL,
    consumer VARCHAR(255) NOT NULL,
    quota BIGINT NOT NULL,
    PRIMARY KEY (subscription_id, consumer)
) ENGINE = InnoDB;

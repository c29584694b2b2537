-- name: create_relay_files
-- Which policy file's relays the database follows. What a file sets has its origin; a relay of it is a subscription,
-- which has none.
CREATE TABLE IF NOT EXISTS relay_files (
    singleton BOOLEAN NOT NULL PRIMARY KEY,
    origin VARCHAR(505) NOT NULL,
    claimed_at DATETIME(6) NOT NULL,
    claimed_by VARCHAR(400) NOT NULL
) ENGINE = InnoDB;

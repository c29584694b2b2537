-- name: create_cleaning
-- The name of the lock that keeps two from cleaning at once, which the first clean chooses. No login has a right on this row: a lock by
-- GET_LOCK whose name everybody knows any login could take, and clean would never begin.
CREATE TABLE IF NOT EXISTS cleaning (
    singleton BOOLEAN NOT NULL PRIMARY KEY,
    lock_name CHAR(32) CHARACTER SET ascii NOT NULL,
    CONSTRAINT cleaning_singleton CHECK (singleton = TRUE)
) ENGINE = InnoDB;

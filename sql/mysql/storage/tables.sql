-- name: slice_rates
-- How fast each insert-only table takes ids: at most, in an hour, halved for every week since.
CREATE TABLE IF NOT EXISTS slice_rates (
    parent VARCHAR(64) NOT NULL PRIMARY KEY,
    used BIGINT NOT NULL,
    measured_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    peak_per_second DOUBLE NOT NULL DEFAULT 0
) ENGINE = InnoDB;

-- name: slice_being_kept
-- The slice of events that clean is about to replace by a copy of what is still needed of it; NULL: none. An erasure
-- reads the row with a lock, so that it comes before the copy is made or is refused.
CREATE TABLE IF NOT EXISTS slice_being_kept (
    singleton BOOLEAN NOT NULL PRIMARY KEY,
    slice VARCHAR(64)
) ENGINE = InnoDB;

-- name: first_rows_of_slice_being_kept
-- The row to lock.
INSERT IGNORE INTO slice_being_kept (singleton) VALUES (TRUE);

-- name: cleaning
-- The name of the lock that keeps two from cleaning at once, which the first clean chooses. No login has a right on
-- this row: a lock by GET_LOCK whose name everybody knows any login could take, and clean would never begin.
CREATE TABLE IF NOT EXISTS cleaning (
    singleton BOOLEAN NOT NULL PRIMARY KEY,
    lock_name CHAR(32) CHARACTER SET ascii NOT NULL,
    CONSTRAINT cleaning_singleton CHECK (singleton = TRUE)
) ENGINE = InnoDB;

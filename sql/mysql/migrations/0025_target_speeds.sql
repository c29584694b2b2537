-- name: create_target_speeds
-- How long a copy takes on each archive target: what all runs have measured, as a moving average. failures counts those
-- in a row.
CREATE TABLE IF NOT EXISTS target_speeds (
    target VARCHAR(63) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    seconds DOUBLE NOT NULL,
    failures INT NOT NULL,
    measured_at DATETIME(6) NOT NULL
) ENGINE = InnoDB;

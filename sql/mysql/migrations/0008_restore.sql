-- name: create_log_mark
-- Always empty and never altered: when it was made tells a database that a dump was loaded into from the one that was dumped.
CREATE TABLE IF NOT EXISTS log_mark (
    nothing BOOLEAN NOT NULL PRIMARY KEY
) ENGINE = InnoDB;

-- name: create_eras
-- Stretches of time in which the log was one server's, and was not loaded from a dump; the first pass of the sequencer writes the
-- first one. Ids up to boundary_id were given before the era. Those above repaired_id have yet to be compared with the index of
-- the log; none of them is older than oldest_at.
CREATE TABLE IF NOT EXISTS eras (
    era INT NOT NULL PRIMARY KEY,
    server VARCHAR(200) NOT NULL,
    made BIGINT NOT NULL,
    boundary_id BIGINT NOT NULL,
    repaired_id BIGINT NOT NULL,
    oldest_at DATETIME(6) NOT NULL,
    opened_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6))
) ENGINE = InnoDB;

-- name: create_stops
-- Partitions that nobody reads until a restore is reconciled: source says that it has seen a sequence which the log, in the same
-- history, has not come to.
CREATE TABLE IF NOT EXISTS stops (
    partition_id BIGINT NOT NULL PRIMARY KEY,
    sequence BIGINT NOT NULL,
    history INT NOT NULL,
    source VARCHAR(500) NOT NULL,
    reported_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6))
) ENGINE = InnoDB;

-- name: reasons_of_positions
-- A new history brings positions back that lie beyond the log.
ALTER TABLE positions
    DROP /*!80000 CHECK */ /*M! CONSTRAINT */ positions_reason,
    ADD CONSTRAINT positions_reason CHECK (reason IN ('start', 'commit', 'seek', 'carried', 'history'));

-- name: changes_of_leases
-- And takes leases from their holders.
ALTER TABLE lease_history
    DROP /*!80000 CHECK */ /*M! CONSTRAINT */ lease_history_change,
    ADD CONSTRAINT lease_history_change
        CHECK (`change` IN ('acquired', 'releasing', 'released', 'expired', 'seek', 'history'));

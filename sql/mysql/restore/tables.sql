-- name: histories
-- The lines of the log's history; each restore that lost commits opens the next one.
CREATE TABLE IF NOT EXISTS histories (
    history INT NOT NULL PRIMARY KEY,
    reason TEXT NOT NULL,
    opened_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6))
) ENGINE = InnoDB;

-- name: first_rows_of_histories
-- Every position belongs to a history, so the first one must exist.
INSERT IGNORE INTO histories (history, reason) VALUES (1, 'installed');

-- name: history_starts
-- Where a history began in each partition: the end of the log at that moment. A reader outside the database whose
-- position is of an earlier history, and lies beyond, goes back to here.
CREATE TABLE IF NOT EXISTS history_starts (
    partition_id BIGINT NOT NULL,
    history INT NOT NULL,
    position BIGINT NOT NULL,
    PRIMARY KEY (partition_id, history)
) ENGINE = InnoDB;

-- name: log_mark
-- Always empty and never altered: when it was made tells a database that a dump was loaded into from the one that was
-- dumped.
CREATE TABLE IF NOT EXISTS log_mark (
    nothing BOOLEAN NOT NULL PRIMARY KEY
) ENGINE = InnoDB;

-- name: eras
-- Stretches of time in which the log was one server's, and was not loaded from a dump; the first pass of the sequencer
-- writes the first one.
CREATE TABLE IF NOT EXISTS eras (
    era INT NOT NULL PRIMARY KEY,
    server VARCHAR(200) NOT NULL,
    made BIGINT NOT NULL,
    -- Ids up to boundary_id were given before the era. Those above repaired_id have yet to be compared with the index
    -- of the log; none of them is older than oldest_at.
    boundary_id BIGINT NOT NULL,
    repaired_id BIGINT NOT NULL,
    oldest_at DATETIME(6) NOT NULL,
    opened_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6))
) ENGINE = InnoDB;

-- name: stops
-- Partitions that nobody reads until a restore is reconciled: source says that it has seen a sequence which the log, in
-- the same history, has not come to.
CREATE TABLE IF NOT EXISTS stops (
    partition_id BIGINT NOT NULL,
    sequence BIGINT NOT NULL,
    history INT NOT NULL,
    source VARCHAR(500) NOT NULL,
    reported_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    -- Who may not operate a topic stops only his own subscription; 0 stands for all readers.
    subscription_id BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (partition_id, subscription_id)
) ENGINE = InnoDB;

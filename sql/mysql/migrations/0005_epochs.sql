-- name: create_log_epochs
-- Sealed ranges of a partition: the unit of archive and retention. A row never changes but for dropped_at.
CREATE TABLE IF NOT EXISTS log_epochs (
    partition_id BIGINT NOT NULL,
    log_epoch INT NOT NULL,
    first_sequence BIGINT NOT NULL,
    last_sequence BIGINT NOT NULL,
    event_count BIGINT NOT NULL,
    checksum VARCHAR(200) NOT NULL,
    sealed_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    dropped_at DATETIME(6),
    PRIMARY KEY (partition_id, log_epoch),
    UNIQUE KEY log_epochs_first (partition_id, first_sequence),
    CONSTRAINT log_epochs_count CHECK (event_count = last_sequence - first_sequence + 1)
) ENGINE = InnoDB;

-- name: create_epoch_copies
-- Where a sealed epoch has been written to, verified against its seal.
CREATE TABLE IF NOT EXISTS epoch_copies (
    partition_id BIGINT NOT NULL,
    log_epoch INT NOT NULL,
    target VARCHAR(255) NOT NULL,
    location TEXT NOT NULL,
    state VARCHAR(20) NOT NULL,
    detail TEXT NOT NULL,
    changed_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    PRIMARY KEY (partition_id, log_epoch, target),
    CONSTRAINT epoch_copies_state CHECK (state IN ('verified', 'missing'))
) ENGINE = InnoDB;

-- name: create_retention_drops
-- What was dropped and why it was safe: the lowest position and the copies at that moment.
CREATE TABLE IF NOT EXISTS retention_drops (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    partition_id BIGINT NOT NULL,
    log_epoch INT NOT NULL,
    first_sequence BIGINT NOT NULL,
    last_sequence BIGINT NOT NULL,
    lowest_position BIGINT,
    copies INT NOT NULL,
    policy_version INT NOT NULL,
    dropped_by VARCHAR(300) NOT NULL,
    dropped_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6))
) ENGINE = InnoDB;

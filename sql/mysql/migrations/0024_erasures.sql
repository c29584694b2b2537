-- name: create_erasures
-- Who had which events erased, when and why. It has no payload and no key: digest is SHA-256 of the erasure's id and
-- the key, by which the same command finds its own work again. A row stays: it is the record.
CREATE TABLE IF NOT EXISTS erasures (
    erasure CHAR(36) CHARACTER SET ascii NOT NULL PRIMARY KEY,
    topic_id BIGINT NOT NULL,
    event_id BINARY(16),
    digest CHAR(64) CHARACTER SET ascii,
    replace_key BOOLEAN NOT NULL,
    reason TEXT NOT NULL,
    requested_by VARCHAR(400) NOT NULL,
    requested_at DATETIME(6) NOT NULL,
    finished_at DATETIME(6),
    events BIGINT NOT NULL DEFAULT 0,
    letters BIGINT NOT NULL DEFAULT 0,
    KEY erasures_topic (topic_id, requested_at),
    CONSTRAINT erasures_kind CHECK ((event_id IS NULL) <> (digest IS NULL))
) ENGINE = InnoDB;

-- name: create_erased_events
-- The places of the events that were erased.
CREATE TABLE IF NOT EXISTS erased_events (
    partition_id BIGINT NOT NULL,
    sequence BIGINT NOT NULL,
    erasure CHAR(36) CHARACTER SET ascii NOT NULL,
    PRIMARY KEY (partition_id, sequence)
) ENGINE = InnoDB;

-- name: create_reissued_seals
-- The checksums that log epochs had before events of them were erased. A copy that has one of these has old bytes.
CREATE TABLE IF NOT EXISTS reissued_seals (
    partition_id BIGINT NOT NULL,
    log_epoch INT NOT NULL,
    old_checksum CHAR(64) CHARACTER SET ascii NOT NULL,
    checksum CHAR(64) CHARACTER SET ascii NOT NULL,
    erasure CHAR(36) CHARACTER SET ascii NOT NULL,
    reissued_by VARCHAR(400) NOT NULL,
    reissued_at DATETIME(6) NOT NULL,
    PRIMARY KEY (partition_id, log_epoch, old_checksum)
) ENGINE = InnoDB;

-- name: create_slice_being_kept
-- The slice of events that clean is about to replace by a copy of what is still needed of it; NULL: none. An erasure
-- reads the row with a lock, so that it comes before the copy is made or is refused.
CREATE TABLE IF NOT EXISTS slice_being_kept (
    singleton BOOLEAN NOT NULL PRIMARY KEY,
    slice VARCHAR(64)
) ENGINE = InnoDB;

-- name: fill_slice_being_kept
-- The row to lock.
INSERT IGNORE INTO slice_being_kept (singleton) VALUES (TRUE);

-- name: create_backfill_requests
-- What somebody wants to have again: copies on a target, dropped log epochs in SQL, or a window of the log in a sink.
-- attempts is the fence: whoever works on a request names the attempt that it has claimed. target is the archive target
-- or the sink's address; a rehydration has none. deadline is when a running request may be claimed from a lost runner.
CREATE TABLE IF NOT EXISTS backfill_requests (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    kind VARCHAR(20) NOT NULL,
    topic_id BIGINT NOT NULL,
    target VARCHAR(1000) NOT NULL,
    `partition` INT,
    from_sequence BIGINT,
    to_sequence BIGINT,
    from_time DATETIME(6),
    to_time DATETIME(6),
    dry_run BOOLEAN NOT NULL,
    priority INT NOT NULL,
    state VARCHAR(20) NOT NULL,
    run VARCHAR(255),
    units INT NOT NULL,
    total_events BIGINT NOT NULL,
    done_units INT NOT NULL DEFAULT 0,
    done_events BIGINT NOT NULL DEFAULT 0,
    attempts INT NOT NULL DEFAULT 0,
    max_attempts INT NOT NULL,
    not_before DATETIME(6) NOT NULL,
    deadline DATETIME(6),
    error TEXT NOT NULL,
    requested_by VARCHAR(400) NOT NULL,
    requested_at DATETIME(6) NOT NULL,
    changed_at DATETIME(6) NOT NULL,
    KEY backfill_requests_state (state, priority, id),
    KEY backfill_requests_topic (topic_id),
    CONSTRAINT backfill_requests_kind CHECK (kind IN ('copy', 'rehydrate', 'relay')),
    CONSTRAINT backfill_requests_states CHECK (state IN ('waiting', 'running', 'done', 'failed', 'cancelled'))
) ENGINE = InnoDB;

-- name: create_backfill_units
-- The ranges of a request, fixed when it is made: one log epoch each, or a part of what is not sealed yet (log_epoch
-- NULL). done_at is set once, by the attempt that has finished the range.
CREATE TABLE IF NOT EXISTS backfill_units (
    request BIGINT NOT NULL,
    partition_id BIGINT NOT NULL,
    first_sequence BIGINT NOT NULL,
    last_sequence BIGINT NOT NULL,
    log_epoch INT,
    done_by INT,
    done_at DATETIME(6),
    PRIMARY KEY (request, partition_id, first_sequence),
    KEY backfill_units_open (request, done_at, partition_id, first_sequence),
    CONSTRAINT backfill_units_range CHECK (last_sequence >= first_sequence)
) ENGINE = InnoDB;

-- name: create_rehydrated_epochs
-- Dropped log epochs that were brought back. A row is written in the transaction that has brought all events of the
-- log epoch and found them to be what was sealed, so what it covers can be read.
CREATE TABLE IF NOT EXISTS rehydrated_epochs (
    partition_id BIGINT NOT NULL,
    first_sequence BIGINT NOT NULL,
    last_sequence BIGINT NOT NULL,
    log_epoch INT NOT NULL,
    request BIGINT NOT NULL,
    rehydrated_at DATETIME(6) NOT NULL,
    PRIMARY KEY (partition_id, first_sequence)
) ENGINE = InnoDB;

-- name: create_rehydrated_events
-- The events of these log epochs, by their sequences.
CREATE TABLE IF NOT EXISTS rehydrated_events (
    partition_id BIGINT NOT NULL,
    sequence BIGINT NOT NULL,
    event_id BINARY(16) NOT NULL,
    `key` VARCHAR(255),
    type VARCHAR(255) NOT NULL,
    content_type VARCHAR(255) NOT NULL,
    headers MEDIUMTEXT,
    payload LONGBLOB NOT NULL,
    created_at DATETIME(6) NOT NULL,
    sequenced_at DATETIME(6) NOT NULL,
    PRIMARY KEY (partition_id, sequence)
) ENGINE = InnoDB;

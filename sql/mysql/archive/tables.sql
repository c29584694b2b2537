-- name: log_epochs
-- Sealed ranges of a partition: the unit of archive and retention. A row never changes but for dropped_at, and for its
-- checksum after an erasure.
CREATE TABLE IF NOT EXISTS log_epochs (
    partition_id BIGINT NOT NULL,
    log_epoch INT NOT NULL,
    first_sequence BIGINT NOT NULL,
    last_sequence BIGINT NOT NULL,
    event_count BIGINT NOT NULL,
    checksum VARCHAR(200) NOT NULL,
    sealed_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    dropped_at DATETIME(6),
    -- No event of this log epoch, or of one before it, was sequenced after this time.
    sequenced_until DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    -- What its events say, in bytes. NULL: not counted since an erasure; the next run of clean that needs it counts it.
    event_bytes BIGINT,
    PRIMARY KEY (partition_id, log_epoch),
    UNIQUE KEY log_epochs_first (partition_id, first_sequence),
    -- What retention looks at, so that its cost does not grow with all that was ever dropped.
    KEY log_epochs_kept (partition_id, dropped_at, log_epoch),
    -- The log epochs of a day, which lie together in the archive.
    KEY log_epochs_sealed (partition_id, sealed_at),
    -- In which log epoch a time is.
    KEY log_epochs_sequenced (partition_id, sequenced_until, log_epoch),
    -- Who follows the log epochs of all topics finds the newest without looking at the others.
    KEY log_epochs_time (sealed_at),
    CONSTRAINT log_epochs_count CHECK (event_count = last_sequence - first_sequence + 1)
) ENGINE = InnoDB;

-- name: epoch_copies
-- Where a sealed log epoch has been written to, verified against its seal.
CREATE TABLE IF NOT EXISTS epoch_copies (
    partition_id BIGINT NOT NULL,
    log_epoch INT NOT NULL,
    target VARCHAR(255) NOT NULL,
    location TEXT NOT NULL,
    state VARCHAR(20) NOT NULL,
    detail TEXT NOT NULL,
    changed_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    -- In layout 1 a copy is a folder of its own, in layout 2 it lies from first_row on in a file of the day of sealing.
    layout SMALLINT NOT NULL DEFAULT 1,
    first_row BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (partition_id, log_epoch, target),
    -- Who follows the copies of all topics finds what was recorded or lost last, and the few that are missing.
    KEY epoch_copies_changed (changed_at),
    KEY epoch_copies_state (state, changed_at),
    CONSTRAINT epoch_copies_state CHECK (state IN ('verified', 'missing'))
) ENGINE = InnoDB;

-- name: suspected_copies
-- Copies that a reader has found damaged. They count until somebody who may operate the topic has read them back: what
-- a reader cannot read may be its own mount.
CREATE TABLE IF NOT EXISTS suspected_copies (
    partition_id BIGINT NOT NULL,
    log_epoch INT NOT NULL,
    target VARCHAR(255) NOT NULL,
    reason VARCHAR(2000) NOT NULL,
    suspected_at DATETIME(6) NOT NULL,
    PRIMARY KEY (partition_id, log_epoch, target)
) ENGINE = InnoDB;

-- name: target_speeds
-- How long a copy takes on each archive target: what all runs have measured, as a moving average. failures counts those
-- in a row.
CREATE TABLE IF NOT EXISTS target_speeds (
    target VARCHAR(63) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    seconds DOUBLE NOT NULL,
    failures INT NOT NULL,
    measured_at DATETIME(6) NOT NULL
) ENGINE = InnoDB;

-- name: installation
-- What the marker of an archive target says: whose it is. Chosen once; it goes with the database's backups.
CREATE TABLE IF NOT EXISTS installation (
    singleton BOOLEAN NOT NULL PRIMARY KEY,
    id CHAR(36) CHARACTER SET ascii NOT NULL,
    CONSTRAINT installation_singleton CHECK (singleton = TRUE)
) ENGINE = InnoDB;

-- name: first_rows_of_installation
-- This one.
INSERT IGNORE INTO installation (singleton, id) VALUES (TRUE, UUID());

-- name: legal_holds
-- What no retention policy may remove until somebody releases it. A row stays after its release: it is the record.
CREATE TABLE IF NOT EXISTS legal_holds (
    topic_id BIGINT NOT NULL,
    name VARCHAR(500) NOT NULL,
    -- Of the partition. NULL: the whole topic, also partitions that come later.
    number INT,
    first_sequence BIGINT NOT NULL,
    -- NULL: without an end.
    last_sequence BIGINT,
    reason TEXT NOT NULL,
    placed_at DATETIME(6) NOT NULL,
    placed_by VARCHAR(400) NOT NULL,
    released_at DATETIME(6),
    released_by VARCHAR(400),
    release_reason TEXT,
    PRIMARY KEY (topic_id, name, placed_at),
    -- What retention looks at.
    KEY legal_holds_topic (topic_id, released_at),
    CONSTRAINT legal_holds_range CHECK (
        first_sequence >= 1 AND COALESCE(last_sequence, first_sequence) >= first_sequence)
) ENGINE = InnoDB;

-- name: clean_runs
-- A run of clean: who may drop under its token, and how many damaged copies it has found.
CREATE TABLE IF NOT EXISTS clean_runs (
    run CHAR(36) CHARACTER SET ascii NOT NULL PRIMARY KEY,
    topic_id BIGINT NOT NULL,
    begun_by VARCHAR(400) NOT NULL,
    begun_at DATETIME(6) NOT NULL,
    ended_at DATETIME(6),
    damaged INT NOT NULL DEFAULT 0,
    KEY clean_runs_begun (begun_at)
) ENGINE = InnoDB;

-- name: clean_readings
-- The copies that a run has read back and found to be what was sealed: only these let a log epoch go.
CREATE TABLE IF NOT EXISTS clean_readings (
    run CHAR(36) CHARACTER SET ascii NOT NULL,
    partition_id BIGINT NOT NULL,
    log_epoch INT NOT NULL,
    target VARCHAR(255) NOT NULL,
    event_count BIGINT NOT NULL,
    checksum VARCHAR(200) NOT NULL,
    read_at DATETIME(6) NOT NULL,
    PRIMARY KEY (run, partition_id, log_epoch, target)
) ENGINE = InnoDB;

-- name: retention_drops
-- What was dropped and why it was safe: the lowest position and the copies at that moment, and under which run.
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
    dropped_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    run CHAR(36) CHARACTER SET ascii,
    -- The limit and the size that made it go early; NULL: it went by its age.
    limit_bytes BIGINT,
    size_bytes BIGINT
) ENGINE = InnoDB;

-- name: skips
-- What retention removed before a subscription had read it. The row stays: nothing is skipped in silence.
CREATE TABLE IF NOT EXISTS skips (
    subscription_id BIGINT NOT NULL,
    partition_id BIGINT NOT NULL,
    log_epoch INT NOT NULL,
    first_sequence BIGINT NOT NULL,
    last_sequence BIGINT NOT NULL,
    max_lag_seconds DOUBLE NOT NULL,
    policy_version INT NOT NULL,
    run CHAR(36) CHARACTER SET ascii NOT NULL,
    skipped_at DATETIME(6) NOT NULL,
    -- Why retention did not wait. max_lag: the policy max_lag_seconds of the subscription. max_bytes: the limit of the
    -- topic, which held size_bytes then. passed: a queue came to it after it was gone.
    reason VARCHAR(20) NOT NULL DEFAULT 'max_lag',
    limit_bytes BIGINT,
    size_bytes BIGINT,
    PRIMARY KEY (subscription_id, partition_id, log_epoch),
    CONSTRAINT skips_reason CHECK (reason IN ('max_lag', 'max_bytes', 'passed'))
) ENGINE = InnoDB;

-- name: backfill_requests
-- What somebody wants to have again: copies on a target, dropped log epochs in SQL, or a window of the log in a sink.
CREATE TABLE IF NOT EXISTS backfill_requests (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    kind VARCHAR(20) NOT NULL,
    topic_id BIGINT NOT NULL,
    -- The archive target or the sink's address; a rehydration has none.
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
    -- The fence: whoever works on a request names the attempt that it has claimed.
    attempts INT NOT NULL DEFAULT 0,
    max_attempts INT NOT NULL,
    not_before DATETIME(6) NOT NULL,
    -- When a running request may be claimed from a lost runner.
    deadline DATETIME(6),
    error TEXT NOT NULL,
    requested_by VARCHAR(400) NOT NULL,
    requested_at DATETIME(6) NOT NULL,
    changed_at DATETIME(6) NOT NULL,
    -- What a runner looks at, so that its cost does not grow with all that was ever requested.
    KEY backfill_requests_state (state, priority, id),
    -- For the list of a topic, and for its deletion.
    KEY backfill_requests_topic (topic_id),
    CONSTRAINT backfill_requests_kind CHECK (kind IN ('copy', 'rehydrate', 'relay')),
    CONSTRAINT backfill_requests_states CHECK (state IN ('waiting', 'running', 'done', 'failed', 'cancelled'))
) ENGINE = InnoDB;

-- name: backfill_units
-- The ranges of a request, fixed when it is made: one log epoch each, or a part of what is not sealed yet.
CREATE TABLE IF NOT EXISTS backfill_units (
    request BIGINT NOT NULL,
    partition_id BIGINT NOT NULL,
    first_sequence BIGINT NOT NULL,
    last_sequence BIGINT NOT NULL,
    -- NULL: not sealed yet.
    log_epoch INT,
    done_by INT,
    -- Set once, by the attempt that has finished the range.
    done_at DATETIME(6),
    PRIMARY KEY (request, partition_id, first_sequence),
    -- What is left of a request.
    KEY backfill_units_open (request, done_at, partition_id, first_sequence),
    CONSTRAINT backfill_units_range CHECK (last_sequence >= first_sequence)
) ENGINE = InnoDB;

-- name: rehydrated_epochs
-- Dropped log epochs that were brought back. A row is written in the transaction that has brought all events of the log
-- epoch and found them to be what was sealed, so what it covers can be read.
CREATE TABLE IF NOT EXISTS rehydrated_epochs (
    partition_id BIGINT NOT NULL,
    first_sequence BIGINT NOT NULL,
    last_sequence BIGINT NOT NULL,
    log_epoch INT NOT NULL,
    request BIGINT NOT NULL,
    rehydrated_at DATETIME(6) NOT NULL,
    PRIMARY KEY (partition_id, first_sequence)
) ENGINE = InnoDB;

-- name: rehydrated_events
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

-- name: erasures
-- Who had which events erased, when and why. It has no payload and no key. A row stays: it is the record.
CREATE TABLE IF NOT EXISTS erasures (
    erasure CHAR(36) CHARACTER SET ascii NOT NULL PRIMARY KEY,
    topic_id BIGINT NOT NULL,
    event_id BINARY(16),
    -- SHA-256 of the erasure's id and the key, by which the same command finds its own work again.
    digest CHAR(64) CHARACTER SET ascii,
    replace_key BOOLEAN NOT NULL,
    reason TEXT NOT NULL,
    requested_by VARCHAR(400) NOT NULL,
    requested_at DATETIME(6) NOT NULL,
    finished_at DATETIME(6),
    events BIGINT NOT NULL DEFAULT 0,
    letters BIGINT NOT NULL DEFAULT 0,
    -- The record of a topic, and what is not finished.
    KEY erasures_topic (topic_id, requested_at),
    CONSTRAINT erasures_kind CHECK ((event_id IS NULL) <> (digest IS NULL))
) ENGINE = InnoDB;

-- name: erased_events
-- The places of the events that were erased.
CREATE TABLE IF NOT EXISTS erased_events (
    partition_id BIGINT NOT NULL,
    sequence BIGINT NOT NULL,
    erasure CHAR(36) CHARACTER SET ascii NOT NULL,
    PRIMARY KEY (partition_id, sequence)
) ENGINE = InnoDB;

-- name: reissued_seals
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

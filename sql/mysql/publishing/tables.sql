-- name: dedup_keys
-- The keys by which publishers repeat an event without doubling it, for as long as the window is. They are found by key
-- and forgotten by age: unlike on PostgreSQL, what was deleted here costs nobody who looks for another key.
CREATE TABLE IF NOT EXISTS dedup_keys (
    topic_id BIGINT NOT NULL,
    dedup_key VARBINARY(1020) NOT NULL,
    event_id BINARY(16) NOT NULL,
    at DATETIME(6) NOT NULL,
    PRIMARY KEY (topic_id, dedup_key),
    KEY dedup_keys_at (at)
) ENGINE = InnoDB;

-- name: recent_sends
-- Texts that senders have claimed for their events for a few minutes, so that a send that is repeated is no second
-- event. A row is overwritten when its text is claimed again after its end.
CREATE TABLE IF NOT EXISTS recent_sends (
    topic_id BIGINT NOT NULL,
    send_key VARBINARY(64) NOT NULL,
    event_id BINARY(16) NOT NULL,
    ends_at DATETIME(6) NOT NULL,
    PRIMARY KEY (topic_id, send_key),
    KEY recent_sends_end (ends_at)
) ENGINE = InnoDB;

-- name: forgotten_sends
-- Up to which end claims were deleted, and since when this round lasts.
CREATE TABLE IF NOT EXISTS forgotten_sends (
    singleton BOOLEAN NOT NULL PRIMARY KEY,
    up_to DATETIME(6) NOT NULL,
    begun_at DATETIME(6) NOT NULL
) ENGINE = InnoDB;

-- name: first_rows_of_forgotten_sends
-- None was deleted yet.
INSERT IGNORE INTO forgotten_sends (singleton, up_to, begun_at) VALUES (TRUE, '2000-01-01', UTC_TIMESTAMP(6));

-- name: strict_locks
-- Rows to lock, buckets of keys: the lower half for publishers that want commit order, the upper one for those of a
-- dedup key.
CREATE TABLE IF NOT EXISTS strict_locks (
    bucket INT NOT NULL PRIMARY KEY
) ENGINE = InnoDB;

-- name: first_rows_of_strict_locks
-- Buckets 0 to 32,767.
INSERT IGNORE INTO strict_locks (bucket) SELECT s.n FROM numbers AS s WHERE s.n < 32768;

-- name: pressure
-- What waited for its sequence when it was measured last, for the topics that have a limit.
CREATE TABLE IF NOT EXISTS pressure (
    partition_id BIGINT NOT NULL PRIMARY KEY,
    events BIGINT NOT NULL,
    bytes BIGINT NOT NULL,
    measured_at DATETIME(6) NOT NULL
) ENGINE = InnoDB;

-- name: pressure_measured
-- When that was: without a row that is young, nobody sequences.
CREATE TABLE IF NOT EXISTS pressure_measured (
    singleton BOOLEAN NOT NULL PRIMARY KEY,
    measured_at DATETIME(6) NOT NULL
) ENGINE = InnoDB;

-- name: first_rows_of_pressure_measured
-- Not yet.
INSERT IGNORE INTO pressure_measured (singleton, measured_at) VALUES (TRUE, '2000-01-01');

-- name: staged_writes
-- Chunks of events that tasks have written and that no transaction has published yet: JSON arrays as publish_batch
-- takes them.
CREATE TABLE IF NOT EXISTS staged_writes (
    stage BINARY(16) NOT NULL,
    chunk INT NOT NULL,
    login VARCHAR(400) NOT NULL,
    staged_at DATETIME(6) NOT NULL,
    events LONGTEXT NOT NULL,
    PRIMARY KEY (stage, chunk),
    KEY staged_writes_age (staged_at)
) ENGINE = InnoDB;

-- name: claimed_writes
-- The versions that writers have published.
CREATE TABLE IF NOT EXISTS claimed_writes (
    -- The hash of login and name: another login that uses the same name neither meets it nor learns of it.
    writer_hash BINARY(32) NOT NULL,
    version BIGINT NOT NULL,
    login VARCHAR(400) NOT NULL,
    writer VARCHAR(500) NOT NULL,
    claimed_at DATETIME(6) NOT NULL,
    -- How many rows the version had, and a digest of them. NULL: it was claimed by a program that does not say it; then
    -- a repetition is not compared.
    events BIGINT,
    digest VARCHAR(100),
    PRIMARY KEY (writer_hash, version)
) ENGINE = InnoDB;

-- name: topic_schemas
-- The schemas of a topic's payloads by the type of event ('' stands for every type that has none of its own), in
-- versions: the newest one is in force. compatibility is what the next version has to keep.
CREATE TABLE IF NOT EXISTS topic_schemas (
    topic_id BIGINT NOT NULL,
    type VARCHAR(255) NOT NULL,
    version INT NOT NULL,
    kind VARCHAR(10) NOT NULL,
    definition LONGTEXT NOT NULL,
    compatibility VARCHAR(10) NOT NULL,
    set_at DATETIME(6) NOT NULL,
    set_by VARCHAR(400) NOT NULL,
    PRIMARY KEY (topic_id, type, version),
    CONSTRAINT topic_schemas_kind CHECK (kind IN ('json', 'avro')),
    CONSTRAINT topic_schemas_compatibility CHECK (compatibility IN ('none', 'backward', 'forward', 'full'))
) ENGINE = InnoDB;

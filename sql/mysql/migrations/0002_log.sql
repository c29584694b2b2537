-- name: create_histories
-- The lines of the log's history; each restore that lost commits opens the next one.
CREATE TABLE IF NOT EXISTS histories (
    history INT NOT NULL PRIMARY KEY,
    reason TEXT NOT NULL,
    opened_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6))
) ENGINE = InnoDB;

-- name: first_history
-- Every position belongs to a history, so the first one must exist.
INSERT IGNORE INTO histories (history, reason) VALUES (1, 'installed');

-- name: create_pending
-- A row for each block of at most 256 events that were published together and wait for their sequences. It gives them their
-- ids: block * 256 + place. taken is how many of them have their sequence already. The rows are few and narrow, because
-- they are deleted: what a held read view keeps of them is what the sequencer would have to step over.
CREATE TABLE IF NOT EXISTS pending (
    block BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    event_count SMALLINT NOT NULL,
    taken SMALLINT NOT NULL DEFAULT 0
) ENGINE = InnoDB;

-- name: create_events
-- Insert-only. id = block * 256 + place, cut into ranges, so that retention is DROP PARTITION and not DELETE. due_at is for
-- an event that is to come later; NULL is at once. headers is the text that was given: JSON would change its numbers.
CREATE TABLE IF NOT EXISTS events (
    id BIGINT NOT NULL PRIMARY KEY,
    partition_id BIGINT NOT NULL,
    event_id BINARY(16) NOT NULL,
    `key` VARCHAR(255),
    type VARCHAR(255) NOT NULL,
    content_type VARCHAR(255) NOT NULL,
    headers MEDIUMTEXT,
    payload LONGBLOB NOT NULL,
    created_at DATETIME(6) NOT NULL,
    due_at DATETIME(6)
) ENGINE = InnoDB
PARTITION BY RANGE (id) (
    PARTITION b1 VALUES LESS THAN (2560000),
    PARTITION b10000 VALUES LESS THAN (25600000),
    PARTITION b100000 VALUES LESS THAN (256000000),
    PARTITION b1000000 VALUES LESS THAN (2560000000)
);

-- name: create_chunks
-- The index of the log: sequences first_sequence .. first_sequence + event_count - 1 are event_ids, in order, eight bytes each.
-- The high watermark of a partition is the end of its last chunk: read, never stored.
CREATE TABLE IF NOT EXISTS chunks (
    partition_id BIGINT NOT NULL,
    first_sequence BIGINT NOT NULL,
    event_count INT NOT NULL,
    first_id BIGINT NOT NULL,
    last_id BIGINT NOT NULL,
    event_ids LONGBLOB NOT NULL,
    sequenced_at DATETIME(6) NOT NULL,
    PRIMARY KEY (partition_id, first_sequence),
    CONSTRAINT chunks_whole CHECK (LENGTH(event_ids) = 8 * event_count)
) ENGINE = InnoDB;

-- name: create_delayed_events
-- Events that were taken out of pending before they were due. (DELAYED is a reserved word.)
CREATE TABLE IF NOT EXISTS delayed_events (
    due DATETIME(6) NOT NULL,
    id BIGINT NOT NULL,
    partition_id BIGINT NOT NULL,
    PRIMARY KEY (due, id)
) ENGINE = InnoDB;

-- name: create_sequencer
-- One row, on which nobody has rights: whoever holds its lock is the sequencer. Everything up to settled_block was done but for
-- what comes late; up to (delayed_due, delayed_id) everything that was delayed is done.
CREATE TABLE IF NOT EXISTS sequencer (
    singleton BOOLEAN NOT NULL PRIMARY KEY,
    settled_block BIGINT NOT NULL DEFAULT 0,
    delayed_due DATETIME(6) NOT NULL DEFAULT '2000-01-01',
    delayed_id BIGINT NOT NULL DEFAULT 0,
    passed_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6))
) ENGINE = InnoDB;

-- name: fill_sequencer
-- The row to lock.
INSERT IGNORE INTO sequencer (singleton) VALUES (TRUE);

-- name: create_strict_locks
-- Rows to lock, buckets of keys: the lower half for publishers that want commit order, the upper one for those of a dedup key.
CREATE TABLE IF NOT EXISTS strict_locks (
    bucket INT NOT NULL PRIMARY KEY
) ENGINE = InnoDB;

-- name: fill_strict_locks
-- Buckets 0 to 32,767.
INSERT IGNORE INTO strict_locks (bucket) SELECT s.n FROM numbers AS s WHERE s.n < 32768;

-- name: create_dedup_keys
-- The keys by which publishers repeat an event without doubling it, for as long as the window is. They are found by key and
-- forgotten by age: unlike on PostgreSQL, what was deleted here costs nobody who looks for another key.
CREATE TABLE IF NOT EXISTS dedup_keys (
    topic_id BIGINT NOT NULL,
    dedup_key VARBINARY(1020) NOT NULL,
    event_id BINARY(16) NOT NULL,
    at DATETIME(6) NOT NULL,
    PRIMARY KEY (topic_id, dedup_key),
    KEY dedup_keys_at (at)
) ENGINE = InnoDB;

-- name: create_pressure
-- What waited for its sequence when it was measured last, for the topics that have a limit.
CREATE TABLE IF NOT EXISTS pressure (
    partition_id BIGINT NOT NULL PRIMARY KEY,
    events BIGINT NOT NULL,
    bytes BIGINT NOT NULL,
    measured_at DATETIME(6) NOT NULL
) ENGINE = InnoDB;

-- name: create_pressure_measured
-- When that was: without a row that is young, nobody sequences.
CREATE TABLE IF NOT EXISTS pressure_measured (
    singleton BOOLEAN NOT NULL PRIMARY KEY,
    measured_at DATETIME(6) NOT NULL
) ENGINE = InnoDB;

-- name: fill_pressure_measured
-- Not yet.
INSERT IGNORE INTO pressure_measured (singleton, measured_at) VALUES (TRUE, '2000-01-01');

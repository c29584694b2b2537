-- name: queues
-- The settings of a subscription in queue mode. Its row is the lock of the dealer and is hardly ever updated.
CREATE TABLE IF NOT EXISTS queues (
    subscription_id BIGINT NOT NULL PRIMARY KEY,
    visibility_seconds DOUBLE NOT NULL DEFAULT 30,
    max_deliveries INT NOT NULL DEFAULT 5,
    max_failures INT NOT NULL DEFAULT 5,
    max_in_flight INT NOT NULL DEFAULT 100000,
    first_backoff_seconds DOUBLE NOT NULL DEFAULT 2,
    longest_backoff_seconds DOUBLE NOT NULL DEFAULT 300,
    jitter DOUBLE NOT NULL DEFAULT 0.2,
    -- Whether it hands out one event of a key at a time, in order (key), or does not look at keys (none).
    `order` VARCHAR(10) NOT NULL DEFAULT 'none',
    -- Events that are older are thrown away unread; 0: none is.
    retention_seconds DOUBLE NOT NULL DEFAULT 0,
    CONSTRAINT queues_order CHECK (`order` IN ('none', 'key'))
) ENGINE = InnoDB;

-- name: queue_labels
-- What a program keeps about a queue that the queue does not know, an SQS door its attributes and tags for example.
CREATE TABLE IF NOT EXISTS queue_labels (
    subscription_id BIGINT NOT NULL PRIMARY KEY,
    labels MEDIUMTEXT NOT NULL,
    created_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    changed_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6))
) ENGINE = InnoDB;

-- name: queue_ranges
-- What a queue has dealt and not finished: ranges of sequences, each free (no token) or claimed. A claim that ended is
-- deleted, one that diverged is cut.
CREATE TABLE IF NOT EXISTS queue_ranges (
    subscription_id BIGINT NOT NULL,
    id BIGINT NOT NULL AUTO_INCREMENT,
    partition_id BIGINT NOT NULL,
    first_sequence BIGINT NOT NULL,
    last_sequence BIGINT NOT NULL,
    deliveries INT NOT NULL DEFAULT 0,
    token BINARY(16),
    deadline DATETIME(6),
    -- Its event, when it is one that came back out of the window.
    waiting_id BIGINT,
    -- The claim by whose receipts it can still be finished, with their token once it is free again.
    former BIGINT,
    former_token BINARY(16),
    PRIMARY KEY (subscription_id, id),
    KEY queue_ranges_id (id),
    KEY queue_ranges_former (former)
) ENGINE = InnoDB;

-- name: queue_turns
-- What the dealer of a queue found last. One row for each queue: here an old snapshot does not make an update slow for
-- others.
CREATE TABLE IF NOT EXISTS queue_turns (
    subscription_id BIGINT NOT NULL PRIMARY KEY,
    -- Below floor_id no range is there at all, below free_id none is free.
    floor_id BIGINT NOT NULL DEFAULT 1,
    free_id BIGINT NOT NULL DEFAULT 1,
    last_id BIGINT NOT NULL DEFAULT 0,
    range_size INT NOT NULL DEFAULT 1,
    -- When somebody has to look again.
    rest_until DATETIME(6) NOT NULL DEFAULT '2000-01-01'
) ENGINE = InnoDB;

-- name: queue_waiting
-- Events out of the window: they wait for a retry, or have a body of their own. Each is a whole copy, so that neither
-- retention nor the window waits for it.
CREATE TABLE IF NOT EXISTS queue_waiting (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    subscription_id BIGINT NOT NULL,
    partition_id BIGINT NOT NULL,
    sequence BIGINT NOT NULL,
    history INT NOT NULL,
    -- NULL: it is in the window again.
    due_at DATETIME(6),
    deliveries INT NOT NULL,
    -- How often it was handed out before it was redriven, where that goes on counting.
    deliveries_before INT NOT NULL DEFAULT 0,
    failures INT NOT NULL,
    reason TEXT NOT NULL,
    event_id BINARY(16) NOT NULL,
    `key` VARCHAR(255),
    type VARCHAR(255) NOT NULL,
    content_type VARCHAR(255) NOT NULL,
    headers MEDIUMTEXT,
    payload LONGBLOB NOT NULL,
    body LONGBLOB,
    created_at DATETIME(6) NOT NULL,
    sequenced_at DATETIME(6) NOT NULL,
    -- When an attempt has failed last; the reason says why.
    failed_at DATETIME(6),
    KEY queue_waiting_due (subscription_id, due_at),
    -- The events of a subscription, and of a partition that goes.
    KEY queue_waiting_place (subscription_id, partition_id, sequence),
    -- Those that are too old for their queue.
    KEY queue_waiting_age (subscription_id, sequenced_at)
) ENGINE = InnoDB;

-- name: queue_keys
-- The unfinished events with a key that a queue has dealt whose order is key.
CREATE TABLE IF NOT EXISTS queue_keys (
    subscription_id BIGINT NOT NULL,
    partition_id BIGINT NOT NULL,
    sequence BIGINT NOT NULL,
    -- The copy of the event; 0 while only the log has it.
    waiting_id BIGINT NOT NULL DEFAULT 0,
    -- Of the key no more than a digest is kept.
    key_digest BINARY(16) NOT NULL,
    -- first: the one of its key that can be handed out, is handed out or waits for a retry. behind: it waits for that
    -- one. unsure: as behind, but that one was just being finished, so the dealer looks again.
    state VARCHAR(10) NOT NULL,
    PRIMARY KEY (subscription_id, partition_id, sequence, waiting_id),
    KEY queue_keys_key (subscription_id, partition_id, key_digest, sequence),
    KEY queue_keys_state (subscription_id, state, partition_id, sequence),
    CONSTRAINT queue_keys_states CHECK (state IN ('first', 'behind', 'unsure'))
) ENGINE = InnoDB;

-- name: queue_purges
-- What was thrown away unread, by whom: no event is skipped without a row.
CREATE TABLE IF NOT EXISTS queue_purges (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    subscription_id BIGINT NOT NULL,
    partition_id BIGINT NOT NULL,
    first_sequence BIGINT NOT NULL,
    last_sequence BIGINT NOT NULL,
    purged_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    purged_by VARCHAR(400) NOT NULL,
    -- purge: somebody has asked for it. retention_seconds: they were older.
    reason VARCHAR(40) NOT NULL DEFAULT 'purge'
) ENGINE = InnoDB;

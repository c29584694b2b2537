-- name: create_blocks
-- What a relay is about to send, written down before it is sent: a successor sends the very same range again.
CREATE TABLE IF NOT EXISTS blocks (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    subscription_id BIGINT NOT NULL,
    partition_id BIGINT NOT NULL,
    first_sequence BIGINT NOT NULL,
    last_sequence BIGINT NOT NULL,
    lease_epoch BIGINT NOT NULL,
    opened_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    KEY blocks_newest (subscription_id, partition_id, id)
) ENGINE = InnoDB;

-- name: create_relay_failures
-- Every failed attempt of a block, so that nothing loops without being counted.
CREATE TABLE IF NOT EXISTS relay_failures (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    block_id BIGINT NOT NULL,
    attempt INT NOT NULL,
    error TEXT NOT NULL,
    failed_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    UNIQUE KEY relay_failures_attempt (block_id, attempt)
) ENGINE = InnoDB;

-- name: create_dead_letters
-- A copy of each event that was given up, with the reason; it outlives the event's retention.
CREATE TABLE IF NOT EXISTS dead_letters (
    subscription_id BIGINT NOT NULL,
    partition_id BIGINT NOT NULL,
    sequence BIGINT NOT NULL,
    history INT NOT NULL,
    event_id BINARY(16) NOT NULL,
    `key` VARCHAR(255),
    type VARCHAR(255) NOT NULL,
    content_type VARCHAR(255) NOT NULL,
    headers MEDIUMTEXT,
    payload LONGBLOB NOT NULL,
    created_at DATETIME(6) NOT NULL,
    reason TEXT NOT NULL,
    died_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    PRIMARY KEY (subscription_id, partition_id, sequence, history)
) ENGINE = InnoDB;

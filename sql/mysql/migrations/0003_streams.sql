-- name: create_subscriptions
-- The times are the subscription's own; the database's clock measures them.
CREATE TABLE IF NOT EXISTS subscriptions (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    name VARCHAR(500) NOT NULL,
    name_hash BINARY(32) GENERATED ALWAYS AS (UNHEX(SHA2(name, 256))) STORED,
    mode VARCHAR(20) NOT NULL DEFAULT 'stream',
    heartbeat_seconds DOUBLE NOT NULL DEFAULT 3,
    lease_seconds DOUBLE NOT NULL DEFAULT 10,
    release_seconds DOUBLE NOT NULL DEFAULT 10,
    max_consumers INT NOT NULL DEFAULT 1024,
    created_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    UNIQUE KEY subscriptions_name (name_hash),
    CONSTRAINT subscriptions_mode CHECK (mode IN ('stream')),
    CONSTRAINT subscriptions_times CHECK (heartbeat_seconds > 0 AND lease_seconds >= 3 * heartbeat_seconds)
) ENGINE = InnoDB;

-- name: create_subscription_topics
-- Which topics a subscription reads, and what keeps their events from retention.
CREATE TABLE IF NOT EXISTS subscription_topics (
    subscription_id BIGINT NOT NULL,
    topic_id BIGINT NOT NULL,
    created_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    PRIMARY KEY (subscription_id, topic_id),
    KEY subscription_topics_topic (topic_id)
) ENGINE = InnoDB;

-- name: create_consumers
-- One deadline for a consumer and all its leases: a heartbeat is one row.
CREATE TABLE IF NOT EXISTS consumers (
    subscription_id BIGINT NOT NULL,
    id VARCHAR(255) NOT NULL,
    session BINARY(16) NOT NULL,
    weight DOUBLE NOT NULL,
    joined_at DATETIME(6) NOT NULL,
    heartbeat_at DATETIME(6) NOT NULL,
    deadline DATETIME(6) NOT NULL,
    PRIMARY KEY (subscription_id, id),
    CONSTRAINT consumers_weight CHECK (weight BETWEEN 0.001 AND 1000)
) ENGINE = InnoDB;

-- name: create_leases
-- One row for each partition of a subscription. lease_epoch grows with every change of hands; it is the fence.
CREATE TABLE IF NOT EXISTS leases (
    subscription_id BIGINT NOT NULL,
    partition_id BIGINT NOT NULL,
    random_key DOUBLE NOT NULL DEFAULT (RAND()),
    state VARCHAR(20) NOT NULL DEFAULT 'AVAILABLE',
    holder VARCHAR(255),
    lease_epoch BIGINT NOT NULL DEFAULT 0,
    acquired_at DATETIME(6),
    release_deadline DATETIME(6),
    PRIMARY KEY (subscription_id, partition_id),
    CONSTRAINT leases_state CHECK (state IN ('AVAILABLE', 'ACTIVE', 'RELEASING')),
    CONSTRAINT leases_holder CHECK ((state = 'AVAILABLE') = (holder IS NULL))
) ENGINE = InnoDB;

-- name: create_lease_history
-- Who held what: the witness of take-overs, appended in the transaction that changes a lease.
CREATE TABLE IF NOT EXISTS lease_history (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    subscription_id BIGINT NOT NULL,
    partition_id BIGINT NOT NULL,
    lease_epoch BIGINT NOT NULL,
    holder VARCHAR(255) NOT NULL,
    `change` VARCHAR(20) NOT NULL,
    at DATETIME(6) NOT NULL,
    CONSTRAINT lease_history_change CHECK (`change` IN ('acquired', 'releasing', 'released', 'expired', 'seek'))
) ENGINE = InnoDB;

-- name: create_positions
-- The ledger of positions: appended, never updated. The position of a partition is its newest row; ids rise under the lock of
-- the lease row.
CREATE TABLE IF NOT EXISTS positions (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    subscription_id BIGINT NOT NULL,
    partition_id BIGINT NOT NULL,
    position BIGINT NOT NULL,
    lease_epoch BIGINT NOT NULL,
    reason VARCHAR(20) NOT NULL,
    at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    KEY positions_newest (subscription_id, partition_id, id),
    CONSTRAINT positions_reason CHECK (reason IN ('start', 'commit', 'seek', 'carried'))
) ENGINE = InnoDB;

-- name: create_rejected_commits
-- Counts commits that a fence refused by its AUTO_INCREMENT: rows would roll back with the refusal, the counter does not.
CREATE TABLE IF NOT EXISTS rejected_commits (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY
) ENGINE = InnoDB;

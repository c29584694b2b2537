-- name: consumers
-- One deadline for a consumer and all its leases: a heartbeat is one row.
CREATE TABLE IF NOT EXISTS consumers (
    subscription_id BIGINT NOT NULL,
    id VARCHAR(255) NOT NULL,
    session BINARY(16) NOT NULL,
    weight DOUBLE NOT NULL,
    joined_at DATETIME(6) NOT NULL,
    heartbeat_at DATETIME(6) NOT NULL,
    deadline DATETIME(6) NOT NULL,
    -- When it is to check in next, and whether another one's check-in has called it before its time.
    check_in_at DATETIME(6) NOT NULL DEFAULT '2000-01-01',
    called BOOLEAN NOT NULL DEFAULT FALSE,
    PRIMARY KEY (subscription_id, id),
    CONSTRAINT consumers_weight CHECK (weight BETWEEN 0.001 AND 1000)
) ENGINE = InnoDB;

-- name: consumer_topics
-- The topics to which a consumer has limited itself; none for all of its subscription. They go with the consumer.
CREATE TABLE IF NOT EXISTS consumer_topics (
    subscription_id BIGINT NOT NULL,
    consumer VARCHAR(255) NOT NULL,
    topic_id BIGINT NOT NULL,
    PRIMARY KEY (subscription_id, consumer, topic_id),
    CONSTRAINT consumer_topics_consumer FOREIGN KEY (subscription_id, consumer)
        REFERENCES consumers (subscription_id, id) ON DELETE CASCADE
) ENGINE = InnoDB;

-- name: consumer_errors
-- The last error that a consumer has reported; goes with the consumer.
CREATE TABLE IF NOT EXISTS consumer_errors (
    subscription_id BIGINT NOT NULL,
    consumer VARCHAR(255) NOT NULL,
    error TEXT NOT NULL,
    at DATETIME(6) NOT NULL,
    PRIMARY KEY (subscription_id, consumer),
    CONSTRAINT consumer_errors_consumer FOREIGN KEY (subscription_id, consumer)
        REFERENCES consumers (subscription_id, id) ON DELETE CASCADE
) ENGINE = InnoDB;

-- name: leases
-- One row for each partition of a subscription.
CREATE TABLE IF NOT EXISTS leases (
    subscription_id BIGINT NOT NULL,
    partition_id BIGINT NOT NULL,
    random_key DOUBLE NOT NULL DEFAULT (RAND()),
    state VARCHAR(20) NOT NULL DEFAULT 'AVAILABLE',
    holder VARCHAR(255),
    -- Grows with every change of hands; it is the fence.
    lease_epoch BIGINT NOT NULL DEFAULT 0,
    acquired_at DATETIME(6),
    release_deadline DATETIME(6),
    PRIMARY KEY (subscription_id, partition_id),
    CONSTRAINT leases_state CHECK (state IN ('AVAILABLE', 'ACTIVE', 'RELEASING')),
    CONSTRAINT leases_holder CHECK ((state = 'AVAILABLE') = (holder IS NULL))
) ENGINE = InnoDB;

-- name: lease_history
-- Who held what: the witness of take-overs, appended in the transaction that changes a lease. Its ids rise with time,
-- so that old slices can go.
CREATE TABLE IF NOT EXISTS lease_history (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    subscription_id BIGINT NOT NULL,
    partition_id BIGINT NOT NULL,
    lease_epoch BIGINT NOT NULL,
    holder VARCHAR(255) NOT NULL,
    -- history: a new history takes leases from their holders.
    `change` VARCHAR(20) NOT NULL,
    at DATETIME(6) NOT NULL,
    -- Whether the holder before has died.
    KEY lease_history_partition (subscription_id, partition_id, lease_epoch),
    -- Statistics ask for the last hour of one subscription.
    KEY lease_history_time (subscription_id, at),
    CONSTRAINT lease_history_change
        CHECK (`change` IN ('acquired', 'releasing', 'released', 'expired', 'seek', 'history'))
) ENGINE = InnoDB
PARTITION BY RANGE (id) (
    PARTITION s1 VALUES LESS THAN (100000),
    PARTITION s100000 VALUES LESS THAN (500000),
    PARTITION s500000 VALUES LESS THAN (2500000)
);

-- name: surveys
-- When somebody last looked which partitions of a subscription are active, and what he found.
CREATE TABLE IF NOT EXISTS surveys (
    subscription_id BIGINT NOT NULL PRIMARY KEY,
    made_at DATETIME(6) NOT NULL,
    -- How many seconds lie between two check-ins of one consumer if all of them together are to keep to target_qps.
    pace_seconds DOUBLE NOT NULL,
    -- Until when the turns of those who were called are given out.
    called_until DATETIME(6) NOT NULL DEFAULT '2000-01-01',
    -- Everybody had his share, so that nothing had to move.
    balanced BOOLEAN NOT NULL DEFAULT FALSE,
    -- How many of the partitions that somebody is short of are not free, less what was asked back since the last
    -- survey.
    uncovered BIGINT NOT NULL DEFAULT 0
) ENGINE = InnoDB;

-- name: active_partitions
-- What a survey has found. A row comes and goes with the activity of a partition, not with its events.
CREATE TABLE IF NOT EXISTS active_partitions (
    subscription_id BIGINT NOT NULL,
    partition_id BIGINT NOT NULL,
    PRIMARY KEY (subscription_id, partition_id)
) ENGINE = InnoDB;

-- name: shares
-- The quotas of those who held too little, too much or something cold at the last survey, for the check-ins until the
-- next one.
CREATE TABLE IF NOT EXISTS shares (
    subscription_id BIGINT NOT NULL,
    consumer VARCHAR(255) NOT NULL,
    quota BIGINT NOT NULL,
    PRIMARY KEY (subscription_id, consumer)
) ENGINE = InnoDB;

-- name: leaders
-- Who leads the consumers of a subscription that share partitions by decision, and what he has decided.
CREATE TABLE IF NOT EXISTS leaders (
    subscription_id BIGINT NOT NULL PRIMARY KEY,
    -- His fence.
    term BIGINT NOT NULL,
    session BINARY(16) NOT NULL,
    decided_in BIGINT NOT NULL DEFAULT 0,
    holders LONGTEXT NOT NULL
) ENGINE = InnoDB;

-- name: archive_readers
-- Who reads the archive below the low sequence: retention does not wait for it there. Good for one lease_epoch.
CREATE TABLE IF NOT EXISTS archive_readers (
    subscription_id BIGINT NOT NULL,
    partition_id BIGINT NOT NULL,
    lease_epoch BIGINT NOT NULL,
    noted_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    PRIMARY KEY (subscription_id, partition_id)
) ENGINE = InnoDB;

-- name: blocks
-- What a relay is about to send, written down before it is sent: a successor sends the very same range again. Only the
-- newest block of a partition can be open, so old slices can go.
CREATE TABLE IF NOT EXISTS blocks (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    subscription_id BIGINT NOT NULL,
    partition_id BIGINT NOT NULL,
    first_sequence BIGINT NOT NULL,
    last_sequence BIGINT NOT NULL,
    lease_epoch BIGINT NOT NULL,
    opened_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    -- The topic's address then: a block that is sent again has to be the very same, also when its topic was given
    -- another address meanwhile.
    topic VARCHAR(4000),
    KEY blocks_newest (subscription_id, partition_id, id)
) ENGINE = InnoDB
PARTITION BY RANGE (id) (
    PARTITION s1 VALUES LESS THAN (100000),
    PARTITION s100000 VALUES LESS THAN (500000),
    PARTITION s500000 VALUES LESS THAN (2500000)
);

-- name: relay_failures
-- Every failed attempt of a block, so that nothing loops without being counted. Only those of an open block matter;
-- they are cut by the ids of blocks.
CREATE TABLE IF NOT EXISTS relay_failures (
    block_id BIGINT NOT NULL,
    attempt INT NOT NULL,
    error TEXT NOT NULL,
    failed_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    PRIMARY KEY (block_id, attempt)
) ENGINE = InnoDB
PARTITION BY RANGE (block_id) (
    PARTITION s1 VALUES LESS THAN (100000),
    PARTITION s100000 VALUES LESS THAN (500000),
    PARTITION s500000 VALUES LESS THAN (2500000)
);

-- name: relay_files
-- Which policy file's relays the database follows. What a file sets has its origin; a relay of it is a subscription,
-- which has none.
CREATE TABLE IF NOT EXISTS relay_files (
    singleton BOOLEAN NOT NULL PRIMARY KEY,
    origin VARCHAR(505) NOT NULL,
    claimed_at DATETIME(6) NOT NULL,
    claimed_by VARCHAR(400) NOT NULL
) ENGINE = InnoDB;

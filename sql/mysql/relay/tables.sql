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

-- name: left_out
-- What a sink does not have because a person has left it out (subscribe, seek), as its relay has found it. A sink that
-- gets again what it has lost does not get these.
CREATE TABLE IF NOT EXISTS left_out (
    subscription_id BIGINT NOT NULL,
    partition_id BIGINT NOT NULL,
    first_sequence BIGINT NOT NULL,
    last_sequence BIGINT NOT NULL,
    at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    PRIMARY KEY (subscription_id, partition_id, first_sequence)
) ENGINE = InnoDB;

-- name: relay_files
-- Which policy file's relays the database follows. What a file sets has its origin; a relay of it is a subscription,
-- which has none.
CREATE TABLE IF NOT EXISTS relay_files (
    singleton BOOLEAN NOT NULL PRIMARY KEY,
    origin VARCHAR(505) NOT NULL,
    claimed_at DATETIME(6) NOT NULL,
    claimed_by VARCHAR(400) NOT NULL
) ENGINE = InnoDB;

-- name: relay_arrivals
-- How far the relays of other databases, or of this one, have brought a partition of theirs into a topic. It moves in
-- the transaction that publishes the events. It goes with the topic.
CREATE TABLE IF NOT EXISTS relay_arrivals (
    topic_id BIGINT NOT NULL,
    -- Of installation, relay, known_as and partition: they are too long for a key.
    source_hash BINARY(32) NOT NULL,
    installation VARCHAR(36) NOT NULL,
    relay VARCHAR(255) NOT NULL,
    known_as VARCHAR(4100) NOT NULL,
    `partition` INT NOT NULL,
    history INT NOT NULL DEFAULT 0,
    sequence BIGINT NOT NULL DEFAULT 0,
    -- The event of that sequence; NULL when it was given up.
    event_id VARCHAR(36),
    moved_at DATETIME(6) NOT NULL,
    PRIMARY KEY (topic_id, source_hash)
) ENGINE = InnoDB;

-- name: relay_places
-- What a relay with rules has left out, and up to where each place of its sink was sent events: such a place lacks
-- events without having lost them. The place '' stands for all that are no part of a partition. position is where the
-- relay stood then. It moves in the transaction that moves the position.
CREATE TABLE IF NOT EXISTS relay_places (
    subscription_id BIGINT NOT NULL,
    partition_id BIGINT NOT NULL,
    place VARCHAR(500) NOT NULL,
    last_sequence BIGINT NOT NULL,
    position BIGINT NOT NULL,
    left_out BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (subscription_id, partition_id, place)
) ENGINE = InnoDB;

-- name: relay_breakers
-- Whether a process of a relay leaves its sink alone for a while, because it does not take anything. Those of a queue's
-- relay are no consumers of it: they share a row, whose consumer is ''.
CREATE TABLE IF NOT EXISTS relay_breakers (
    subscription_id BIGINT NOT NULL,
    consumer VARCHAR(255) NOT NULL,
    state VARCHAR(10) NOT NULL,
    error TEXT NOT NULL,
    changed_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    since DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    PRIMARY KEY (subscription_id, consumer),
    CONSTRAINT relay_breakers_state CHECK (state IN ('open', 'half-open'))
) ENGINE = InnoDB;

-- name: relay_groups
-- A relay with several sinks. Each sink is a subscription of its own, named RELAY.SINK. The relay stands, in each
-- partition, where at least ack_quorum of them have passed.
CREATE TABLE IF NOT EXISTS relay_groups (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    name VARCHAR(500) NOT NULL,
    name_hash BINARY(32) GENERATED ALWAYS AS (UNHEX(SHA2(name, 256))) STORED,
    ack_quorum INT NOT NULL,
    -- Whether retention waits for all sinks, or goes by the relay: then late ones read the archive.
    retain_for VARCHAR(10) NOT NULL DEFAULT 'all',
    created_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    UNIQUE KEY relay_groups_name (name_hash),
    CONSTRAINT relay_groups_quorum CHECK (ack_quorum > 0),
    CONSTRAINT relay_groups_retain_for CHECK (retain_for IN ('all', 'quorum'))
) ENGINE = InnoDB;

-- name: relay_members
-- The sinks of a relay with several.
CREATE TABLE IF NOT EXISTS relay_members (
    subscription_id BIGINT NOT NULL PRIMARY KEY,
    group_id BIGINT NOT NULL,
    sink VARCHAR(63) NOT NULL,
    UNIQUE KEY relay_members_sink (group_id, sink)
) ENGINE = InnoDB;

-- name: relay_marks
-- What of a partition a sink of a relay with several has passed: everything after started and up to its position, or up
-- to passed, where it stood before a person moved it back. What it never got does not count, so a sink that begins in
-- the middle counts from there on.
CREATE TABLE IF NOT EXISTS relay_marks (
    subscription_id BIGINT NOT NULL,
    partition_id BIGINT NOT NULL,
    started BIGINT NOT NULL,
    passed BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (subscription_id, partition_id)
) ENGINE = InnoDB;

-- name: relay_floors
-- Where a relay with several sinks stood when its sinks or its quorum were changed. It never stands before that.
CREATE TABLE IF NOT EXISTS relay_floors (
    group_id BIGINT NOT NULL,
    partition_id BIGINT NOT NULL,
    position BIGINT NOT NULL,
    PRIMARY KEY (partition_id, group_id)
) ENGINE = InnoDB;

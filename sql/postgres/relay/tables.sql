-- name: blocks
-- What a relay is about to send, written down before it is sent: a successor sends the very same range again. Only the
-- newest block of a partition can be open, so old slices can go.
CREATE SEQUENCE blocks_id CACHE 1;
CREATE TABLE blocks (
    id bigint NOT NULL DEFAULT nextval('blocks_id'),
    subscription_id bigint NOT NULL,
    partition_id bigint NOT NULL,
    first_sequence bigint NOT NULL,
    last_sequence bigint NOT NULL,
    lease_epoch bigint NOT NULL,
    opened_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The topic's address then: a block that is sent again has to be the very same, also when its topic was given
    -- another address meanwhile.
    topic text COLLATE "C",
    PRIMARY KEY (id)
) PARTITION BY RANGE (id);
-- Finds the newest block of a partition.
CREATE INDEX ON blocks (subscription_id, partition_id, id);

-- name: relay_failures
-- Every failed attempt of a block, so that nothing loops without being counted. Only those of an open block matter;
-- they are cut by the ids of blocks.
CREATE TABLE relay_failures (
    block_id bigint NOT NULL,
    attempt integer NOT NULL,
    error text NOT NULL,
    failed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (block_id, attempt)
) PARTITION BY RANGE (block_id);

-- name: left_out
-- What a sink does not have because a person has left it out (subscribe, seek), as its relay has found it. A sink that
-- gets again what it has lost does not get these.
CREATE TABLE left_out (
    subscription_id bigint NOT NULL,
    partition_id bigint NOT NULL,
    first_sequence bigint NOT NULL,
    last_sequence bigint NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (subscription_id, partition_id, first_sequence)
);

-- name: relay_files
-- Which policy file's relays the database follows. What a file sets has its origin; a relay of it is a subscription,
-- which has none.
CREATE TABLE relay_files (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    origin text NOT NULL,
    claimed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    claimed_by text NOT NULL
);

-- name: relay_arrivals
-- How far the relays of other databases, or of this one, have brought a partition of theirs into a topic. It moves in
-- the statement that publishes the events. It goes with the topic.
CREATE TABLE relay_arrivals (
    topic_id bigint NOT NULL,
    installation text COLLATE "C" NOT NULL,
    relay text COLLATE "C" NOT NULL,
    known_as text COLLATE "C" NOT NULL,
    partition integer NOT NULL,
    history integer NOT NULL DEFAULT 0,
    sequence bigint NOT NULL DEFAULT 0,
    -- The event of that sequence; NULL when it was given up.
    event_id uuid,
    moved_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (topic_id, installation, relay, known_as, partition)
) WITH (fillfactor = 50);

-- name: relay_places
-- What a relay with rules has left out, and up to where each place of its sink was sent events: such a place lacks
-- events without having lost them. The place '' stands for all that are no part of a partition. position is where the
-- relay stood then. It moves in the transaction that moves the position.
CREATE TABLE relay_places (
    subscription_id bigint NOT NULL,
    partition_id bigint NOT NULL,
    place text COLLATE "C" NOT NULL,
    last_sequence bigint NOT NULL,
    position bigint NOT NULL,
    left_out bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (subscription_id, partition_id, place)
) WITH (fillfactor = 50);

-- name: relay_breakers
-- Whether a process of a relay leaves its sink alone for a while, because it does not take anything. Those of a queue's
-- relay are no consumers of it: they share a row, whose consumer is ''.
CREATE TABLE relay_breakers (
    subscription_id bigint NOT NULL,
    consumer text COLLATE "C" NOT NULL,
    state text NOT NULL CHECK (state IN ('open', 'half-open')),
    error text NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    since timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (subscription_id, consumer)
);

-- name: relay_groups
-- A relay with several sinks. Each sink is a subscription of its own, named RELAY.SINK. The relay stands, in each
-- partition, where at least ack_quorum of them have passed.
CREATE TABLE relay_groups (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE,
    ack_quorum integer NOT NULL CHECK (ack_quorum > 0),
    -- Whether retention waits for all sinks, or goes by the relay: then late ones read the archive.
    retain_for text NOT NULL DEFAULT 'all' CHECK (retain_for IN ('all', 'quorum')),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- name: relay_members
-- The sinks of a relay with several.
CREATE TABLE relay_members (
    subscription_id bigint PRIMARY KEY,
    group_id bigint NOT NULL,
    sink text COLLATE "C" NOT NULL,
    UNIQUE (group_id, sink)
);

-- name: relay_marks
-- What of a partition a sink of a relay with several has passed: everything after started and up to its position, or up
-- to passed, where it stood before a person moved it back. What it never got does not count, so a sink that begins in
-- the middle counts from there on.
CREATE TABLE relay_marks (
    subscription_id bigint NOT NULL,
    partition_id bigint NOT NULL,
    started bigint NOT NULL,
    passed bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (subscription_id, partition_id)
);

-- name: relay_floors
-- Where a relay with several sinks stood when its sinks or its quorum were changed. It never stands before that.
CREATE TABLE relay_floors (
    group_id bigint NOT NULL,
    partition_id bigint NOT NULL,
    position bigint NOT NULL,
    PRIMARY KEY (partition_id, group_id)
);

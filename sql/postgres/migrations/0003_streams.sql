-- name: create_subscriptions
-- The times are the subscription's own; the database's clock measures them.
CREATE TABLE subscriptions (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE,
    mode text NOT NULL DEFAULT 'stream' CHECK (mode IN ('stream')),
    heartbeat_seconds double precision NOT NULL DEFAULT 3,
    lease_seconds double precision NOT NULL DEFAULT 10,
    release_seconds double precision NOT NULL DEFAULT 10,
    max_consumers integer NOT NULL DEFAULT 1024,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT subscriptions_times CHECK (heartbeat_seconds > 0 AND lease_seconds >= 3 * heartbeat_seconds)
);

-- name: create_subscription_topics
-- Which topics a subscription reads, and what keeps their events from retention.
CREATE TABLE subscription_topics (
    subscription_id bigint NOT NULL,
    topic_id bigint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (subscription_id, topic_id)
);

-- name: index_subscription_topics_topic
-- Retention asks for the subscriptions of a topic.
CREATE INDEX subscription_topics_topic ON subscription_topics (topic_id);

-- name: create_consumers
-- One deadline for a consumer and all its leases: a heartbeat is one row.
CREATE TABLE consumers (
    subscription_id bigint NOT NULL,
    id text COLLATE "C" NOT NULL,
    session uuid NOT NULL,
    weight double precision NOT NULL CHECK (weight BETWEEN 0.001 AND 1000),
    joined_at timestamptz NOT NULL,
    heartbeat_at timestamptz NOT NULL,
    deadline timestamptz NOT NULL,
    PRIMARY KEY (subscription_id, id)
) WITH (fillfactor = 50);

-- name: create_leases
-- One row for each partition of a subscription. lease_epoch grows with every change of hands; it is the fence.
CREATE TABLE leases (
    subscription_id bigint NOT NULL,
    partition_id bigint NOT NULL,
    random_key double precision NOT NULL DEFAULT random(),
    state text NOT NULL DEFAULT 'AVAILABLE' CHECK (state IN ('AVAILABLE', 'ACTIVE', 'RELEASING')),
    holder text COLLATE "C",
    lease_epoch bigint NOT NULL DEFAULT 0,
    acquired_at timestamptz,
    release_deadline timestamptz,
    PRIMARY KEY (subscription_id, partition_id),
    CONSTRAINT leases_holder CHECK ((state = 'AVAILABLE') = (holder IS NULL))
) WITH (fillfactor = 50);

-- name: create_lease_history
-- Who held what: the witness of take-overs, appended in the transaction that changes a lease.
CREATE TABLE lease_history (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    subscription_id bigint NOT NULL,
    partition_id bigint NOT NULL,
    lease_epoch bigint NOT NULL,
    holder text COLLATE "C" NOT NULL,
    change text NOT NULL CHECK (change IN ('acquired', 'releasing', 'released', 'expired', 'seek')),
    at timestamptz NOT NULL
);

-- name: create_positions_id
-- Rises under the lock of the lease row, so the newest id is the newest position.
CREATE SEQUENCE positions_id CACHE 1;

-- name: create_positions
-- The ledger of positions: appended, never updated, cut by id. The position of a partition is its newest row.
CREATE TABLE positions (
    id bigint NOT NULL DEFAULT nextval('positions_id'),
    subscription_id bigint NOT NULL,
    partition_id bigint NOT NULL,
    position bigint NOT NULL,
    lease_epoch bigint NOT NULL,
    reason text NOT NULL CHECK (reason IN ('start', 'commit', 'seek', 'carried')),
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (id)
) PARTITION BY RANGE (id);

-- name: index_positions_newest
-- Finds the newest row of one partition from its end.
CREATE INDEX positions_newest ON positions (subscription_id, partition_id, id);

-- name: create_rejected_commits
-- Counts commits that a fence refused. A sequence, because a count in a table would roll back with the refusal.
CREATE SEQUENCE rejected_commits MINVALUE 0 START 0 CACHE 1;

-- name: consumers
-- One deadline for a consumer and all its leases: a heartbeat is one row. join refuses a bad weight, and nobody else
-- writes one: as a constraint it would be read anew for each heartbeat.
CREATE TABLE consumers (
    subscription_id bigint NOT NULL,
    id text COLLATE "C" NOT NULL,
    session uuid NOT NULL,
    weight double precision NOT NULL,
    joined_at timestamptz NOT NULL,
    heartbeat_at timestamptz NOT NULL,
    deadline timestamptz NOT NULL,
    -- When it is to check in next, and whether another one's check-in has called it before its time.
    check_in_at timestamptz NOT NULL DEFAULT '-infinity',
    called boolean NOT NULL DEFAULT false,
    PRIMARY KEY (subscription_id, id)
) WITH (fillfactor = 50);

-- name: consumer_topics
-- The topics to which a consumer has limited itself; none for all of its subscription. They go with the consumer.
CREATE TABLE consumer_topics (
    subscription_id bigint NOT NULL,
    consumer text COLLATE "C" NOT NULL,
    topic_id bigint NOT NULL,
    PRIMARY KEY (subscription_id, consumer, topic_id),
    FOREIGN KEY (subscription_id, consumer) REFERENCES consumers (subscription_id, id) ON DELETE CASCADE
);

-- name: consumer_errors
-- The last error that a consumer has reported; goes with the consumer.
CREATE TABLE consumer_errors (
    subscription_id bigint NOT NULL,
    consumer text COLLATE "C" NOT NULL,
    error text NOT NULL,
    at timestamptz NOT NULL,
    PRIMARY KEY (subscription_id, consumer),
    FOREIGN KEY (subscription_id, consumer) REFERENCES consumers (subscription_id, id) ON DELETE CASCADE
);

-- name: leases
-- One row for each partition of a subscription.
CREATE TABLE leases (
    subscription_id bigint NOT NULL,
    partition_id bigint NOT NULL,
    random_key double precision NOT NULL DEFAULT random(),
    state text NOT NULL DEFAULT 'AVAILABLE' CHECK (state IN ('AVAILABLE', 'ACTIVE', 'RELEASING')),
    holder text COLLATE "C",
    -- Grows with every change of hands; it is the fence.
    lease_epoch bigint NOT NULL DEFAULT 0,
    acquired_at timestamptz,
    release_deadline timestamptz,
    PRIMARY KEY (subscription_id, partition_id),
    CONSTRAINT leases_holder CHECK ((state = 'AVAILABLE') = (holder IS NULL))
) WITH (fillfactor = 50);
-- Each check-in asks for leases that were to be released and are overdue.
CREATE INDEX leases_releasing ON leases (subscription_id, release_deadline) WHERE state = 'RELEASING';

-- name: lease_history
-- Who held what: the witness of take-overs, appended in the transaction that changes a lease. Its ids rise with time,
-- so that old slices can go.
CREATE SEQUENCE lease_history_id CACHE 1;
CREATE TABLE lease_history (
    id bigint NOT NULL DEFAULT nextval('lease_history_id'),
    subscription_id bigint NOT NULL,
    partition_id bigint NOT NULL,
    lease_epoch bigint NOT NULL,
    holder text COLLATE "C" NOT NULL,
    -- history: a new history takes leases from their holders.
    change text NOT NULL CHECK (change IN ('acquired', 'releasing', 'released', 'expired', 'seek', 'history')),
    at timestamptz NOT NULL,
    PRIMARY KEY (id)
) PARTITION BY RANGE (id);
-- Whether the holder before has died.
CREATE INDEX lease_history_partition ON lease_history (subscription_id, partition_id, lease_epoch);
-- Statistics ask for the last hour of one subscription.
CREATE INDEX lease_history_time ON lease_history (subscription_id, at);

-- name: surveys
-- When somebody last looked which partitions of a subscription are active, and what he found.
CREATE TABLE surveys (
    subscription_id bigint PRIMARY KEY,
    made_at timestamptz NOT NULL,
    -- How many seconds lie between two check-ins of one consumer if all of them together are to keep to target_qps.
    pace_seconds double precision NOT NULL,
    -- Until when the turns of those who were called are given out.
    called_until timestamptz NOT NULL DEFAULT '-infinity',
    -- Everybody had his share, so that nothing had to move.
    balanced boolean NOT NULL DEFAULT false,
    -- How many of the partitions that somebody is short of are not free, less what was asked back since the last
    -- survey.
    uncovered bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

-- name: active_partitions
-- What a survey has found. A row comes and goes with the activity of a partition, not with its events.
CREATE TABLE active_partitions (
    subscription_id bigint NOT NULL,
    partition_id bigint NOT NULL,
    PRIMARY KEY (subscription_id, partition_id)
);

-- name: shares
-- The quotas of those who held too little, too much or something cold at the last survey, for the check-ins until the
-- next one.
CREATE TABLE shares (
    subscription_id bigint NOT NULL,
    consumer text COLLATE "C" NOT NULL,
    quota bigint NOT NULL,
    PRIMARY KEY (subscription_id, consumer)
) WITH (fillfactor = 50);

-- name: leaders
-- Who leads the consumers of a subscription that share partitions by decision, and what he has decided.
CREATE TABLE leaders (
    subscription_id bigint PRIMARY KEY,
    -- His fence.
    term bigint NOT NULL,
    session uuid NOT NULL,
    decided_in bigint NOT NULL DEFAULT 0,
    holders text NOT NULL DEFAULT '{}'
);

-- name: archive_readers
-- Who reads the archive below the low sequence: retention does not wait for it there. Good for one lease_epoch.
CREATE TABLE archive_readers (
    subscription_id bigint NOT NULL,
    partition_id bigint NOT NULL,
    lease_epoch bigint NOT NULL,
    noted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (subscription_id, partition_id)
);

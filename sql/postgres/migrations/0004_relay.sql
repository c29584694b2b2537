-- name: create_blocks
-- What a relay is about to send, written down before it is sent: a successor sends the very same range again.
CREATE TABLE blocks (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    subscription_id bigint NOT NULL,
    partition_id bigint NOT NULL,
    first_sequence bigint NOT NULL,
    last_sequence bigint NOT NULL,
    lease_epoch bigint NOT NULL,
    opened_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- name: index_blocks_newest
-- The newest block of a partition is the only one that can be open.
CREATE INDEX blocks_newest ON blocks (subscription_id, partition_id, id);

-- name: create_relay_failures
-- Every failed attempt of a block, so that nothing loops without being counted.
CREATE TABLE relay_failures (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    block_id bigint NOT NULL,
    attempt integer NOT NULL,
    error text NOT NULL,
    failed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT relay_failures_attempt UNIQUE (block_id, attempt)
);

-- name: create_dead_letters
-- A copy of each event that was given up, with the reason; it outlives the event's retention.
CREATE TABLE dead_letters (
    subscription_id bigint NOT NULL,
    partition_id bigint NOT NULL,
    sequence bigint NOT NULL,
    history integer NOT NULL,
    event_id uuid NOT NULL,
    key text,
    type text NOT NULL,
    content_type text NOT NULL,
    headers jsonb,
    payload bytea NOT NULL,
    created_at timestamptz NOT NULL,
    reason text NOT NULL,
    died_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (subscription_id, partition_id, sequence, history)
);

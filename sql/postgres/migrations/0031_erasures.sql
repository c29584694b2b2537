-- name: create_erasures
-- Who had which events erased, when and why. It has no payload and no key: digest is SHA-256 of the erasure's id and
-- the key, by which the same command finds its own work again. A row stays: it is the record.
CREATE TABLE erasures (
    erasure uuid PRIMARY KEY,
    topic_id bigint NOT NULL,
    event_id uuid,
    digest text,
    replace_key boolean NOT NULL,
    reason text NOT NULL,
    requested_by text NOT NULL,
    requested_at timestamptz NOT NULL,
    finished_at timestamptz,
    events bigint NOT NULL DEFAULT 0,
    letters bigint NOT NULL DEFAULT 0,
    CONSTRAINT erasures_kind CHECK ((event_id IS NULL) <> (digest IS NULL))
);

-- name: index_erasures
-- The record of a topic, and what is not finished.
CREATE INDEX erasures_topic ON erasures (topic_id, requested_at);

-- name: create_erased_events
-- The places of the events that were erased.
CREATE TABLE erased_events (
    partition_id bigint NOT NULL,
    sequence bigint NOT NULL,
    erasure uuid NOT NULL,
    PRIMARY KEY (partition_id, sequence)
);

-- name: create_reissued_seals
-- The checksums that log epochs had before events of them were erased. A copy that has one of these has old bytes.
CREATE TABLE reissued_seals (
    partition_id bigint NOT NULL,
    log_epoch integer NOT NULL,
    old_checksum text NOT NULL,
    checksum text NOT NULL,
    erasure uuid NOT NULL,
    reissued_by text NOT NULL,
    reissued_at timestamptz NOT NULL,
    PRIMARY KEY (partition_id, log_epoch, old_checksum)
);

-- name: create_log_epochs
-- Sealed ranges of a partition: the unit of archive and retention. A row never changes but for dropped_at.
CREATE TABLE log_epochs (
    partition_id bigint NOT NULL,
    log_epoch integer NOT NULL,
    first_sequence bigint NOT NULL,
    last_sequence bigint NOT NULL,
    event_count bigint NOT NULL,
    checksum text NOT NULL,
    sealed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    dropped_at timestamptz,
    PRIMARY KEY (partition_id, log_epoch),
    CONSTRAINT log_epochs_first UNIQUE (partition_id, first_sequence),
    CONSTRAINT log_epochs_count CHECK (event_count = last_sequence - first_sequence + 1)
);

-- name: create_epoch_copies
-- Where a sealed epoch has been written to, verified against its seal.
CREATE TABLE epoch_copies (
    partition_id bigint NOT NULL,
    log_epoch integer NOT NULL,
    target text COLLATE "C" NOT NULL,
    location text NOT NULL,
    state text NOT NULL CHECK (state IN ('verified', 'missing')),
    detail text NOT NULL DEFAULT '',
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (partition_id, log_epoch, target)
);

-- name: create_retention_drops
-- What was dropped and why it was safe: the lowest position and the copies at that moment.
CREATE TABLE retention_drops (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    partition_id bigint NOT NULL,
    log_epoch integer NOT NULL,
    first_sequence bigint NOT NULL,
    last_sequence bigint NOT NULL,
    lowest_position bigint,
    copies integer NOT NULL,
    policy_version integer NOT NULL,
    dropped_by text NOT NULL DEFAULT session_user,
    dropped_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

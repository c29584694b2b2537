-- name: log_epochs
-- Sealed ranges of a partition: the unit of archive and retention. A row never changes but for dropped_at, and for its
-- checksum after an erasure.
CREATE TABLE log_epochs (
    partition_id bigint NOT NULL,
    log_epoch integer NOT NULL,
    first_sequence bigint NOT NULL,
    last_sequence bigint NOT NULL,
    event_count bigint NOT NULL,
    checksum text NOT NULL,
    sealed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    dropped_at timestamptz,
    -- No event of this log epoch, or of one before it, was sequenced after this time.
    sequenced_until timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- What its events say, in bytes. NULL: not counted since an erasure; the next run of clean that needs it counts it.
    event_bytes bigint,
    PRIMARY KEY (partition_id, log_epoch),
    CONSTRAINT log_epochs_first UNIQUE (partition_id, first_sequence),
    CONSTRAINT log_epochs_count CHECK (event_count = last_sequence - first_sequence + 1)
);
-- What retention looks at, so that its cost does not grow with all that was ever dropped.
CREATE INDEX log_epochs_kept ON log_epochs (partition_id, log_epoch) WHERE dropped_at IS NULL;
-- The log epochs of a day, which lie together in the archive.
CREATE INDEX log_epochs_sealed ON log_epochs (partition_id, sealed_at);
-- Who follows the log epochs of all topics finds the newest without looking at the others.
CREATE INDEX log_epochs_time ON log_epochs (sealed_at);
-- In which log epoch a time is.
CREATE INDEX log_epochs_sequenced ON log_epochs (partition_id, sequenced_until, log_epoch);

-- name: epoch_copies
-- Where a sealed log epoch has been written to, verified against its seal.
CREATE TABLE epoch_copies (
    partition_id bigint NOT NULL,
    log_epoch integer NOT NULL,
    target text COLLATE "C" NOT NULL,
    location text NOT NULL,
    state text NOT NULL CHECK (state IN ('verified', 'missing')),
    detail text NOT NULL DEFAULT '',
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- In layout 1 a copy is a folder of its own, in layout 2 it lies from first_row on in a file of the day of sealing.
    layout smallint NOT NULL DEFAULT 1,
    first_row bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (partition_id, log_epoch, target)
);
-- Who follows the copies of all topics finds what was recorded or lost last, and the few that are missing.
CREATE INDEX epoch_copies_changed ON epoch_copies (changed_at);
CREATE INDEX epoch_copies_missing ON epoch_copies (changed_at) WHERE state = 'missing';

-- name: suspected_copies
-- Copies that a reader has found damaged. They count until somebody who may operate the topic has read them back: what
-- a reader cannot read may be its own mount.
CREATE TABLE suspected_copies (
    partition_id bigint NOT NULL,
    log_epoch integer NOT NULL,
    target text COLLATE "C" NOT NULL,
    reason text NOT NULL,
    suspected_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (partition_id, log_epoch, target)
);

-- name: target_speeds
-- How long a copy takes on each archive target: what all runs have measured, as a moving average. failures counts those
-- in a row.
CREATE TABLE target_speeds (
    target text COLLATE "C" PRIMARY KEY,
    seconds double precision NOT NULL,
    failures integer NOT NULL,
    measured_at timestamptz NOT NULL
);

-- name: installation
-- What the marker of an archive target says: whose it is. Chosen once; it goes with the database's backups.
CREATE TABLE installation (
    singleton boolean NOT NULL PRIMARY KEY DEFAULT true CHECK (singleton),
    id uuid NOT NULL
);

-- name: first_rows_of_installation
-- This one.
INSERT INTO installation (id) VALUES (gen_random_uuid());

-- name: legal_holds
-- What no retention policy may remove until somebody releases it. A row stays after its release: it is the record.
CREATE TABLE legal_holds (
    topic_id bigint NOT NULL,
    name text COLLATE "C" NOT NULL,
    -- NULL: the whole topic, also partitions that come later.
    partition integer,
    first_sequence bigint NOT NULL,
    -- NULL: without an end.
    last_sequence bigint,
    reason text NOT NULL,
    placed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    placed_by text NOT NULL,
    released_at timestamptz,
    released_by text,
    release_reason text,
    PRIMARY KEY (topic_id, name, placed_at),
    CONSTRAINT legal_holds_range CHECK (
        first_sequence >= 1 AND COALESCE(last_sequence, first_sequence) >= first_sequence)
);
-- What retention looks at; and one name is given once at a time.
CREATE UNIQUE INDEX legal_holds_open ON legal_holds (topic_id, name) WHERE released_at IS NULL;

-- name: clean_runs
-- A run of clean: who may drop under its token, and how many damaged copies it has found.
CREATE TABLE clean_runs (
    run uuid NOT NULL PRIMARY KEY,
    topic_id bigint NOT NULL,
    begun_by text NOT NULL,
    begun_at timestamptz NOT NULL,
    ended_at timestamptz,
    damaged integer NOT NULL DEFAULT 0
);

-- name: clean_readings
-- The copies that a run has read back and found to be what was sealed: only these let a log epoch go.
CREATE TABLE clean_readings (
    run uuid NOT NULL,
    partition_id bigint NOT NULL,
    log_epoch integer NOT NULL,
    target text COLLATE "C" NOT NULL,
    event_count bigint NOT NULL,
    checksum text NOT NULL,
    read_at timestamptz NOT NULL,
    PRIMARY KEY (run, partition_id, log_epoch, target)
);

-- name: retention_drops
-- What was dropped and why it was safe: the lowest position and the copies at that moment, and under which run.
CREATE TABLE retention_drops (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    partition_id bigint NOT NULL,
    log_epoch integer NOT NULL,
    first_sequence bigint NOT NULL,
    last_sequence bigint NOT NULL,
    lowest_position bigint,
    copies integer NOT NULL,
    policy_version integer NOT NULL,
    dropped_by text NOT NULL,
    dropped_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    run uuid,
    -- The limit and the size that made it go early; NULL: it went by its age.
    limit_bytes bigint,
    size_bytes bigint
);

-- name: skips
-- What retention removed before a subscription had read it. The row stays: nothing is skipped in silence.
CREATE TABLE skips (
    subscription_id bigint NOT NULL,
    partition_id bigint NOT NULL,
    log_epoch integer NOT NULL,
    first_sequence bigint NOT NULL,
    last_sequence bigint NOT NULL,
    max_lag_seconds double precision NOT NULL,
    policy_version integer NOT NULL,
    run uuid NOT NULL,
    skipped_at timestamptz NOT NULL,
    -- Why retention did not wait. max_lag: the policy max_lag_seconds of the subscription. max_bytes: the limit of the
    -- topic, which held size_bytes then. passed: a queue came to it after it was gone.
    reason text NOT NULL DEFAULT 'max_lag' CHECK (reason IN ('max_lag', 'max_bytes', 'passed')),
    limit_bytes bigint,
    size_bytes bigint,
    PRIMARY KEY (subscription_id, partition_id, log_epoch)
);

-- name: backfill_requests
-- What somebody wants to have again: copies on a target, dropped log epochs in SQL, or a window of the log in a sink.
CREATE TABLE backfill_requests (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind text NOT NULL CHECK (kind IN ('copy', 'rehydrate', 'relay')),
    topic_id bigint NOT NULL,
    -- The archive target or the sink's address; a rehydration has none.
    target text COLLATE "C" NOT NULL,
    partition integer,
    from_sequence bigint,
    to_sequence bigint,
    from_time timestamptz,
    to_time timestamptz,
    dry_run boolean NOT NULL,
    priority integer NOT NULL,
    state text NOT NULL CHECK (state IN ('waiting', 'running', 'done', 'failed', 'cancelled')),
    run text,
    units integer NOT NULL,
    total_events bigint NOT NULL,
    done_units integer NOT NULL DEFAULT 0,
    done_events bigint NOT NULL DEFAULT 0,
    -- The fence: whoever works on a request names the attempt that it has claimed.
    attempts integer NOT NULL DEFAULT 0,
    max_attempts integer NOT NULL,
    not_before timestamptz NOT NULL,
    -- When a running request may be claimed from a lost runner.
    deadline timestamptz,
    error text NOT NULL DEFAULT '',
    requested_by text NOT NULL,
    requested_at timestamptz NOT NULL,
    changed_at timestamptz NOT NULL
);
-- What a runner looks at, so that its cost does not grow with all that was ever requested.
CREATE INDEX backfill_requests_open ON backfill_requests (priority DESC, id) WHERE state IN ('waiting', 'running');
-- For the list of a topic, and for its deletion.
CREATE INDEX backfill_requests_topic ON backfill_requests (topic_id);

-- name: backfill_units
-- The ranges of a request, fixed when it is made: one log epoch each, or a part of what is not sealed yet.
CREATE TABLE backfill_units (
    request bigint NOT NULL REFERENCES backfill_requests (id) ON DELETE CASCADE,
    partition_id bigint NOT NULL,
    first_sequence bigint NOT NULL,
    last_sequence bigint NOT NULL,
    -- NULL: not sealed yet.
    log_epoch integer,
    done_by integer,
    -- Set once, by the attempt that has finished the range.
    done_at timestamptz,
    PRIMARY KEY (request, partition_id, first_sequence),
    CHECK (last_sequence >= first_sequence)
);
-- What is left of a request.
CREATE INDEX backfill_units_open ON backfill_units (request, partition_id, first_sequence) WHERE done_at IS NULL;

-- name: rehydrated_epochs
-- Dropped log epochs that were brought back. A row is written in the transaction that has brought all events of the log
-- epoch and found them to be what was sealed, so what it covers can be read.
CREATE TABLE rehydrated_epochs (
    partition_id bigint NOT NULL,
    first_sequence bigint NOT NULL,
    last_sequence bigint NOT NULL,
    log_epoch integer NOT NULL,
    request bigint NOT NULL,
    rehydrated_at timestamptz NOT NULL,
    PRIMARY KEY (partition_id, first_sequence)
);

-- name: rehydrated_events
-- The events of these log epochs, by their sequences.
CREATE TABLE rehydrated_events (
    partition_id bigint NOT NULL,
    sequence bigint NOT NULL,
    event_id uuid NOT NULL,
    key text,
    type text NOT NULL,
    content_type text NOT NULL,
    headers jsonb,
    payload bytea NOT NULL,
    created_at timestamptz NOT NULL,
    sequenced_at timestamptz NOT NULL,
    PRIMARY KEY (partition_id, sequence)
);

-- name: erasures
-- Who had which events erased, when and why. It has no payload and no key. A row stays: it is the record.
CREATE TABLE erasures (
    erasure uuid PRIMARY KEY,
    topic_id bigint NOT NULL,
    event_id uuid,
    -- SHA-256 of the erasure's id and the key, by which the same command finds its own work again.
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
-- The record of a topic.
CREATE INDEX erasures_topic ON erasures (topic_id, requested_at);
-- Those that are not finished: workers look whether there are some, and the record of a topic can be long.
CREATE INDEX erasures_open ON erasures (topic_id) WHERE finished_at IS NULL;

-- name: erased_events
-- The places of the events that were erased.
CREATE TABLE erased_events (
    partition_id bigint NOT NULL,
    sequence bigint NOT NULL,
    erasure uuid NOT NULL,
    PRIMARY KEY (partition_id, sequence)
);

-- name: reissued_seals
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

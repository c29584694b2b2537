-- name: create_legal_holds
-- Legal holds: what no retention policy may remove until somebody releases it. partition NULL: the whole topic, also
-- partitions that come later. last_sequence NULL: without an end. A row stays after its release: it is the record.
CREATE TABLE legal_holds (
    topic_id bigint NOT NULL,
    name text COLLATE "C" NOT NULL,
    partition integer,
    first_sequence bigint NOT NULL,
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

-- name: index_legal_holds
-- What retention looks at; and one name is given once at a time.
CREATE UNIQUE INDEX legal_holds_open ON legal_holds (topic_id, name) WHERE released_at IS NULL;

-- name: retention_without_copies
-- A policy may say that nothing has to be archived: 0 copies, and no target.
ALTER TABLE retention_policies
    DROP CONSTRAINT retention_policies_copies_check,
    ADD CONSTRAINT retention_policies_copies_check CHECK (copies >= 0);

-- name: settings_of_keeping
-- For how long retention waits for a subscription, and how long a subscription's dead letters are kept; 0: for ever.
INSERT INTO policy_settings (kind, setting, type, preset, lowest, highest, words) VALUES
    ('keep', 'max_lag_seconds', 'number', '0', 0, 3153600000, NULL),
    ('keep', 'dead_letter_seconds', 'number', '0', 0, 3153600000, NULL);

-- name: keeping_of_subscriptions
-- What is in force for a subscription.
ALTER TABLE subscriptions
    ADD COLUMN max_lag_seconds double precision NOT NULL DEFAULT 0,
    ADD COLUMN dead_letter_seconds double precision NOT NULL DEFAULT 0;

-- name: create_skips
-- What retention removed before a subscription had read it, because its policy does not let it wait for longer. The row
-- stays: nothing is skipped in silence.
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
    PRIMARY KEY (subscription_id, partition_id, log_epoch)
);

-- name: index_dead_letters_died
-- Those that have been kept for as long as a policy says.
CREATE INDEX dead_letters_died ON dead_letters (subscription_id, died_at) WHERE redriven_at IS NULL AND NOT parked;

-- name: functions_of_keeping
-- It asks for the age of a log epoch now.
DROP FUNCTION IF EXISTS lowest_position(bigint);

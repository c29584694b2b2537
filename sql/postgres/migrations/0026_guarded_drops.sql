-- name: targets_of_retention
-- On which targets copies count. A policy of before names none until it is set again: nothing is dropped by it
-- meanwhile.
ALTER TABLE retention_policies ADD COLUMN targets text[] COLLATE "C" NOT NULL DEFAULT '{}';

-- name: kept_log_epochs
-- What retention looks at, so that its cost does not grow with all that was ever dropped.
CREATE INDEX log_epochs_kept ON log_epochs (partition_id, log_epoch) WHERE dropped_at IS NULL;

-- name: create_clean_runs
-- A run of clean: who may drop under its token, and how many damaged copies it has found.
CREATE TABLE clean_runs (
    run uuid NOT NULL PRIMARY KEY,
    topic_id bigint NOT NULL,
    begun_by text NOT NULL,
    begun_at timestamptz NOT NULL,
    ended_at timestamptz,
    damaged integer NOT NULL DEFAULT 0
);

-- name: create_clean_readings
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

-- name: run_of_drops
-- Under which run a log epoch was dropped; none before this version.
ALTER TABLE retention_drops ADD COLUMN run uuid;

-- name: create_installation
-- What the marker of an archive target says: whose it is.
CREATE TABLE installation (
    singleton boolean NOT NULL PRIMARY KEY DEFAULT true CHECK (singleton),
    id uuid NOT NULL
);
INSERT INTO installation (id) VALUES (gen_random_uuid());

-- name: functions_of_guarded_drops
-- They take and answer targets, and clean needs a run now.
DROP FUNCTION IF EXISTS set_retention(text, bigint, integer, text);
DROP FUNCTION IF EXISTS retention_of();
DROP FUNCTION IF EXISTS clean(text);
DROP FUNCTION IF EXISTS clean_partition(bigint);
DROP FUNCTION IF EXISTS retention_hold(log_epochs, retention_policies);

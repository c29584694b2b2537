-- name: letters_that_wait
-- A dead letter can wait for more than an operator's look. parked: later events of its key wait behind it, in the order of history and
-- sequence. redriven_at: it is to be handed out again. attempts counts how often it was handed out, attempts_before how often it
-- had been when it was redriven last. Of letters from before, nobody knows.
ALTER TABLE dead_letters
    ADD COLUMN id bigint GENERATED ALWAYS AS IDENTITY,
    ADD COLUMN attempts integer NOT NULL DEFAULT 1,
    ADD COLUMN attempts_before integer NOT NULL DEFAULT 0,
    ADD COLUMN parked boolean NOT NULL DEFAULT false,
    ADD COLUMN redriven_at timestamptz;

-- name: index_dead_letters_id
-- Lists of a subscription, and single letters.
CREATE UNIQUE INDEX dead_letters_id ON dead_letters (subscription_id, id);

-- name: index_dead_letters_parked
-- The keys whose events wait, and the first of each.
CREATE INDEX dead_letters_parked ON dead_letters (subscription_id, partition_id, key, history, sequence) WHERE parked;

-- name: index_dead_letters_redriven
-- What is to be handed out again; small, because that does not take long.
CREATE INDEX dead_letters_redriven ON dead_letters (subscription_id, partition_id, history, sequence)
    WHERE redriven_at IS NOT NULL;

-- name: create_attempts
-- How often the event behind a position was handed out, once it is suspected to be what breaks its consumer: a row for a partition
-- that is, or was, in trouble.
CREATE TABLE attempts (
    subscription_id bigint NOT NULL,
    partition_id bigint NOT NULL,
    sequence bigint NOT NULL,
    history integer NOT NULL,
    attempts integer NOT NULL,
    reason text NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (subscription_id, partition_id)
) WITH (fillfactor = 50);

-- name: create_dropped_letters
-- Dead letters that somebody has thrown away: what they were and why they died, without their payload.
CREATE TABLE dropped_letters (
    subscription_id bigint NOT NULL,
    id bigint NOT NULL,
    partition_id bigint NOT NULL,
    sequence bigint NOT NULL,
    history integer NOT NULL,
    event_id uuid NOT NULL,
    key text,
    type text NOT NULL,
    reason text NOT NULL,
    attempts integer NOT NULL,
    died_at timestamptz NOT NULL,
    dropped_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    dropped_by text NOT NULL,
    PRIMARY KEY (subscription_id, id)
);

-- name: index_lease_history_partition
-- Whether the holder before has died.
CREATE INDEX lease_history_partition ON lease_history (subscription_id, partition_id, lease_epoch);

-- name: drop_changed_functions
-- It answers more now; what replaces it is applied after the migrations.
DROP FUNCTION IF EXISTS dead_letters_of(text, integer);

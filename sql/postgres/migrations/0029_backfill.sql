-- name: create_backfill_requests
-- What somebody wants to have again: copies on a target, dropped log epochs in SQL, or a window of the log in a sink.
-- attempts is the fence: whoever works on a request names the attempt that it has claimed. target is the archive target
-- or the sink's address; a rehydration has none. deadline is when a running request may be claimed from a lost runner.
CREATE TABLE backfill_requests (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind text NOT NULL CHECK (kind IN ('copy', 'rehydrate', 'relay')),
    topic_id bigint NOT NULL,
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
    attempts integer NOT NULL DEFAULT 0,
    max_attempts integer NOT NULL,
    not_before timestamptz NOT NULL,
    deadline timestamptz,
    error text NOT NULL DEFAULT '',
    requested_by text NOT NULL,
    requested_at timestamptz NOT NULL,
    changed_at timestamptz NOT NULL
);

-- name: open_backfill_requests
-- What a runner looks at, so that its cost does not grow with all that was ever requested.
CREATE INDEX backfill_requests_open ON backfill_requests (priority DESC, id) WHERE state IN ('waiting', 'running');

-- name: backfill_requests_of_a_topic
-- For the list of a topic, and for its deletion.
CREATE INDEX backfill_requests_topic ON backfill_requests (topic_id);

-- name: create_backfill_units
-- The ranges of a request, fixed when it is made: one log epoch each, or a part of what is not sealed yet (log_epoch
-- NULL). done_at is set once, by the attempt that has finished the range.
CREATE TABLE backfill_units (
    request bigint NOT NULL REFERENCES backfill_requests (id) ON DELETE CASCADE,
    partition_id bigint NOT NULL,
    first_sequence bigint NOT NULL,
    last_sequence bigint NOT NULL,
    log_epoch integer,
    done_by integer,
    done_at timestamptz,
    PRIMARY KEY (request, partition_id, first_sequence),
    CHECK (last_sequence >= first_sequence)
);

-- name: open_backfill_units
-- What is left of a request.
CREATE INDEX backfill_units_open ON backfill_units (request, partition_id, first_sequence) WHERE done_at IS NULL;

-- name: create_rehydrated_epochs
-- Dropped log epochs that were brought back. A row is written in the transaction that has brought all events of the
-- log epoch and found them to be what was sealed, so what it covers can be read.
CREATE TABLE rehydrated_epochs (
    partition_id bigint NOT NULL,
    first_sequence bigint NOT NULL,
    last_sequence bigint NOT NULL,
    log_epoch integer NOT NULL,
    request bigint NOT NULL,
    rehydrated_at timestamptz NOT NULL,
    PRIMARY KEY (partition_id, first_sequence)
);

-- name: create_rehydrated_events
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

-- name: functions_of_rehydration
-- It answers now whether the read is of what was rehydrated.
DROP FUNCTION IF EXISTS require_readable(bigint, bigint, bigint);

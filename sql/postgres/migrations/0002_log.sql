-- name: create_histories
-- The lines of the log's history; each restore that lost commits opens the next one.
CREATE TABLE histories (
    history integer PRIMARY KEY,
    reason text NOT NULL,
    opened_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- name: first_history
-- Every position belongs to a history, so the first one must exist.
INSERT INTO histories (history, reason) VALUES (1, 'installed');

-- name: create_events_id
-- CACHE 1: ids must rise in the order in which transactions take them.
CREATE SEQUENCE events_id CACHE 1;

-- name: create_events
-- Insert-only. tx stands before id: its default gives the transaction its number before the id is taken, and
-- droppable_slices relies on that order. Cut by id, so that retention is DROP and not DELETE.
CREATE TABLE events (
    tx xid8 NOT NULL DEFAULT pg_current_xact_id(),
    id bigint NOT NULL DEFAULT nextval('events_id'),
    partition_id bigint NOT NULL,
    event_id uuid NOT NULL,
    key text,
    type text NOT NULL,
    content_type text NOT NULL,
    headers jsonb,
    payload bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (id)
) PARTITION BY RANGE (id);

-- name: index_events_tx
-- The sequencer starts here: what became visible between two snapshots.
CREATE INDEX events_tx ON events (tx);

-- name: create_sequencer
-- One row, on which nobody has rights: whoever holds its lock is the sequencer.
CREATE TABLE sequencer (
    singleton boolean PRIMARY KEY CHECK (singleton)
);

-- name: fill_sequencer
-- The row to lock.
INSERT INTO sequencer (singleton) VALUES (true);

-- name: create_ticks
-- A row for each pass of the sequencer. base and target are the two snapshots whose difference is worked off in id
-- order; last_id is how far, complete says that nothing is left. id is one more than the row before: two sequencers
-- that believe to be alone collide on the key. Every id up to highest_id was taken by a transaction older than horizon.
CREATE TABLE ticks (
    id bigint NOT NULL,
    base pg_snapshot NOT NULL,
    target pg_snapshot NOT NULL,
    last_id bigint NOT NULL,
    complete boolean NOT NULL,
    highest_id bigint NOT NULL,
    horizon xid8 NOT NULL,
    passed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (id)
) PARTITION BY RANGE (id);

-- name: create_chunks
-- The index of the log: sequences first_sequence .. first_sequence + event_count - 1 are event_ids, in order. The high
-- watermark of a partition is the end of its last chunk: read, never stored.
CREATE TABLE chunks (
    partition_id bigint NOT NULL,
    first_sequence bigint NOT NULL,
    event_count integer NOT NULL,
    first_id bigint NOT NULL,
    last_id bigint NOT NULL,
    event_ids bigint[] NOT NULL,
    sequenced_at timestamptz NOT NULL,
    PRIMARY KEY (partition_id, first_sequence)
);

-- name: create_slices
-- The storage slices of the insert-only tables: ids first_id .. last_id stand in the table slice.
CREATE TABLE slices (
    parent text NOT NULL,
    slice text PRIMARY KEY,
    first_id bigint NOT NULL,
    last_id bigint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    dropped_at timestamptz,
    CONSTRAINT slices_first UNIQUE (parent, first_id)
);

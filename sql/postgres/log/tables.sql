-- name: events
-- Insert-only, and cut by id, so that retention is DROP and not DELETE. tx stands before id: its default gives the
-- transaction its number before the id is taken, and droppable_slices relies on that order. A column that it gets,
-- events_kept gets too.
CREATE SEQUENCE events_id CACHE 1;  -- no cache: ids must rise in the order in which transactions take them
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
    -- An event that is to come later: not before this time. NULL: at once.
    due_at timestamptz,
    PRIMARY KEY (id)
) PARTITION BY RANGE (id);
-- The sequencer starts here: what became visible between two snapshots.
CREATE INDEX events_tx ON events (tx);

-- name: sequencer
-- One row, on which nobody has rights: whoever holds its lock is the sequencer.
CREATE TABLE sequencer (
    singleton boolean PRIMARY KEY CHECK (singleton)
);

-- name: first_rows_of_sequencer
-- The row to lock.
INSERT INTO sequencer (singleton) VALUES (true);

-- name: ticks
-- A row for each pass of the sequencer.
CREATE TABLE ticks (
    -- One more than the row before: two sequencers that believe to be alone collide on the key.
    id bigint NOT NULL,
    -- The two snapshots whose difference is worked off in the order of ids; last_id is how far, complete says that
    -- nothing is left.
    base pg_snapshot NOT NULL,
    target pg_snapshot NOT NULL,
    last_id bigint NOT NULL,
    complete boolean NOT NULL,
    -- Every id up to highest_id was taken by a transaction older than horizon.
    highest_id bigint NOT NULL,
    horizon xid8 NOT NULL,
    passed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    era integer NOT NULL DEFAULT 1,
    -- The tick works off what an earlier era left, by the numbers of that era, up to the boundary. done_id is how far
    -- the tick that the restore cut off had come.
    repair boolean NOT NULL DEFAULT false,
    done_id bigint NOT NULL DEFAULT 0,
    -- All delayed events up to here were taken.
    due bigint NOT NULL DEFAULT 0,
    due_id bigint NOT NULL DEFAULT 0,
    -- A restore can come while what an earlier one left is not repaired yet. repair_era: the era in which the oldest
    -- repair began that the tick goes on with, 0 for a tick that repairs nothing. repaired_id: what earlier ones of
    -- these repairs had worked off when they were cut off.
    repair_era integer NOT NULL DEFAULT 0,
    repaired_id bigint NOT NULL DEFAULT 0,
    -- The newest id of a chunk that was given out before the pass, so that the next one sees that the counter was set
    -- back.
    chunk_id bigint NOT NULL DEFAULT 0,
    -- When the server that wrote this row was started. One that still runs is of the same cluster and timeline.
    server_started timestamptz DEFAULT pg_postmaster_start_time(),
    PRIMARY KEY (id)
) PARTITION BY RANGE (id);

-- name: chunks
-- The index of the log: sequences first_sequence .. first_sequence + event_count - 1 are event_ids, in order. The high
-- watermark of a partition is the end of its last chunk: read, never stored. Cut by the order of writing. A sequence is
-- unique in a slice (add_slice makes the index); in all of them it is because the tick's number is. It has no primary
-- key, because nothing updates it and a key would have to contain the column that it is cut by.
CREATE SEQUENCE chunks_id CACHE 1;
CREATE TABLE chunks (
    partition_id bigint NOT NULL,
    first_sequence bigint NOT NULL,
    event_count integer NOT NULL,
    first_id bigint NOT NULL,
    last_id bigint NOT NULL,
    event_ids bigint[] NOT NULL,
    -- A merged chunk holds events of several passes: sequenced_ats has the time of each, sequenced_at that of the last.
    sequenced_at timestamptz NOT NULL,
    sequenced_ats timestamptz[],
    chunk_id bigint NOT NULL DEFAULT nextval('chunks_id')
) PARTITION BY RANGE (chunk_id);
-- Ids of one partition are alike but not equal: compressing them cost an eighth of a pass and every reader again, to
-- halve 8 bytes an event.
ALTER TABLE chunks ALTER COLUMN event_ids SET STORAGE EXTERNAL;

-- name: delayed
-- Events that are not due yet, by the microsecond (since 1970) at which they are. Never deleted from: the sequencer's
-- cursor says up to where they were taken, and slices behind it are dropped.
CREATE TABLE delayed (
    due bigint NOT NULL,
    id bigint NOT NULL,
    partition_id bigint NOT NULL,
    PRIMARY KEY (due, id)
) PARTITION BY RANGE (due);
-- What is to come into a partition, for those who count it.
CREATE INDEX delayed_partition ON delayed (partition_id, due);

-- name: bookmarks
-- Named positions of a topic, with a row for each partition: the last sequence before it, and the history in which it
-- was placed.
CREATE TABLE bookmarks (
    topic_id bigint NOT NULL,
    name text COLLATE "C" NOT NULL,
    partition_id bigint NOT NULL,
    position bigint NOT NULL CHECK (position >= 0),
    history integer NOT NULL,
    -- The history that began when the log ended before this position.
    lost_in integer,
    placed_at timestamptz NOT NULL,
    placed_by text NOT NULL,
    PRIMARY KEY (topic_id, name, partition_id)
);

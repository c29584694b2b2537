-- name: round_robin
-- Spreads events without a key; a sequence, because it takes no lock that outlives the statement.
CREATE SEQUENCE round_robin MINVALUE 0 START 0 CACHE 1;

-- name: dedup_even
-- The keys under which events were published, and by which event. Every key stands in both generations, so that
-- publishers on both sides of a turn, which empties one of them, meet in a unique index that neither of them left.
-- Never deleted from.
CREATE TABLE dedup_even (
    topic_id bigint NOT NULL,
    key text COLLATE "C" NOT NULL,
    event_id uuid NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (topic_id, key)
);

-- name: dedup_odd
-- The other generation.
CREATE TABLE dedup_odd (
    topic_id bigint NOT NULL,
    key text COLLATE "C" NOT NULL,
    event_id uuid NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (topic_id, key)
);

-- name: dedup_turns
-- When a generation was emptied last, and which; whoever turns locks the row, publishers never look at it.
CREATE TABLE dedup_turns (
    singleton boolean PRIMARY KEY CHECK (singleton),
    emptied text NOT NULL CHECK (emptied IN ('dedup_even', 'dedup_odd')),
    turned_at timestamptz NOT NULL
);

-- name: first_rows_of_dedup_turns
-- Both are empty to begin with.
INSERT INTO dedup_turns (singleton, emptied, turned_at) VALUES (true, 'dedup_odd', clock_timestamp());

-- name: recent_sends
-- Texts that senders have claimed for their events for a few minutes, so that a send that is repeated is no second
-- event. A row is overwritten when its text is claimed again after its end.
CREATE TABLE recent_sends (
    topic_id bigint NOT NULL,
    send_key text COLLATE "C" NOT NULL,
    event_id uuid NOT NULL,
    ends_at timestamptz NOT NULL,
    PRIMARY KEY (topic_id, send_key)
);
CREATE INDEX recent_sends_end ON recent_sends (ends_at);

-- name: forgotten_sends
-- Up to which end claims were deleted, and since when this round lasts.
CREATE TABLE forgotten_sends (
    singleton boolean PRIMARY KEY CHECK (singleton),
    up_to timestamptz NOT NULL,
    begun_at timestamptz NOT NULL
) WITH (fillfactor = 50);

-- name: first_rows_of_forgotten_sends
-- None was deleted yet.
INSERT INTO forgotten_sends (singleton, up_to, begun_at) VALUES (true, '-infinity', clock_timestamp());

-- name: strict_locks
-- What publishers of one key wait for each other at, when they asked for the order of commits: a row for each bucket of
-- keys that a topic has used. They are the topic's own, so that a transaction left open in one topic stops no other.
CREATE TABLE strict_locks (
    topic_id bigint NOT NULL,
    bucket integer NOT NULL,
    PRIMARY KEY (topic_id, bucket)
);

-- name: pressure
-- Partitions in which more waits for its sequence than their topic allows, as measured last.
CREATE TABLE pressure (
    partition_id bigint PRIMARY KEY,
    events bigint NOT NULL,
    bytes bigint NOT NULL,
    measured_at timestamptz NOT NULL
) WITH (fillfactor = 50);

-- name: pressure_measured
-- When somebody measured last.
CREATE TABLE pressure_measured (
    singleton boolean PRIMARY KEY CHECK (singleton),
    measured_at timestamptz NOT NULL
) WITH (fillfactor = 50);

-- name: first_rows_of_pressure_measured
-- Nobody has measured yet.
INSERT INTO pressure_measured (singleton, measured_at) VALUES (true, '-infinity');

-- name: staged_writes
-- Chunks of events that tasks have written and that no transaction has published yet. It is not in the write-ahead log:
-- after a crash of the server it is empty, publish_staged then misses chunks and refuses, and the writer stages again.
CREATE UNLOGGED TABLE staged_writes (
    stage uuid NOT NULL,
    chunk integer NOT NULL,
    login text COLLATE "C" NOT NULL,
    staged_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    topics text[] NOT NULL,
    payloads bytea[] NOT NULL,
    keys text[],
    types text[],
    content_types text[],
    headers text[],
    event_ids uuid[],
    partitions integer[],
    not_befores timestamptz[],
    PRIMARY KEY (stage, chunk)
);
CREATE INDEX staged_writes_age ON staged_writes (staged_at);
-- The arrays are read once, so they are not worth the time of compressing them.
ALTER TABLE staged_writes
    ALTER COLUMN topics SET STORAGE EXTERNAL,
    ALTER COLUMN payloads SET STORAGE EXTERNAL,
    ALTER COLUMN keys SET STORAGE EXTERNAL,
    ALTER COLUMN headers SET STORAGE EXTERNAL;

-- name: claimed_writes
-- The versions that writers have published. A version is a login's: another login that uses the same name neither meets
-- it nor learns of it.
CREATE TABLE claimed_writes (
    login text COLLATE "C" NOT NULL,
    writer text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    claimed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- How many rows the version had, and a digest of them. NULL: it was claimed by a program that does not say it; then
    -- a repetition is not compared.
    events bigint,
    digest text COLLATE "C",
    PRIMARY KEY (login, writer, version)
);

-- name: topic_schemas
-- The schemas of a topic's payloads by the type of event ('' stands for every type that has none of its own), in
-- versions: the newest one is in force. compatibility is what the next version has to keep.
CREATE TABLE topic_schemas (
    topic_id bigint NOT NULL,
    type text COLLATE "C" NOT NULL,
    version integer NOT NULL,
    kind text NOT NULL CHECK (kind IN ('json', 'avro')),
    definition text NOT NULL,
    compatibility text NOT NULL CHECK (compatibility IN ('none', 'backward', 'forward', 'full')),
    set_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    set_by text NOT NULL,
    PRIMARY KEY (topic_id, type, version)
);

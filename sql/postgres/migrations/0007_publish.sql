-- name: create_settings
-- What can be set for the whole log; a name without a row has its default.
CREATE TABLE settings (
    name text PRIMARY KEY,
    value double precision NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_by text NOT NULL DEFAULT session_user
);

-- name: create_dedup_even
-- The keys under which events were published, and by which event. Every key stands in both generations, so that publishers
-- on both sides of a turn, which empties one of them, meet in a unique index that neither of them left. Never deleted from.
CREATE TABLE dedup_even (
    topic_id bigint NOT NULL,
    key text COLLATE "C" NOT NULL,
    event_id uuid NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (topic_id, key)
);

-- name: create_dedup_odd
-- The other generation.
CREATE TABLE dedup_odd (
    topic_id bigint NOT NULL,
    key text COLLATE "C" NOT NULL,
    event_id uuid NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (topic_id, key)
);

-- name: create_dedup_turns
-- When a generation was emptied last, and which; whoever turns locks the row, publishers never look at it.
CREATE TABLE dedup_turns (
    singleton boolean PRIMARY KEY CHECK (singleton),
    emptied text NOT NULL CHECK (emptied IN ('dedup_even', 'dedup_odd')),
    turned_at timestamptz NOT NULL
);

-- name: fill_dedup_turns
-- Both are empty to begin with.
INSERT INTO dedup_turns (singleton, emptied, turned_at) VALUES (true, 'dedup_odd', clock_timestamp());

-- name: create_strict_locks
-- What publishers of one key wait for each other at, when they asked for the order of commits.
CREATE TABLE strict_locks (
    bucket integer PRIMARY KEY
);

-- name: fill_strict_locks
-- The buckets that keys fall into.
INSERT INTO strict_locks (bucket) SELECT generate_series(0, 16383);

-- name: create_pressure
-- Partitions in which more waits for its sequence than their topic allows, as measured last.
CREATE TABLE pressure (
    partition_id bigint PRIMARY KEY,
    events bigint NOT NULL,
    bytes bigint NOT NULL,
    measured_at timestamptz NOT NULL
) WITH (fillfactor = 50);

-- name: create_pressure_measured
-- When somebody measured last.
CREATE TABLE pressure_measured (
    singleton boolean PRIMARY KEY CHECK (singleton),
    measured_at timestamptz NOT NULL
) WITH (fillfactor = 50);

-- name: fill_pressure_measured
-- Nobody has measured yet.
INSERT INTO pressure_measured (singleton, measured_at) VALUES (true, '-infinity');

-- name: index_topics_limited
-- Whether any topic has a limit, told by an index that is empty where none has.
CREATE INDEX topics_limited ON topics (id)
WHERE max_unsequenced_events IS NOT NULL OR max_unsequenced_bytes IS NOT NULL;

-- name: replaced_publish_functions
-- Their arguments or results changed.
DROP FUNCTION IF EXISTS publish(text, bytea, text, text, text, jsonb, uuid, integer);
DROP FUNCTION IF EXISTS publish_batch(text[], bytea[], text[], text[], text[], text[], uuid[], integer[]);
DROP FUNCTION IF EXISTS event_problem(integer, text, text, text, jsonb, integer, integer, integer);
DROP FUNCTION IF EXISTS partition_for(bigint, integer, text, integer);

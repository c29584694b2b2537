-- name: create_namespaces
-- Hierarchical names. parent_id 0 is the root, so that the sibling rule binds there too.
CREATE TABLE namespaces (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    parent_id bigint NOT NULL,
    name text COLLATE "C" NOT NULL,
    path text COLLATE "C" NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT namespaces_sibling UNIQUE (parent_id, name),
    -- A path may be longer than a B-tree entry: a hash exclusion is a unique index without that limit.
    CONSTRAINT namespaces_path EXCLUDE USING hash (path WITH =)
);

-- name: create_topics
-- The address is 'namespace/path/topic'; publish finds a topic by it with one index probe.
CREATE TABLE topics (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace_id bigint NOT NULL,
    name text COLLATE "C" NOT NULL,
    address text COLLATE "C" NOT NULL,
    partitions integer NOT NULL CHECK (partitions BETWEEN 1 AND 65536),
    max_payload_bytes integer NOT NULL DEFAULT 1048576,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT topics_address EXCLUDE USING hash (address WITH =)
);

-- name: create_partitions
-- id = (topic id << 16) | number: computed by any client, no join. low_sequence is the first one that fetch answers.
CREATE TABLE partitions (
    id bigint PRIMARY KEY,
    topic_id bigint NOT NULL,
    number integer NOT NULL,
    low_sequence bigint NOT NULL DEFAULT 1,
    CONSTRAINT partitions_number UNIQUE (topic_id, number)
);

-- name: create_round_robin
-- Spreads events without a key; a sequence, because it takes no lock that outlives the statement.
CREATE SEQUENCE round_robin MINVALUE 0 START 0 CACHE 1;

-- name: create_retention_policies
-- Without a row nothing of a topic is ever removed.
CREATE TABLE retention_policies (
    topic_id bigint PRIMARY KEY,
    minimum_age_seconds bigint NOT NULL CHECK (minimum_age_seconds >= 0),
    copies integer NOT NULL CHECK (copies >= 1),
    version integer NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_by text NOT NULL DEFAULT session_user
);

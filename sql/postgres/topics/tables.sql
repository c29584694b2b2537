-- name: namespaces
-- Hierarchical names.
CREATE TABLE namespaces (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- 0 is the root, so that the rule about siblings binds there too.
    parent_id bigint NOT NULL,
    name text COLLATE "C" NOT NULL,
    path text COLLATE "C" NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT namespaces_sibling UNIQUE (parent_id, name),
    -- A path may be longer than a B-tree entry: a hash exclusion is a unique index without that limit.
    CONSTRAINT namespaces_path EXCLUDE USING hash (path WITH =)
);

-- name: name_tree
-- One row, on which nobody has rights: whoever changes the tree of names locks it, and whoever creates a name shares
-- the lock.
CREATE TABLE name_tree (
    singleton boolean PRIMARY KEY CHECK (singleton)
);

-- name: first_rows_of_name_tree
-- The row to lock.
INSERT INTO name_tree (singleton) VALUES (true);

-- name: topics
-- The address is 'namespace/path/topic'; publish finds a topic by it with one index probe.
CREATE TABLE topics (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace_id bigint NOT NULL,
    name text COLLATE "C" NOT NULL,
    address text COLLATE "C" NOT NULL,
    partitions integer NOT NULL CHECK (partitions BETWEEN 1 AND 65536),
    max_payload_bytes integer NOT NULL DEFAULT 1048576,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- How an event's partition is chosen.
    strategy text NOT NULL DEFAULT 'crc32',
    -- The limits of the back pressure; NULL: none.
    max_unsequenced_events bigint,
    max_unsequenced_bytes bigint,
    -- Rights are asked for.
    restricted boolean NOT NULL DEFAULT false,
    -- What sinks and archives hold is named by this: the address at the topic's creation, and its id. A topic keeps it,
    -- and no other gets it.
    known_as text COLLATE "C",
    CONSTRAINT topics_address EXCLUDE USING hash (address WITH =)
);
-- The topics of a namespace, for what is done to a subtree.
CREATE UNIQUE INDEX topics_namespace ON topics (namespace_id, name);
-- Page by page, in the order of the addresses. A whole address may be too long for an index.
CREATE INDEX topics_listed ON topics (left(address, 600));
-- Whether any topic has a limit, told by an index that is empty where none has.
CREATE INDEX topics_limited ON topics (id)
WHERE max_unsequenced_events IS NOT NULL OR max_unsequenced_bytes IS NOT NULL;

-- name: partitions
-- id = (topic id << 16) | number, so that any client computes it without a join.
CREATE TABLE partitions (
    id bigint PRIMARY KEY,
    topic_id bigint NOT NULL,
    number integer NOT NULL,
    -- The first sequence that fetch answers from the database.
    low_sequence bigint NOT NULL DEFAULT 1,
    CONSTRAINT partitions_number UNIQUE (topic_id, number)
);

-- name: deleted_topics
-- Topics that are gone. Events of transactions that still saw one are discarded by the sequencer, and counted here.
CREATE TABLE deleted_topics (
    topic_id bigint PRIMARY KEY,
    address text NOT NULL,
    deleted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    deleted_by text NOT NULL,
    discarded bigint NOT NULL DEFAULT 0
);

-- name: namespace_grants
-- Who may do what in a namespace and below it. A namespace is restricted as soon as one row names it or one above it.
CREATE TABLE namespace_grants (
    namespace_id bigint NOT NULL,
    -- The name of a role, or the id of an account. Neither need be there any more: then the row still keeps the others
    -- out.
    login text COLLATE "C" NOT NULL,
    -- consume includes receive, acknowledge and peek, which can also be given one by one.
    verb text NOT NULL
        CHECK (verb IN ('publish', 'consume', 'operate', 'read', 'receive', 'acknowledge', 'peek')),
    granted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    granted_by text NOT NULL,
    -- An account is no login: a role that has the name of an account's id has none of its rights.
    kind text NOT NULL CHECK (kind IN ('role', 'account')),
    PRIMARY KEY (namespace_id, kind, login, verb)
);

-- name: retention_policies
-- Without a row nothing of a topic is ever removed.
CREATE TABLE retention_policies (
    topic_id bigint PRIMARY KEY,
    minimum_age_seconds bigint NOT NULL CHECK (minimum_age_seconds >= 0),
    -- How many archived copies are needed before a log epoch goes; 0: nothing has to be archived.
    copies integer NOT NULL CHECK (copies >= 0),
    version integer NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_by text NOT NULL,
    -- Who has set it: 'hand', or 'file ' and the name of the file that owns it.
    origin text COLLATE "C" NOT NULL DEFAULT 'hand',
    -- On which targets copies count.
    targets text[] COLLATE "C" NOT NULL DEFAULT '{}',
    -- How many bytes of the topic stay at most; NULL: no limit. Above it retention waits neither for the age nor for a
    -- subscription.
    max_bytes bigint CHECK (max_bytes >= 1)
);

-- name: namespaces
-- Hierarchical names. A name is found by its hash: it may be longer than an index entry, and a collation that ignores
-- trailing blanks would take two names for one.
CREATE TABLE IF NOT EXISTS namespaces (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    -- 0 is the root, so that the rule about siblings binds there too.
    parent_id BIGINT NOT NULL,
    name VARCHAR(500) NOT NULL,
    path VARCHAR(4000) NOT NULL,
    name_hash BINARY(32) GENERATED ALWAYS AS (UNHEX(SHA2(name, 256))) STORED,
    path_hash BINARY(32) GENERATED ALWAYS AS (UNHEX(SHA2(path, 256))) STORED,
    created_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    UNIQUE KEY namespaces_sibling (parent_id, name_hash),
    UNIQUE KEY namespaces_path (path_hash)
) ENGINE = InnoDB;

-- name: name_tree
-- One row, on which nobody has rights: whoever changes the tree of names locks it, and whoever creates a name shares
-- the lock.
CREATE TABLE IF NOT EXISTS name_tree (
    singleton BOOLEAN NOT NULL PRIMARY KEY
) ENGINE = InnoDB;

-- name: first_rows_of_name_tree
-- The row to lock.
INSERT IGNORE INTO name_tree (singleton) VALUES (TRUE);

-- name: topics
-- The address is 'namespace/path/topic'; publish finds a topic by the hash of it with one index probe.
CREATE TABLE IF NOT EXISTS topics (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    namespace_id BIGINT NOT NULL,
    name VARCHAR(500) NOT NULL,
    address VARCHAR(4000) NOT NULL,
    address_hash BINARY(32) GENERATED ALWAYS AS (UNHEX(SHA2(address, 256))) STORED,
    partitions INT NOT NULL,
    max_payload_bytes INT NOT NULL DEFAULT 1048576,
    -- How an event's partition is chosen.
    strategy VARCHAR(255) NOT NULL DEFAULT 'crc32',
    -- The limits of the back pressure; NULL: none.
    max_unsequenced_events BIGINT,
    max_unsequenced_bytes BIGINT,
    -- Rights are asked for.
    restricted BOOLEAN NOT NULL DEFAULT FALSE,
    created_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    -- What sinks and archives hold is named by this: the address at the topic's creation, and its id. A topic keeps it,
    -- and no other gets it.
    known_as VARCHAR(4030),
    UNIQUE KEY topics_address (address_hash),
    KEY topics_namespace (namespace_id),
    KEY topics_listed (address(600)),
    CONSTRAINT topics_partitions CHECK (partitions BETWEEN 1 AND 65536)
) ENGINE = InnoDB;

-- name: partitions
-- id = topic id * 65536 + number, so that any client computes it without a join.
CREATE TABLE IF NOT EXISTS partitions (
    id BIGINT NOT NULL PRIMARY KEY,
    topic_id BIGINT NOT NULL,
    number INT NOT NULL,
    -- The first sequence that fetch answers from the database.
    low_sequence BIGINT NOT NULL DEFAULT 1,
    UNIQUE KEY partitions_number (topic_id, number)
) ENGINE = InnoDB;

-- name: deleted_topics
-- Topics that are gone. Events of transactions that still saw one are discarded by the sequencer, and counted here.
CREATE TABLE IF NOT EXISTS deleted_topics (
    topic_id BIGINT NOT NULL PRIMARY KEY,
    address VARCHAR(4000) NOT NULL,
    deleted_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    deleted_by VARCHAR(300) NOT NULL,
    discarded BIGINT NOT NULL DEFAULT 0
) ENGINE = InnoDB;

-- name: namespace_grants
-- Who may do what in a namespace and below it. A namespace is restricted as soon as one row names it or one above it.
CREATE TABLE IF NOT EXISTS namespace_grants (
    namespace_id BIGINT NOT NULL,
    -- The name of a user, at whatever host, or of a role, or the id of an account. None of them need be there any more:
    -- then the row still keeps the others out.
    login VARCHAR(255) NOT NULL,
    -- consume includes receive, acknowledge and peek, which can also be given one by one.
    verb VARCHAR(20) NOT NULL,
    granted_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    granted_by VARCHAR(400) NOT NULL,
    -- An account is no login: a user who has the name of an account's id has none of its rights.
    kind VARCHAR(20) NOT NULL,
    PRIMARY KEY (namespace_id, kind, login, verb),
    CONSTRAINT namespace_grants_kind CHECK (kind IN ('role', 'account')),
    CONSTRAINT namespace_grants_verb
        CHECK (verb IN ('publish', 'consume', 'operate', 'read', 'receive', 'acknowledge', 'peek'))
) ENGINE = InnoDB;

-- name: retention_policies
-- Without a row nothing of a topic is ever removed.
CREATE TABLE IF NOT EXISTS retention_policies (
    topic_id BIGINT NOT NULL PRIMARY KEY,
    minimum_age_seconds BIGINT NOT NULL,
    -- How many archived copies are needed before a log epoch goes; 0: nothing has to be archived.
    copies INT NOT NULL,
    version INT NOT NULL,
    updated_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    updated_by VARCHAR(300) NOT NULL,
    -- Who has set it: 'hand', or 'file ' and the name of the file that owns it.
    origin VARCHAR(600) NOT NULL DEFAULT 'hand',
    -- On which targets copies count: a JSON array.
    targets VARCHAR(4000) NOT NULL DEFAULT '[]',
    -- How many bytes of the topic stay at most; NULL: no limit. Above it retention waits neither for the age nor for a
    -- subscription.
    max_bytes BIGINT,
    CONSTRAINT retention_policies_bounds CHECK (minimum_age_seconds >= 0 AND copies >= 0),
    CONSTRAINT retention_policies_limit CHECK (max_bytes >= 1)
) ENGINE = InnoDB;

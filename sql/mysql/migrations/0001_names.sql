-- name: create_numbers
-- 0 to 65,535, for statements that need a row for each place of something.
CREATE TABLE IF NOT EXISTS numbers (
    n INT NOT NULL PRIMARY KEY
) ENGINE = InnoDB;

-- name: fill_numbers
-- Four digits to the base of 16.
INSERT IGNORE INTO numbers (n)
SELECT a.d + 16 * b.d + 256 * c.d + 4096 * d.d
FROM (SELECT 0 AS d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 5
      UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9 UNION ALL SELECT 10 UNION ALL SELECT 11
      UNION ALL SELECT 12 UNION ALL SELECT 13 UNION ALL SELECT 14 UNION ALL SELECT 15) AS a
CROSS JOIN (SELECT 0 AS d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 5
      UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9 UNION ALL SELECT 10 UNION ALL SELECT 11
      UNION ALL SELECT 12 UNION ALL SELECT 13 UNION ALL SELECT 14 UNION ALL SELECT 15) AS b
CROSS JOIN (SELECT 0 AS d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 5
      UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9 UNION ALL SELECT 10 UNION ALL SELECT 11
      UNION ALL SELECT 12 UNION ALL SELECT 13 UNION ALL SELECT 14 UNION ALL SELECT 15) AS c
CROSS JOIN (SELECT 0 AS d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 5
      UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9 UNION ALL SELECT 10 UNION ALL SELECT 11
      UNION ALL SELECT 12 UNION ALL SELECT 13 UNION ALL SELECT 14 UNION ALL SELECT 15) AS d;

-- name: create_places
-- (1, 0), (2, 0), (2, 1), (4, 0), ...: what takes a packed row apart joins the smallest power of two that is large enough, so
-- that no row is looked at in vain more than once.
CREATE TABLE IF NOT EXISTS places (
    size INT NOT NULL,
    n INT NOT NULL,
    PRIMARY KEY (size, n)
) ENGINE = InnoDB;

-- name: fill_places
-- Up to 1,024.
INSERT IGNORE INTO places (size, n)
SELECT 1 << power.n, place.n
FROM numbers AS power JOIN numbers AS place ON place.n < 1 << power.n
WHERE power.n <= 10 AND place.n < 1024;

-- name: create_namespaces
-- Hierarchical names. parent_id 0 is the root, so that the sibling rule binds there too. A name is found by its hash: it
-- may be longer than an index entry, and a collation that ignores trailing blanks would take two names for one.
CREATE TABLE IF NOT EXISTS namespaces (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    parent_id BIGINT NOT NULL,
    name VARCHAR(500) NOT NULL,
    path VARCHAR(4000) NOT NULL,
    name_hash BINARY(32) GENERATED ALWAYS AS (UNHEX(SHA2(name, 256))) STORED,
    path_hash BINARY(32) GENERATED ALWAYS AS (UNHEX(SHA2(path, 256))) STORED,
    created_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    UNIQUE KEY namespaces_sibling (parent_id, name_hash),
    UNIQUE KEY namespaces_path (path_hash)
) ENGINE = InnoDB;

-- name: create_name_tree
-- One row, on which nobody has rights: whoever changes the tree of names locks it, and creates share it.
CREATE TABLE IF NOT EXISTS name_tree (
    singleton BOOLEAN NOT NULL PRIMARY KEY
) ENGINE = InnoDB;

-- name: fill_name_tree
-- The row to lock.
INSERT IGNORE INTO name_tree (singleton) VALUES (TRUE);

-- name: create_topics
-- The address is 'namespace/path/topic'; publish finds a topic by the hash of it with one index probe. strategy says how a
-- partition is chosen; the limits are the back pressure's, NULL for none; restricted says that rights are asked for.
CREATE TABLE IF NOT EXISTS topics (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    namespace_id BIGINT NOT NULL,
    name VARCHAR(500) NOT NULL,
    address VARCHAR(4000) NOT NULL,
    address_hash BINARY(32) GENERATED ALWAYS AS (UNHEX(SHA2(address, 256))) STORED,
    partitions INT NOT NULL,
    max_payload_bytes INT NOT NULL DEFAULT 1048576,
    strategy VARCHAR(255) NOT NULL DEFAULT 'crc32',
    max_unsequenced_events BIGINT,
    max_unsequenced_bytes BIGINT,
    restricted BOOLEAN NOT NULL DEFAULT FALSE,
    created_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    UNIQUE KEY topics_address (address_hash),
    KEY topics_namespace (namespace_id),
    CONSTRAINT topics_partitions CHECK (partitions BETWEEN 1 AND 65536)
) ENGINE = InnoDB;

-- name: create_deleted_topics
-- Topics that are gone. Events of transactions that still saw one are discarded by the sequencer, and counted here.
CREATE TABLE IF NOT EXISTS deleted_topics (
    topic_id BIGINT NOT NULL PRIMARY KEY,
    address VARCHAR(4000) NOT NULL,
    deleted_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    deleted_by VARCHAR(300) NOT NULL,
    discarded BIGINT NOT NULL DEFAULT 0
) ENGINE = InnoDB;

-- name: create_partitions
-- id = topic id * 65536 + number: computed by any client, no join. low_sequence is the first one that fetch answers.
CREATE TABLE IF NOT EXISTS partitions (
    id BIGINT NOT NULL PRIMARY KEY,
    topic_id BIGINT NOT NULL,
    number INT NOT NULL,
    low_sequence BIGINT NOT NULL DEFAULT 1,
    UNIQUE KEY partitions_number (topic_id, number)
) ENGINE = InnoDB;

-- name: create_retention_policies
-- Without a row nothing of a topic is ever removed.
CREATE TABLE IF NOT EXISTS retention_policies (
    topic_id BIGINT NOT NULL PRIMARY KEY,
    minimum_age_seconds BIGINT NOT NULL,
    copies INT NOT NULL,
    version INT NOT NULL,
    updated_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    updated_by VARCHAR(300) NOT NULL,
    CONSTRAINT retention_policies_bounds CHECK (minimum_age_seconds >= 0 AND copies >= 1)
) ENGINE = InnoDB;

-- name: create_settings
-- What can be set for the whole log; a name without a row has its default.
CREATE TABLE IF NOT EXISTS settings (
    name VARCHAR(100) NOT NULL PRIMARY KEY,
    value DOUBLE NOT NULL,
    updated_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    updated_by VARCHAR(300) NOT NULL
) ENGINE = InnoDB;

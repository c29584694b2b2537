-- name: create_staged_writes
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

-- name: store_staged_writes_as_they_are
-- They are read once, so they are not worth the time of compressing them.
ALTER TABLE staged_writes
    ALTER COLUMN topics SET STORAGE EXTERNAL,
    ALTER COLUMN payloads SET STORAGE EXTERNAL,
    ALTER COLUMN keys SET STORAGE EXTERNAL,
    ALTER COLUMN headers SET STORAGE EXTERNAL;

-- name: create_claimed_writes
-- The versions that writers have published. A version is a login's: another login that uses the same name neither
-- meets it nor learns of it.
CREATE TABLE claimed_writes (
    login text COLLATE "C" NOT NULL,
    writer text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    claimed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (login, writer, version)
);

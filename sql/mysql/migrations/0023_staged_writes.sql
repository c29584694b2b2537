-- name: create_staged_writes
-- Chunks of events that tasks have written and that no transaction has published yet: JSON arrays as publish_batch
-- takes them.
CREATE TABLE IF NOT EXISTS staged_writes (
    stage BINARY(16) NOT NULL,
    chunk INT NOT NULL,
    login VARCHAR(400) NOT NULL,
    staged_at DATETIME(6) NOT NULL,
    events LONGTEXT NOT NULL,
    PRIMARY KEY (stage, chunk),
    KEY staged_writes_age (staged_at)
) ENGINE = InnoDB;

-- name: create_claimed_writes
-- The versions that writers have published. The hash is that of login and name: another login that uses the same name
-- neither meets it nor learns of it.
CREATE TABLE IF NOT EXISTS claimed_writes (
    writer_hash BINARY(32) NOT NULL,
    version BIGINT NOT NULL,
    login VARCHAR(400) NOT NULL,
    writer VARCHAR(500) NOT NULL,
    claimed_at DATETIME(6) NOT NULL,
    PRIMARY KEY (writer_hash, version)
) ENGINE = InnoDB;

-- name: add_guarded_drops
-- On which targets copies count (a policy of before names none until it is set again: nothing is dropped by it
-- meanwhile), and under which run a log epoch was dropped. A migration can be applied again after it was cut short, so
-- what is there already is passed over.
CREATE PROCEDURE add_guarded_drops()
BEGIN
    IF NOT EXISTS (
        SELECT * FROM information_schema.COLUMNS AS c
        WHERE c.TABLE_SCHEMA = DATABASE() AND c.TABLE_NAME = 'retention_policies' AND c.COLUMN_NAME = 'targets') THEN
        ALTER TABLE retention_policies ADD COLUMN targets VARCHAR(4000) NOT NULL DEFAULT '[]';
    END IF;
    IF NOT EXISTS (
        SELECT * FROM information_schema.COLUMNS AS c
        WHERE c.TABLE_SCHEMA = DATABASE() AND c.TABLE_NAME = 'retention_drops' AND c.COLUMN_NAME = 'run') THEN
        ALTER TABLE retention_drops ADD COLUMN run CHAR(36) CHARACTER SET ascii;
    END IF;
    IF NOT EXISTS (
        SELECT * FROM information_schema.STATISTICS AS s
        WHERE s.TABLE_SCHEMA = DATABASE() AND s.TABLE_NAME = 'log_epochs' AND s.INDEX_NAME = 'log_epochs_kept') THEN
        ALTER TABLE log_epochs ADD INDEX log_epochs_kept (partition_id, dropped_at, log_epoch);
    END IF;
END;

-- name: apply_guarded_drops
-- Adds what is not there yet.
CALL add_guarded_drops();

-- name: forget_guarded_drops
-- It was for this migration.
DROP PROCEDURE add_guarded_drops;

-- name: create_clean_runs
-- A run of clean: who may drop under its token, and how many damaged copies it has found.
CREATE TABLE IF NOT EXISTS clean_runs (
    run CHAR(36) CHARACTER SET ascii NOT NULL PRIMARY KEY,
    topic_id BIGINT NOT NULL,
    begun_by VARCHAR(400) NOT NULL,
    begun_at DATETIME(6) NOT NULL,
    ended_at DATETIME(6),
    damaged INT NOT NULL DEFAULT 0,
    KEY clean_runs_begun (begun_at)
) ENGINE = InnoDB;

-- name: create_clean_readings
-- The copies that a run has read back and found to be what was sealed: only these let a log epoch go.
CREATE TABLE IF NOT EXISTS clean_readings (
    run CHAR(36) CHARACTER SET ascii NOT NULL,
    partition_id BIGINT NOT NULL,
    log_epoch INT NOT NULL,
    target VARCHAR(255) NOT NULL,
    event_count BIGINT NOT NULL,
    checksum VARCHAR(200) NOT NULL,
    read_at DATETIME(6) NOT NULL,
    PRIMARY KEY (run, partition_id, log_epoch, target)
) ENGINE = InnoDB;

-- name: create_installation
-- What the marker of an archive target says: whose it is.
CREATE TABLE IF NOT EXISTS installation (
    singleton BOOLEAN NOT NULL PRIMARY KEY,
    id CHAR(36) CHARACTER SET ascii NOT NULL,
    CONSTRAINT installation_singleton CHECK (singleton = TRUE)
) ENGINE = InnoDB;

-- name: name_installation
-- Chosen once; it goes with the database's backups.
INSERT IGNORE INTO installation (singleton, id) VALUES (TRUE, UUID());

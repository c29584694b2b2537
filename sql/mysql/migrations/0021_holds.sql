-- name: create_legal_holds
-- Legal holds: what no retention policy may remove until somebody releases it. number NULL: the whole topic, also
-- partitions that come later. last_sequence NULL: without an end. A row stays after its release: it is the record.
CREATE TABLE IF NOT EXISTS legal_holds (
    topic_id BIGINT NOT NULL,
    name VARCHAR(500) NOT NULL,
    number INT,
    first_sequence BIGINT NOT NULL,
    last_sequence BIGINT,
    reason TEXT NOT NULL,
    placed_at DATETIME(6) NOT NULL,
    placed_by VARCHAR(400) NOT NULL,
    released_at DATETIME(6),
    released_by VARCHAR(400),
    release_reason TEXT,
    PRIMARY KEY (topic_id, name, placed_at),
    KEY legal_holds_topic (topic_id, released_at),
    CONSTRAINT legal_holds_range CHECK (
        first_sequence >= 1 AND COALESCE(last_sequence, first_sequence) >= first_sequence)
) ENGINE = InnoDB;

-- name: settings_of_keeping
-- For how long retention waits for a subscription, and how long a subscription's dead letters are kept; 0: for ever.
REPLACE INTO policy_settings (kind, setting, type, preset, lowest, highest, words) VALUES
    ('keep', 'max_lag_seconds', 'number', '0', 0, 3153600000, NULL),
    ('keep', 'dead_letter_seconds', 'number', '0', 0, 3153600000, NULL);

-- name: drop_add_keeping
-- What an installation that broke off has left.
DROP PROCEDURE IF EXISTS add_keeping;

-- name: create_add_keeping
-- Changes of tables that exist, each only where it was not made yet.
CREATE PROCEDURE add_keeping()
BEGIN
    IF NOT EXISTS (
        SELECT * FROM information_schema.COLUMNS AS c
        WHERE c.TABLE_SCHEMA = DATABASE() AND c.TABLE_NAME = 'subscriptions' AND c.COLUMN_NAME = 'max_lag_seconds') THEN
        ALTER TABLE subscriptions
            ADD COLUMN max_lag_seconds DOUBLE NOT NULL DEFAULT 0,
            ADD COLUMN dead_letter_seconds DOUBLE NOT NULL DEFAULT 0;
    END IF;
    IF NOT EXISTS (
        SELECT * FROM information_schema.STATISTICS AS s
        WHERE s.TABLE_SCHEMA = DATABASE() AND s.TABLE_NAME = 'dead_letters' AND s.INDEX_NAME = 'dead_letters_died') THEN
        ALTER TABLE dead_letters ADD KEY dead_letters_died (subscription_id, died_at);
    END IF;
END;

-- name: add_keeping
-- Waits for whoever uses these tables, a second at a time.
CALL add_keeping();

-- name: forget_add_keeping
-- It was for this migration.
DROP PROCEDURE add_keeping;

-- name: retention_without_copies
-- A policy may say that nothing has to be archived: 0 copies, and no target.
ALTER TABLE retention_policies
    DROP /*!80000 CHECK */ /*M! CONSTRAINT */ retention_policies_bounds,
    ADD CONSTRAINT retention_policies_bounds CHECK (minimum_age_seconds >= 0 AND copies >= 0);

-- name: create_skips
-- What retention removed before a subscription had read it, because its policy does not let it wait for longer. The row
-- stays: nothing is skipped in silence.
CREATE TABLE IF NOT EXISTS skips (
    subscription_id BIGINT NOT NULL,
    partition_id BIGINT NOT NULL,
    log_epoch INT NOT NULL,
    first_sequence BIGINT NOT NULL,
    last_sequence BIGINT NOT NULL,
    max_lag_seconds DOUBLE NOT NULL,
    policy_version INT NOT NULL,
    run CHAR(36) CHARACTER SET ascii NOT NULL,
    skipped_at DATETIME(6) NOT NULL,
    PRIMARY KEY (subscription_id, partition_id, log_epoch)
) ENGINE = InnoDB;

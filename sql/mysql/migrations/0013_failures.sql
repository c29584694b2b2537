-- name: drop_change_dead_letters
-- What an installation that broke off has left.
DROP PROCEDURE IF EXISTS change_dead_letters;

-- name: create_change_dead_letters
-- Changes of tables that exist, each only where it was not made yet. A dead letter can wait for more than an operator's look.
-- parked: later events of its key wait behind it, in the order of history and sequence. redriven_at: it is to be handed out again.
-- attempts counts how often it was handed out, attempts_before how often it had been when it was redriven last. Of letters from
-- before, nobody knows. lease_history tells whether the holder before has died.
CREATE PROCEDURE change_dead_letters()
BEGIN
    IF NOT EXISTS (
        SELECT * FROM information_schema.COLUMNS AS c
        WHERE c.TABLE_SCHEMA = DATABASE() AND c.TABLE_NAME = 'dead_letters' AND c.COLUMN_NAME = 'parked') THEN
        ALTER TABLE dead_letters
            ADD COLUMN id BIGINT NOT NULL AUTO_INCREMENT,
            ADD COLUMN attempts INT NOT NULL DEFAULT 1,
            ADD COLUMN attempts_before INT NOT NULL DEFAULT 0,
            ADD COLUMN parked BOOLEAN NOT NULL DEFAULT FALSE,
            ADD COLUMN redriven_at DATETIME(6),
            ADD UNIQUE KEY dead_letters_id (id),
            ADD KEY dead_letters_parked (subscription_id, parked, partition_id, `key`, history, sequence),
            ADD KEY dead_letters_redriven (subscription_id, partition_id, redriven_at);
    END IF;
    IF NOT EXISTS (
        SELECT * FROM information_schema.STATISTICS AS s
        WHERE s.TABLE_SCHEMA = DATABASE() AND s.TABLE_NAME = 'lease_history' AND s.INDEX_NAME = 'lease_history_partition') THEN
        ALTER TABLE lease_history ADD KEY lease_history_partition (subscription_id, partition_id, lease_epoch);
    END IF;
END;

-- name: change_dead_letters
-- Waits for whoever uses these tables, a second at a time.
CALL change_dead_letters();

-- name: forget_change_dead_letters
-- It was for this migration.
DROP PROCEDURE change_dead_letters;

-- name: create_attempts
-- How often the event behind a position was handed out, once it is suspected to be what breaks its consumer: a row for a partition
-- that is, or was, in trouble.
CREATE TABLE IF NOT EXISTS attempts (
    subscription_id BIGINT NOT NULL,
    partition_id BIGINT NOT NULL,
    sequence BIGINT NOT NULL,
    history INT NOT NULL,
    attempts INT NOT NULL,
    reason TEXT NOT NULL,
    at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    PRIMARY KEY (subscription_id, partition_id)
) ENGINE = InnoDB;

-- name: create_dropped_letters
-- Dead letters that somebody has thrown away: what they were and why they died, without their payload.
CREATE TABLE IF NOT EXISTS dropped_letters (
    subscription_id BIGINT NOT NULL,
    id BIGINT NOT NULL,
    partition_id BIGINT NOT NULL,
    sequence BIGINT NOT NULL,
    history INT NOT NULL,
    event_id BINARY(16) NOT NULL,
    `key` VARCHAR(255),
    type VARCHAR(255) NOT NULL,
    reason TEXT NOT NULL,
    attempts INT NOT NULL,
    died_at DATETIME(6) NOT NULL,
    dropped_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    dropped_by VARCHAR(400) NOT NULL,
    PRIMARY KEY (subscription_id, id)
) ENGINE = InnoDB;

-- name: turns_of_consumers
-- When a consumer is to check in next, and whether another one's check-in has called it before its time. A migration can be
-- applied again after it was cut short, so what is there already is passed over.
CREATE PROCEDURE add_turns()
BEGIN
    IF NOT EXISTS (
        SELECT * FROM information_schema.COLUMNS AS c
        WHERE c.TABLE_SCHEMA = DATABASE() AND c.TABLE_NAME = 'consumers' AND c.COLUMN_NAME = 'called') THEN
        ALTER TABLE consumers
            ADD COLUMN check_in_at DATETIME(6) NOT NULL DEFAULT '2000-01-01',
            ADD COLUMN called BOOLEAN NOT NULL DEFAULT FALSE;
    END IF;
END;

-- name: add_turns
-- Waits for whoever uses the table.
CALL add_turns();

-- name: forget_add_turns
-- It was for this migration.
DROP PROCEDURE add_turns;

-- name: create_surveys
-- When somebody last looked which partitions of a subscription are active, how many seconds lie between two check-ins of one
-- consumer if all of them together are to keep to target_qps, until when the turns of those who were called are given out, and
-- whether everybody had his share, so that nothing had to move.
CREATE TABLE IF NOT EXISTS surveys (
    subscription_id BIGINT NOT NULL PRIMARY KEY,
    made_at DATETIME(6) NOT NULL,
    pace_seconds DOUBLE NOT NULL,
    called_until DATETIME(6) NOT NULL DEFAULT '2000-01-01',
    balanced BOOLEAN NOT NULL DEFAULT FALSE
) ENGINE = InnoDB;

-- name: create_active_partitions
-- What a survey has found. A row comes and goes with the activity of a partition, not with its events.
CREATE TABLE IF NOT EXISTS active_partitions (
    subscription_id BIGINT NOT NULL,
    partition_id BIGINT NOT NULL,
    PRIMARY KEY (subscription_id, partition_id)
) ENGINE = InnoDB;

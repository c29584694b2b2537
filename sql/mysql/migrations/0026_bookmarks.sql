-- name: create_bookmarks
-- Named positions of a topic, with a row for each partition: the last sequence before it, and the history in which it
-- was placed. lost_in: the history that began when the log ended before this position.
CREATE TABLE IF NOT EXISTS bookmarks (
    topic_id BIGINT NOT NULL,
    name VARCHAR(500) NOT NULL,
    partition_id BIGINT NOT NULL,
    position BIGINT NOT NULL,
    history INT NOT NULL,
    lost_in INT,
    placed_at DATETIME(6) NOT NULL,
    placed_by VARCHAR(400) NOT NULL,
    PRIMARY KEY (topic_id, name, partition_id),
    CONSTRAINT bookmarks_position CHECK (position >= 0)
) ENGINE = InnoDB;

-- name: drop_add_times
-- What an installation that broke off has left.
DROP PROCEDURE IF EXISTS add_times;

-- name: create_add_times
-- No event of a log epoch, or of one before it, was sequenced after sequenced_until. Of those that were sealed before
-- there was this column, only the time of the seal is known. NULL: the migration is not done yet.
CREATE PROCEDURE add_times()
BEGIN
    IF NOT EXISTS (
        SELECT * FROM information_schema.COLUMNS AS c
        WHERE c.TABLE_SCHEMA = DATABASE() AND c.TABLE_NAME = 'log_epochs' AND c.COLUMN_NAME = 'sequenced_until') THEN
        ALTER TABLE log_epochs
            ADD COLUMN sequenced_until DATETIME(6),
            ADD KEY log_epochs_sequenced (partition_id, sequenced_until, log_epoch);
    END IF;
    UPDATE log_epochs AS e
    JOIN (
        SELECT s.partition_id, s.log_epoch,
               MAX(s.sealed_at) OVER (PARTITION BY s.partition_id ORDER BY s.log_epoch) AS until
        FROM log_epochs AS s
    ) AS o ON o.partition_id = e.partition_id AND o.log_epoch = e.log_epoch
    SET e.sequenced_until = o.until
    WHERE e.sequenced_until IS NULL;
    ALTER TABLE log_epochs MODIFY COLUMN sequenced_until DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6));
END;

-- name: add_times
-- Waits for whoever uses the table, a second at a time.
CALL add_times();

-- name: forget_add_times
-- It was for this migration.
DROP PROCEDURE add_times;

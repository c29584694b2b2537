-- name: create_suspected_copies
-- Copies that a reader has found damaged. They count until somebody who may operate the topic has read them back: what
-- a reader cannot read may be its own mount.
CREATE TABLE IF NOT EXISTS suspected_copies (
    partition_id BIGINT NOT NULL,
    log_epoch INT NOT NULL,
    target VARCHAR(255) NOT NULL,
    reason VARCHAR(2000) NOT NULL,
    suspected_at DATETIME(6) NOT NULL,
    PRIMARY KEY (partition_id, log_epoch, target)
) ENGINE = InnoDB;

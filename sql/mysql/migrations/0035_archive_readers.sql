-- name: create_archive_readers
-- Who reads the archive below the low sequence: retention does not wait for it there. Good for one lease_epoch.
CREATE TABLE IF NOT EXISTS archive_readers (
    subscription_id BIGINT NOT NULL,
    partition_id BIGINT NOT NULL,
    lease_epoch BIGINT NOT NULL,
    noted_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    PRIMARY KEY (subscription_id, partition_id)
) ENGINE = InnoDB;

-- name: create_archive_readers
-- Who reads the archive below the low sequence: retention does not wait for it there. Good for one lease_epoch.
CREATE TABLE archive_readers (
    subscription_id bigint NOT NULL,
    partition_id bigint NOT NULL,
    lease_epoch bigint NOT NULL,
    noted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (subscription_id, partition_id)
);

-- name: create_suspected_copies
-- Copies that a reader has found damaged. They count until somebody who may operate the topic has read them back: what
-- a reader cannot read may be its own mount.
CREATE TABLE suspected_copies (
    partition_id bigint NOT NULL,
    log_epoch integer NOT NULL,
    target text COLLATE "C" NOT NULL,
    reason text NOT NULL,
    suspected_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (partition_id, log_epoch, target)
);

-- name: create_removals
-- Subscriptions that are gone, and of which something is still to be deleted. Their names are free, and nobody reads
-- what they left.
CREATE TABLE IF NOT EXISTS removals (
    subscription_id BIGINT NOT NULL PRIMARY KEY,
    name VARCHAR(500) NOT NULL,
    removed_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6))
) ENGINE = InnoDB;

-- name: drop_forget_queue
-- What it deleted in one transaction is now deleted in batches.
DROP PROCEDURE IF EXISTS forget_queue;

-- name: create_leaders
-- Who leads the consumers of a subscription that share partitions by decision, and what he has decided. term is his fence.
CREATE TABLE IF NOT EXISTS leaders (
    subscription_id BIGINT NOT NULL PRIMARY KEY,
    term BIGINT NOT NULL,
    session BINARY(16) NOT NULL,
    decided_in BIGINT NOT NULL DEFAULT 0,
    holders LONGTEXT NOT NULL
) ENGINE = InnoDB;

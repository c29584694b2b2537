-- name: create_inbox
-- In the application's own database: how far each partition of a subscription was handled there, and under which
-- lease. letter_id is 0 for the stream; a redriven dead letter has a row of its own.
-- reads only
CREATE TABLE IF NOT EXISTS penstock_inbox (
    source VARCHAR(100) NOT NULL,
    subscription VARCHAR(500) NOT NULL,
    subscription_hash BINARY(32) GENERATED ALWAYS AS (UNHEX(SHA2(subscription, 256))) STORED,
    partition_id BIGINT NOT NULL,
    letter_id BIGINT NOT NULL,
    history INT NOT NULL,
    sequence BIGINT NOT NULL,
    lease_epoch BIGINT NOT NULL,
    UNIQUE KEY penstock_inbox_partition (source, subscription_hash, partition_id, letter_id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin

-- name: inbox_limit
-- The session's limit that limit_inbox changes.
-- reads only
SELECT @@SESSION./*!80000 wait_timeout */ /*M! idle_transaction_timeout */

-- name: limit_inbox
-- Sets a limit that ends the session if its transaction is idle for too long, because its successor waits for
-- it.
-- reads only
SET SESSION /*!80000 wait_timeout */ /*M! idle_transaction_timeout */ = %(seconds)s

-- name: enter_inbox
-- Adds the row of a partition, if there is none yet.
INSERT IGNORE INTO penstock_inbox (source, subscription, partition_id, letter_id, history, sequence, lease_epoch)
VALUES (%(source)s, %(subscription)s, %(partition_id)s, %(letter_id)s, 0, 0, 0)

-- name: lock_inbox
-- How far a partition was handled. It locks the row, so that no other session handles the partition until the
-- transaction ends.
SELECT history, sequence, lease_epoch
FROM penstock_inbox
WHERE source = %(source)s AND subscription_hash = UNHEX(SHA2(%(subscription)s, 256)) AND partition_id = %(partition_id)s
    AND letter_id = %(letter_id)s
FOR UPDATE

-- name: move_inbox
-- Records what is handled in this transaction.
UPDATE penstock_inbox
SET history = %(history)s, sequence = %(sequence)s, lease_epoch = %(lease_epoch)s
WHERE source = %(source)s AND subscription_hash = UNHEX(SHA2(%(subscription)s, 256)) AND partition_id = %(partition_id)s
    AND letter_id = %(letter_id)s

-- name: forget_inbox
-- Forgets what a subscription has handled, so that it can be handled again.
DELETE FROM penstock_inbox WHERE source = %(source)s AND subscription_hash = UNHEX(SHA2(%(subscription)s, 256))

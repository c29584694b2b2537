-- name: drop_change_for_queue_keys
-- What an installation that broke off has left.
DROP PROCEDURE IF EXISTS change_for_queue_keys;

-- name: create_change_for_queue_keys
-- Whether a queue hands out one event of a key at a time, in order (key), or does not look at keys (none).
CREATE PROCEDURE change_for_queue_keys()
BEGIN
    IF NOT EXISTS (
        SELECT * FROM information_schema.COLUMNS AS c
        WHERE c.TABLE_SCHEMA = DATABASE() AND c.TABLE_NAME = 'queues' AND c.COLUMN_NAME = 'order') THEN
        ALTER TABLE queues ADD COLUMN `order` VARCHAR(10) NOT NULL DEFAULT 'none',
            ADD CONSTRAINT queues_order CHECK (`order` IN ('none', 'key'));
    END IF;
END;

-- name: change_for_queue_keys
-- Waits for whoever uses the table, a second at a time.
CALL change_for_queue_keys();

-- name: forget_change_for_queue_keys
-- It was for this migration.
DROP PROCEDURE change_for_queue_keys;

-- name: create_queue_keys
-- The unfinished events with a key that a queue has dealt whose order is key. first: the one of its key that can be
-- handed out, is handed out or waits for a retry. behind: it waits for that one. unsure: as behind, but that one was
-- just being finished, so the dealer looks again. waiting_id: the copy of the event, 0 while only the log has it. Of
-- the key no more than a digest is kept.
CREATE TABLE IF NOT EXISTS queue_keys (
    subscription_id BIGINT NOT NULL,
    partition_id BIGINT NOT NULL,
    sequence BIGINT NOT NULL,
    waiting_id BIGINT NOT NULL DEFAULT 0,
    key_digest BINARY(16) NOT NULL,
    state VARCHAR(10) NOT NULL,
    PRIMARY KEY (subscription_id, partition_id, sequence, waiting_id),
    KEY queue_keys_key (subscription_id, partition_id, key_digest, sequence),
    KEY queue_keys_state (subscription_id, state, partition_id, sequence),
    CONSTRAINT queue_keys_states CHECK (state IN ('first', 'behind', 'unsure'))
) ENGINE = InnoDB;

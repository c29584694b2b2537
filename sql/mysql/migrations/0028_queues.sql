-- name: drop_change_for_queues
-- What an installation that broke off has left.
DROP PROCEDURE IF EXISTS change_for_queues;

-- name: create_change_for_queues
-- In queue mode position is before the lowest unfinished sequence, and reached is the last one that was dealt.
CREATE PROCEDURE change_for_queues()
BEGIN
    IF NOT EXISTS (
        SELECT * FROM information_schema.COLUMNS AS c
        WHERE c.TABLE_SCHEMA = DATABASE() AND c.TABLE_NAME = 'positions' AND c.COLUMN_NAME = 'reached') THEN
        ALTER TABLE positions ADD COLUMN reached BIGINT;
    END IF;
END;

-- name: change_for_queues
-- Waits for whoever uses the table, a second at a time.
CALL change_for_queues();

-- name: forget_change_for_queues
-- It was for this migration.
DROP PROCEDURE change_for_queues;

-- name: reasons_of_positions
-- The dealer of a queue moves positions too.
ALTER TABLE positions
    DROP /*!80000 CHECK */ /*M! CONSTRAINT */ positions_reason,
    ADD CONSTRAINT positions_reason CHECK (reason IN ('start', 'commit', 'seek', 'carried', 'history', 'queue'));

-- name: modes_of_subscriptions
-- A subscription in queue mode hands out single events; procedures of streams refuse it.
ALTER TABLE subscriptions
    DROP /*!80000 CHECK */ /*M! CONSTRAINT */ subscriptions_mode,
    ADD CONSTRAINT subscriptions_mode CHECK (mode IN ('stream', 'queue'));

-- name: rights_of_queues
-- Receive, acknowledge and peek can be given one by one; consume includes them.
ALTER TABLE namespace_grants
    DROP /*!80000 CHECK */ /*M! CONSTRAINT */ namespace_grants_verb,
    ADD CONSTRAINT namespace_grants_verb
        CHECK (verb IN ('publish', 'consume', 'operate', 'read', 'receive', 'acknowledge', 'peek'));

-- name: create_queues
-- The settings of a subscription in queue mode. Its row is the lock of the dealer and is hardly ever updated.
CREATE TABLE IF NOT EXISTS queues (
    subscription_id BIGINT NOT NULL PRIMARY KEY,
    visibility_seconds DOUBLE NOT NULL DEFAULT 30,
    max_deliveries INT NOT NULL DEFAULT 5,
    max_failures INT NOT NULL DEFAULT 5,
    max_in_flight INT NOT NULL DEFAULT 100000,
    first_backoff_seconds DOUBLE NOT NULL DEFAULT 2,
    longest_backoff_seconds DOUBLE NOT NULL DEFAULT 300,
    jitter DOUBLE NOT NULL DEFAULT 0.2
) ENGINE = InnoDB;

-- name: create_queue_turns
-- What the dealer of a queue found last. free_id and floor_id: below them no range is free, or there at all.
-- rest_until: when somebody has to look again. One row for each queue: here an old snapshot does not make an update
-- slow for others.
CREATE TABLE IF NOT EXISTS queue_turns (
    subscription_id BIGINT NOT NULL PRIMARY KEY,
    floor_id BIGINT NOT NULL DEFAULT 1,
    free_id BIGINT NOT NULL DEFAULT 1,
    last_id BIGINT NOT NULL DEFAULT 0,
    range_size INT NOT NULL DEFAULT 1,
    rest_until DATETIME(6) NOT NULL DEFAULT '2000-01-01'
) ENGINE = InnoDB;

-- name: create_queue_ranges
-- What a queue has dealt and not finished: ranges of sequences, each free (no token) or claimed. A claim that ended
-- is deleted, one that diverged is cut. former: the claim by whose receipts it can still be finished, with their
-- token once it is free again. waiting_id: its event, when it is one that came back out of the window.
CREATE TABLE IF NOT EXISTS queue_ranges (
    subscription_id BIGINT NOT NULL,
    id BIGINT NOT NULL AUTO_INCREMENT,
    partition_id BIGINT NOT NULL,
    first_sequence BIGINT NOT NULL,
    last_sequence BIGINT NOT NULL,
    deliveries INT NOT NULL DEFAULT 0,
    token BINARY(16),
    deadline DATETIME(6),
    waiting_id BIGINT,
    former BIGINT,
    former_token BINARY(16),
    PRIMARY KEY (subscription_id, id),
    KEY queue_ranges_id (id),
    KEY queue_ranges_former (former)
) ENGINE = InnoDB;

-- name: create_queue_waiting
-- Events out of the window: they wait for a retry, or have a body of their own. Each is a whole copy, so that
-- neither retention nor the window waits for it. due_at NULL: it is in the window again.
CREATE TABLE IF NOT EXISTS queue_waiting (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    subscription_id BIGINT NOT NULL,
    partition_id BIGINT NOT NULL,
    sequence BIGINT NOT NULL,
    history INT NOT NULL,
    due_at DATETIME(6),
    deliveries INT NOT NULL,
    failures INT NOT NULL,
    reason TEXT NOT NULL,
    event_id BINARY(16) NOT NULL,
    `key` VARCHAR(255),
    type VARCHAR(255) NOT NULL,
    content_type VARCHAR(255) NOT NULL,
    headers MEDIUMTEXT,
    payload LONGBLOB NOT NULL,
    body LONGBLOB,
    created_at DATETIME(6) NOT NULL,
    sequenced_at DATETIME(6) NOT NULL,
    KEY queue_waiting_due (subscription_id, due_at),
    KEY queue_waiting_place (subscription_id, partition_id, sequence)
) ENGINE = InnoDB;

-- name: create_queue_purges
-- What was thrown away unread, by whom: no event is skipped without a row.
CREATE TABLE IF NOT EXISTS queue_purges (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    subscription_id BIGINT NOT NULL,
    partition_id BIGINT NOT NULL,
    first_sequence BIGINT NOT NULL,
    last_sequence BIGINT NOT NULL,
    purged_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    purged_by VARCHAR(400) NOT NULL
) ENGINE = InnoDB;

-- name: drop_change_steering
-- What an installation that broke off has left.
DROP PROCEDURE IF EXISTS change_steering;

-- name: create_change_steering
-- Changes of tables that exist, each only where it was not made yet. A subscription is paused since a time, by somebody, for a
-- reason; NULL while it is not. Statistics ask for the last hour of one subscription.
CREATE PROCEDURE change_steering()
BEGIN
    IF NOT EXISTS (
        SELECT * FROM information_schema.COLUMNS AS c
        WHERE c.TABLE_SCHEMA = DATABASE() AND c.TABLE_NAME = 'subscriptions' AND c.COLUMN_NAME = 'paused_at') THEN
        ALTER TABLE subscriptions
            ADD COLUMN paused_at DATETIME(6),
            ADD COLUMN paused_by VARCHAR(400),
            ADD COLUMN paused_reason VARCHAR(1000);
    END IF;
    IF NOT EXISTS (
        SELECT * FROM information_schema.STATISTICS AS s
        WHERE s.TABLE_SCHEMA = DATABASE() AND s.TABLE_NAME = 'lease_history' AND s.INDEX_NAME = 'lease_history_time') THEN
        ALTER TABLE lease_history ADD KEY lease_history_time (subscription_id, at);
    END IF;
END;

-- name: change_steering
-- Waits for whoever uses these tables, a second at a time.
CALL change_steering();

-- name: forget_change_steering
-- It was for this migration.
DROP PROCEDURE change_steering;

-- name: create_consumer_topics
-- The topics to which a consumer has limited itself; none for all of its subscription. They go with the consumer.
CREATE TABLE IF NOT EXISTS consumer_topics (
    subscription_id BIGINT NOT NULL,
    consumer VARCHAR(255) NOT NULL,
    topic_id BIGINT NOT NULL,
    PRIMARY KEY (subscription_id, consumer, topic_id),
    CONSTRAINT consumer_topics_consumer FOREIGN KEY (subscription_id, consumer) REFERENCES consumers (subscription_id, id)
        ON DELETE CASCADE
) ENGINE = InnoDB;

-- name: create_consumer_errors
-- The last error that a consumer has reported; goes with the consumer.
CREATE TABLE IF NOT EXISTS consumer_errors (
    subscription_id BIGINT NOT NULL,
    consumer VARCHAR(255) NOT NULL,
    error TEXT NOT NULL,
    at DATETIME(6) NOT NULL,
    PRIMARY KEY (subscription_id, consumer),
    CONSTRAINT consumer_errors_consumer FOREIGN KEY (subscription_id, consumer) REFERENCES consumers (subscription_id, id)
        ON DELETE CASCADE
) ENGINE = InnoDB;

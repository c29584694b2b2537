-- name: pause_of_subscriptions
-- Since when a subscription is paused, by whom and why; NULL while it is not.
ALTER TABLE subscriptions
    ADD COLUMN paused_at timestamptz,
    ADD COLUMN paused_by text,
    ADD COLUMN paused_reason text;

-- name: create_consumer_topics
-- The topics to which a consumer has limited itself; none for all of its subscription. They go with the consumer.
CREATE TABLE consumer_topics (
    subscription_id bigint NOT NULL,
    consumer text COLLATE "C" NOT NULL,
    topic_id bigint NOT NULL,
    PRIMARY KEY (subscription_id, consumer, topic_id),
    FOREIGN KEY (subscription_id, consumer) REFERENCES consumers (subscription_id, id) ON DELETE CASCADE
);

-- name: create_consumer_errors
-- The last error that a consumer has reported; goes with the consumer.
CREATE TABLE consumer_errors (
    subscription_id bigint NOT NULL,
    consumer text COLLATE "C" NOT NULL,
    error text NOT NULL,
    at timestamptz NOT NULL,
    PRIMARY KEY (subscription_id, consumer),
    FOREIGN KEY (subscription_id, consumer) REFERENCES consumers (subscription_id, id) ON DELETE CASCADE
);

-- name: index_lease_history_time
-- Statistics ask for the last hour of one subscription.
CREATE INDEX lease_history_time ON lease_history (subscription_id, at);

-- name: drop_changed_functions
-- A consumer may name topics, and so shares are of some topics or all.
DROP FUNCTION IF EXISTS "join"(text, text, uuid, double precision);
DROP FUNCTION IF EXISTS lease_board(bigint, timestamptz);
DROP FUNCTION IF EXISTS quotas(bigint, bigint);
DROP FUNCTION IF EXISTS release_surplus(subscriptions, text, bigint, timestamptz);
DROP FUNCTION IF EXISTS acquire(bigint, text, bigint, timestamptz);

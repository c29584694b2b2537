-- name: subscriptions
-- A subscription, and what is in force for it, so that a check-in reads one row. The times are its own; the database's
-- clock measures them.
CREATE TABLE IF NOT EXISTS subscriptions (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    name VARCHAR(500) NOT NULL,
    name_hash BINARY(32) GENERATED ALWAYS AS (UNHEX(SHA2(name, 256))) STORED,
    -- queue hands out single events; procedures of streams refuse it.
    mode VARCHAR(20) NOT NULL DEFAULT 'stream',
    heartbeat_seconds DOUBLE NOT NULL DEFAULT 3,
    lease_seconds DOUBLE NOT NULL DEFAULT 10,
    release_seconds DOUBLE NOT NULL DEFAULT 10,
    max_consumers INT NOT NULL DEFAULT 1024,
    created_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    -- Grows whenever one of its policies changes.
    policy_version INT NOT NULL DEFAULT 1,
    target_qps DOUBLE NOT NULL DEFAULT 10,
    refresh_seconds DOUBLE NOT NULL DEFAULT 1,
    max_attempts INT NOT NULL DEFAULT 10,
    first_backoff_seconds DOUBLE NOT NULL DEFAULT 0.1,
    longest_backoff_seconds DOUBLE NOT NULL DEFAULT 60,
    jitter DOUBLE NOT NULL DEFAULT 0.5,
    exhausted VARCHAR(20) NOT NULL DEFAULT 'dead_letter',
    -- Since when it is paused, by whom and why; NULL while it is not.
    paused_at DATETIME(6),
    paused_by VARCHAR(400),
    paused_reason VARCHAR(1000),
    -- For how long retention waits for it, and how long its dead letters are kept; 0: for ever.
    max_lag_seconds DOUBLE NOT NULL DEFAULT 0,
    dead_letter_seconds DOUBLE NOT NULL DEFAULT 0,
    -- The topic that its dead letters are published to, which login has set it and when, and by what: a hand or a file.
    dead_letters_to BIGINT,
    dead_letters_by VARCHAR(400),
    dead_letters_at DATETIME(6),
    dead_letters_origin VARCHAR(505),
    UNIQUE KEY subscriptions_name (name_hash),
    KEY subscriptions_listed (name),
    CONSTRAINT subscriptions_mode CHECK (mode IN ('stream', 'queue')),
    CONSTRAINT subscriptions_times CHECK (heartbeat_seconds > 0 AND lease_seconds >= 3 * heartbeat_seconds)
) ENGINE = InnoDB;

-- name: subscription_topics
-- Which topics a subscription reads, and what keeps their events from retention.
CREATE TABLE IF NOT EXISTS subscription_topics (
    subscription_id BIGINT NOT NULL,
    topic_id BIGINT NOT NULL,
    created_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    PRIMARY KEY (subscription_id, topic_id),
    -- Retention asks for the subscriptions of a topic.
    KEY subscription_topics_topic (topic_id)
) ENGINE = InnoDB;

-- name: removals
-- Subscriptions that are gone, and of which something is still to be deleted. Their names are free, and nobody reads
-- what they left.
CREATE TABLE IF NOT EXISTS removals (
    subscription_id BIGINT NOT NULL PRIMARY KEY,
    name VARCHAR(500) NOT NULL,
    removed_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    -- When something of it was deleted last: one that does not move on is told by the doctor.
    moved_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6))
) ENGINE = InnoDB;

-- name: policy_settings
-- What the policies of each kind set, what holds when nobody sets it, and its bounds.
CREATE TABLE IF NOT EXISTS policy_settings (
    -- The column of subscriptions that has what is in force.
    setting VARCHAR(40) NOT NULL PRIMARY KEY,
    kind VARCHAR(20) NOT NULL,
    type VARCHAR(20) NOT NULL,
    preset VARCHAR(40) NOT NULL,
    lowest DOUBLE,
    highest DOUBLE,
    words VARCHAR(200),
    CONSTRAINT policy_settings_type CHECK (type IN ('number', 'count', 'word'))
) ENGINE = InnoDB;

-- name: first_rows_of_policy_settings
-- Every setting that there is, the same as on PostgreSQL.
REPLACE INTO policy_settings (kind, setting, type, preset, lowest, highest, words) VALUES
    ('heartbeat', 'heartbeat_seconds', 'number', '3', 0.001, 28800, NULL),
    ('heartbeat', 'lease_seconds', 'number', '10', 0.003, 86399, NULL),
    ('heartbeat', 'release_seconds', 'number', '10', 0.001, 86399, NULL),
    ('heartbeat', 'target_qps', 'number', '10', 0.1, 10000, NULL),
    ('lease', 'max_consumers', 'count', '1024', 1, 100000, NULL),
    ('metrics', 'refresh_seconds', 'number', '1', 0.1, 3600, NULL),
    ('retry', 'max_attempts', 'count', '10', 1, 1000, NULL),
    ('retry', 'first_backoff_seconds', 'number', '0.1', 0, 86400, NULL),
    ('retry', 'longest_backoff_seconds', 'number', '60', 0, 86400, NULL),
    ('retry', 'jitter', 'number', '0.5', 0, 1, NULL),
    ('retry', 'exhausted', 'word', 'dead_letter', NULL, NULL, 'dead_letter,park_key'),
    ('keep', 'max_lag_seconds', 'number', '0', 0, 3153600000, NULL),
    ('keep', 'dead_letter_seconds', 'number', '0', 0, 3153600000, NULL);

-- name: policies
-- What somebody has set: for everything (scope_id 0), a namespace, a topic or a subscription. Without a setting of its
-- own a policy sets nothing; it stays, because its version only grows.
CREATE TABLE IF NOT EXISTS policies (
    scope VARCHAR(20) NOT NULL,
    scope_id BIGINT NOT NULL,
    kind VARCHAR(20) NOT NULL,
    settings JSON NOT NULL,
    version INT NOT NULL,
    -- Who has set it: 'hand', or 'file ' and the name of the file that owns it. The procedures check it.
    origin VARCHAR(600) NOT NULL,
    updated_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    updated_by VARCHAR(400) NOT NULL,
    PRIMARY KEY (scope, scope_id, kind),
    CONSTRAINT policies_scope CHECK (scope IN ('global', 'namespace', 'topic', 'subscription'))
) ENGINE = InnoDB;

-- name: policy_versions
-- Every version that a policy has had, the one in force among them; goes with what it was set for.
CREATE TABLE IF NOT EXISTS policy_versions (
    scope VARCHAR(20) NOT NULL,
    scope_id BIGINT NOT NULL,
    kind VARCHAR(20) NOT NULL,
    settings JSON NOT NULL,
    version INT NOT NULL,
    origin VARCHAR(600) NOT NULL,
    updated_at DATETIME(6) NOT NULL,
    updated_by VARCHAR(400) NOT NULL,
    PRIMARY KEY (scope, scope_id, kind, version)
) ENGINE = InnoDB;

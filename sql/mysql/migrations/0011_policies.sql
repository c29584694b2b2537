-- name: create_policy_settings
-- What the policies of each kind set, what holds when nobody sets it, and its bounds. setting is the column of subscriptions that
-- has what is in force.
CREATE TABLE IF NOT EXISTS policy_settings (
    setting VARCHAR(40) NOT NULL PRIMARY KEY,
    kind VARCHAR(20) NOT NULL,
    type VARCHAR(20) NOT NULL,
    preset VARCHAR(40) NOT NULL,
    lowest DOUBLE,
    highest DOUBLE,
    words VARCHAR(200),
    CONSTRAINT policy_settings_type CHECK (type IN ('number', 'count', 'word'))
) ENGINE = InnoDB;

-- name: fill_policy_settings
-- The same as on PostgreSQL.
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
    ('retry', 'exhausted', 'word', 'dead_letter', NULL, NULL, 'dead_letter,park_key');

-- name: create_policies
-- What somebody has set: for everything (scope_id 0), a namespace, a topic or a subscription. Without a setting of its own a policy
-- sets nothing; it stays, because its version only grows.
CREATE TABLE IF NOT EXISTS policies (
    scope VARCHAR(20) NOT NULL,
    scope_id BIGINT NOT NULL,
    kind VARCHAR(20) NOT NULL,
    settings JSON NOT NULL,
    version INT NOT NULL,
    origin VARCHAR(20) NOT NULL,
    updated_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    updated_by VARCHAR(400) NOT NULL,
    PRIMARY KEY (scope, scope_id, kind),
    CONSTRAINT policies_scope CHECK (scope IN ('global', 'namespace', 'topic', 'subscription')),
    CONSTRAINT policies_origin CHECK (origin IN ('file', 'hand'))
) ENGINE = InnoDB;

-- name: create_policy_versions
-- Every version that a policy has had, the one in force among them; goes with what it was set for.
CREATE TABLE IF NOT EXISTS policy_versions (
    scope VARCHAR(20) NOT NULL,
    scope_id BIGINT NOT NULL,
    kind VARCHAR(20) NOT NULL,
    settings JSON NOT NULL,
    version INT NOT NULL,
    origin VARCHAR(20) NOT NULL,
    updated_at DATETIME(6) NOT NULL,
    updated_by VARCHAR(400) NOT NULL,
    PRIMARY KEY (scope, scope_id, kind, version)
) ENGINE = InnoDB;

-- name: drop_add_policies
-- What an installation that broke off has left.
DROP PROCEDURE IF EXISTS add_policies;

-- name: create_add_policies
-- What is in force for a subscription, so that a check-in reads one row; only where it was not added yet, because such a statement
-- cannot be repeated. policy_version grows whenever one of these changes. Times that were configured before were set for one
-- subscription, and stay its own policy.
CREATE PROCEDURE add_policies()
BEGIN
    IF NOT EXISTS (
        SELECT * FROM information_schema.COLUMNS AS c
        WHERE c.TABLE_SCHEMA = DATABASE() AND c.TABLE_NAME = 'subscriptions' AND c.COLUMN_NAME = 'policy_version') THEN
        ALTER TABLE subscriptions
            ADD COLUMN policy_version INT NOT NULL DEFAULT 1,
            ADD COLUMN target_qps DOUBLE NOT NULL DEFAULT 10,
            ADD COLUMN refresh_seconds DOUBLE NOT NULL DEFAULT 1,
            ADD COLUMN max_attempts INT NOT NULL DEFAULT 10,
            ADD COLUMN first_backoff_seconds DOUBLE NOT NULL DEFAULT 0.1,
            ADD COLUMN longest_backoff_seconds DOUBLE NOT NULL DEFAULT 60,
            ADD COLUMN jitter DOUBLE NOT NULL DEFAULT 0.5,
            ADD COLUMN exhausted VARCHAR(20) NOT NULL DEFAULT 'dead_letter';
    END IF;
    IF NOT EXISTS (
        SELECT * FROM information_schema.COLUMNS AS c
        WHERE c.TABLE_SCHEMA = DATABASE() AND c.TABLE_NAME = 'retention_policies' AND c.COLUMN_NAME = 'origin') THEN
        -- Who set it, a file or a hand; of what is there already that is not known.
        ALTER TABLE retention_policies ADD COLUMN origin VARCHAR(20) NOT NULL DEFAULT 'hand';
    END IF;
    INSERT IGNORE INTO policies (scope, scope_id, kind, settings, version, origin, updated_by)
    SELECT 'subscription', s.id, 'heartbeat', JSON_OBJECT(
               'heartbeat_seconds', s.heartbeat_seconds, 'lease_seconds', s.lease_seconds, 'release_seconds', s.release_seconds),
           1, 'hand', USER()
    FROM subscriptions AS s
    WHERE NOT (s.heartbeat_seconds = 3 AND s.lease_seconds = 10 AND s.release_seconds = 10);
    INSERT IGNORE INTO policies (scope, scope_id, kind, settings, version, origin, updated_by)
    SELECT 'subscription', s.id, 'lease', JSON_OBJECT('max_consumers', s.max_consumers), 1, 'hand', USER()
    FROM subscriptions AS s
    WHERE s.max_consumers <> 1024;
    INSERT IGNORE INTO policy_versions (scope, scope_id, kind, settings, version, origin, updated_at, updated_by)
    SELECT p.scope, p.scope_id, p.kind, p.settings, p.version, p.origin, p.updated_at, p.updated_by FROM policies AS p;
END;

-- name: add_policies
-- Waits for whoever uses the tables.
CALL add_policies();

-- name: forget_add_policies
-- It was for this migration.
DROP PROCEDURE add_policies;

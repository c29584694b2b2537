-- name: create_policy_settings
-- What the policies of each kind set, what holds when nobody sets it, and its bounds. setting is the column of subscriptions that
-- has what is in force.
CREATE TABLE policy_settings (
    setting text COLLATE "C" PRIMARY KEY,
    kind text COLLATE "C" NOT NULL,
    type text COLLATE "C" NOT NULL CHECK (type IN ('number', 'count', 'word')),
    preset jsonb NOT NULL,
    lowest double precision,
    highest double precision,
    words text[]
);
INSERT INTO policy_settings (kind, setting, type, preset, lowest, highest, words) VALUES
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
    ('retry', 'exhausted', 'word', '"dead_letter"', NULL, NULL, '{dead_letter,park_key}');

-- name: create_policies
-- What somebody has set: for everything (scope_id 0), a namespace, a topic or a subscription. Without a setting of its own a policy
-- sets nothing; it stays, because its version only grows.
CREATE TABLE policies (
    scope text COLLATE "C" NOT NULL CHECK (scope IN ('global', 'namespace', 'topic', 'subscription')),
    scope_id bigint NOT NULL,
    kind text COLLATE "C" NOT NULL,
    settings jsonb NOT NULL,
    version integer NOT NULL,
    origin text COLLATE "C" NOT NULL CHECK (origin IN ('file', 'hand')),
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_by text NOT NULL DEFAULT session_user,
    PRIMARY KEY (scope, scope_id, kind)
);

-- name: create_policy_versions
-- Every version that a policy has had, the one in force among them; goes with what it was set for.
CREATE TABLE policy_versions (
    scope text COLLATE "C" NOT NULL,
    scope_id bigint NOT NULL,
    kind text COLLATE "C" NOT NULL,
    settings jsonb NOT NULL,
    version integer NOT NULL,
    origin text COLLATE "C" NOT NULL,
    updated_at timestamptz NOT NULL,
    updated_by text NOT NULL,
    PRIMARY KEY (scope, scope_id, kind, version)
);

-- name: policies_of_subscriptions
-- What is in force for a subscription, so that a check-in reads one row. policy_version grows whenever one of these changes.
ALTER TABLE subscriptions
    ADD COLUMN policy_version integer NOT NULL DEFAULT 1,
    ADD COLUMN target_qps double precision NOT NULL DEFAULT 10,
    ADD COLUMN refresh_seconds double precision NOT NULL DEFAULT 1,
    ADD COLUMN max_attempts integer NOT NULL DEFAULT 10,
    ADD COLUMN first_backoff_seconds double precision NOT NULL DEFAULT 0.1,
    ADD COLUMN longest_backoff_seconds double precision NOT NULL DEFAULT 60,
    ADD COLUMN jitter double precision NOT NULL DEFAULT 0.5,
    ADD COLUMN exhausted text NOT NULL DEFAULT 'dead_letter';

-- name: times_that_were_configured
-- They were set for one subscription, and stay its own policy.
INSERT INTO policies (scope, scope_id, kind, settings, version, origin)
SELECT 'subscription', s.id, 'heartbeat', jsonb_build_object(
           'heartbeat_seconds', s.heartbeat_seconds, 'lease_seconds', s.lease_seconds, 'release_seconds', s.release_seconds),
       1, 'hand'
FROM subscriptions AS s
WHERE (s.heartbeat_seconds, s.lease_seconds, s.release_seconds) <> (3, 10, 10)
UNION ALL
SELECT 'subscription', s.id, 'lease', jsonb_build_object('max_consumers', s.max_consumers), 1, 'hand'
FROM subscriptions AS s
WHERE s.max_consumers <> 1024;
INSERT INTO policy_versions (scope, scope_id, kind, settings, version, origin, updated_at, updated_by)
SELECT scope, scope_id, kind, settings, version, origin, updated_at, updated_by FROM policies;

-- name: origin_of_retention
-- Who set it, a file or a hand; of what is there already that is not known.
ALTER TABLE retention_policies
    ADD COLUMN origin text COLLATE "C" NOT NULL DEFAULT 'hand' CHECK (origin IN ('file', 'hand'));

-- name: functions_of_retention
-- They take and answer the origin now.
DROP FUNCTION IF EXISTS set_retention(text, bigint, integer);
DROP FUNCTION IF EXISTS retention_of();

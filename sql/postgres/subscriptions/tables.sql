-- name: subscriptions
-- A subscription, and what is in force for it, so that a check-in reads one row. The times are its own; the database's
-- clock measures them.
CREATE TABLE subscriptions (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE,
    -- queue hands out single events; functions of streams refuse it.
    mode text NOT NULL DEFAULT 'stream' CHECK (mode IN ('stream', 'queue')),
    heartbeat_seconds double precision NOT NULL DEFAULT 3,
    lease_seconds double precision NOT NULL DEFAULT 10,
    release_seconds double precision NOT NULL DEFAULT 10,
    max_consumers integer NOT NULL DEFAULT 1024,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Grows whenever one of its policies changes.
    policy_version integer NOT NULL DEFAULT 1,
    target_qps double precision NOT NULL DEFAULT 10,
    refresh_seconds double precision NOT NULL DEFAULT 1,
    max_attempts integer NOT NULL DEFAULT 10,
    first_backoff_seconds double precision NOT NULL DEFAULT 0.1,
    longest_backoff_seconds double precision NOT NULL DEFAULT 60,
    jitter double precision NOT NULL DEFAULT 0.5,
    exhausted text NOT NULL DEFAULT 'dead_letter',
    -- Since when it is paused, by whom and why; NULL while it is not.
    paused_at timestamptz,
    paused_by text,
    paused_reason text,
    -- For how long retention waits for it, and how long its dead letters are kept; 0: for ever.
    max_lag_seconds double precision NOT NULL DEFAULT 0,
    dead_letter_seconds double precision NOT NULL DEFAULT 0,
    -- The topic that its dead letters are published to, which login has set it and when, and by what: a hand or a file.
    dead_letters_to bigint,
    dead_letters_by text,
    dead_letters_at timestamptz,
    dead_letters_origin text,
    CONSTRAINT subscriptions_times CHECK (heartbeat_seconds > 0 AND lease_seconds >= 3 * heartbeat_seconds)
);

-- name: subscription_topics
-- Which topics a subscription reads, and what keeps their events from retention.
CREATE TABLE subscription_topics (
    subscription_id bigint NOT NULL,
    topic_id bigint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (subscription_id, topic_id)
);
-- Retention asks for the subscriptions of a topic.
CREATE INDEX subscription_topics_topic ON subscription_topics (topic_id);

-- name: removals
-- Subscriptions that are gone, and of which something is still to be deleted. Their names are free, and nobody reads
-- what they left.
CREATE TABLE removals (
    subscription_id bigint PRIMARY KEY,
    name text NOT NULL,
    removed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- When something of it was deleted last: one that does not move on is told by the doctor.
    moved_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- name: policy_settings
-- What the policies of each kind set, what holds when nobody sets it, and its bounds.
CREATE TABLE policy_settings (
    -- The column of subscriptions that has what is in force.
    setting text COLLATE "C" PRIMARY KEY,
    kind text COLLATE "C" NOT NULL,
    type text COLLATE "C" NOT NULL CHECK (type IN ('number', 'count', 'word')),
    preset jsonb NOT NULL,
    lowest double precision,
    highest double precision,
    words text[]
);

-- name: first_rows_of_policy_settings
-- Every setting that there is.
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
    ('retry', 'exhausted', 'word', '"dead_letter"', NULL, NULL, '{dead_letter,park_key}'),
    ('keep', 'max_lag_seconds', 'number', '0', 0, 3153600000, NULL),
    ('keep', 'dead_letter_seconds', 'number', '0', 0, 3153600000, NULL);

-- name: policies
-- What somebody has set: for everything (scope_id 0), a namespace, a topic or a subscription. Without a setting of its
-- own a policy sets nothing; it stays, because its version only grows.
CREATE TABLE policies (
    scope text COLLATE "C" NOT NULL CHECK (scope IN ('global', 'namespace', 'topic', 'subscription')),
    scope_id bigint NOT NULL,
    kind text COLLATE "C" NOT NULL,
    settings jsonb NOT NULL,
    version integer NOT NULL,
    -- Who has set it: 'hand', or 'file ' and the name of the file that owns it. The functions check it.
    origin text COLLATE "C" NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_by text NOT NULL,
    PRIMARY KEY (scope, scope_id, kind)
);

-- name: policy_versions
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

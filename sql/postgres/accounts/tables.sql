-- name: accounts
-- The tenants of a gateway. The id never changes and is never used again; the name is the path of the account's
-- namespace, at the top level.
CREATE TABLE accounts (
    id text COLLATE "C" PRIMARY KEY,
    namespace_id bigint NOT NULL UNIQUE,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_by text NOT NULL
);

-- name: account_keys
-- What a caller shows to act for an account. The secret is not here: it is derived from a master key, the account's id,
-- the key's id and the version. A revoked key stays, so that no other key gets its id.
CREATE TABLE account_keys (
    id text COLLATE "C" PRIMARY KEY,
    account_id text COLLATE "C" NOT NULL,
    version integer NOT NULL,
    -- Which master key: the name that programs compute from it.
    master text COLLATE "C" NOT NULL,
    -- Which kinds of calls: r(eceive), p(ublish), u(pdate), a(cknowledge), g(et a description), c(reate), d(elete).
    levels text NOT NULL,
    -- The only queue for which it is good; NULL: all queues of the account.
    queue text COLLATE "C",
    starts_at timestamptz NOT NULL,
    ends_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_by text NOT NULL,
    revoked_at timestamptz,
    revoked_by text
);
CREATE INDEX account_keys_account ON account_keys (account_id);

-- name: account_uses
-- How often each key was used, and when last, as gateways report it.
CREATE TABLE account_uses (
    key_id text COLLATE "C" PRIMARY KEY,
    uses bigint NOT NULL,
    last_used_at timestamptz NOT NULL
);

-- name: account_audit
-- Who did what to accounts, their keys and their rights.
CREATE TABLE account_audit (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    by text NOT NULL,
    account_id text COLLATE "C" NOT NULL,
    account text NOT NULL,
    action text NOT NULL,
    detail text NOT NULL
);
CREATE INDEX account_audit_account ON account_audit (account_id, id);

-- name: installed_gateways
-- The logins of gateways. Such a login does nothing of its own: in each transaction it names the account it acts for.
CREATE TABLE installed_gateways (
    login text COLLATE "C" PRIMARY KEY,
    installed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    installed_by text NOT NULL
);

-- name: account_quotas
-- How much an account may publish a second, on average over ten seconds, and how many events may wait in its namespace.
-- NULL: no limit.
CREATE TABLE account_quotas (
    account_id text COLLATE "C" PRIMARY KEY,
    max_events bigint,
    max_bytes bigint,
    max_waiting bigint,
    -- Requests, polls and streams at a time, of one process of a gateway: it counts them, the database does not.
    max_requests integer,
    set_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    set_by text NOT NULL
);

-- name: account_published
-- What each session has published for accounts with a quota, by the second. A session writes its own rows only, so it
-- waits for nobody, and rows of a past second are neither changed nor read again: a long snapshot makes nothing slower.
-- After a crash it is empty.
CREATE UNLOGGED TABLE account_published (
    account_id text COLLATE "C" NOT NULL,
    second bigint NOT NULL,
    session bigint NOT NULL,
    events bigint NOT NULL,
    bytes bigint NOT NULL,
    PRIMARY KEY (account_id, second, session)
) WITH (fillfactor = 50);

-- name: account_waiting
-- Accounts in whose namespaces more events wait than their quota allows, as measured last.
CREATE TABLE account_waiting (
    account_id text COLLATE "C" PRIMARY KEY,
    events bigint NOT NULL,
    measured_at timestamptz NOT NULL
) WITH (fillfactor = 50);

-- name: accounts_counted
-- How far the counting of what waits for accounts has come in its round: the account, the topic and the subscription
-- that were counted last, and how many events of the account were found so far.
CREATE TABLE accounts_counted (
    singleton boolean PRIMARY KEY CHECK (singleton),
    account_id text COLLATE "C" NOT NULL,
    topic_id bigint NOT NULL,
    subscription_id bigint NOT NULL,
    events bigint NOT NULL
) WITH (fillfactor = 50);

-- name: first_rows_of_accounts_counted
-- A round begins.
INSERT INTO accounts_counted (singleton, account_id, topic_id, subscription_id, events) VALUES (true, '', 0, 0, 0);

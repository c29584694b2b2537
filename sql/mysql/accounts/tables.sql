-- name: accounts
-- The tenants of a gateway. The id never changes and is never used again; the name is the path of the account's
-- namespace, at the top level.
CREATE TABLE IF NOT EXISTS accounts (
    id VARCHAR(32) NOT NULL PRIMARY KEY,
    namespace_id BIGINT NOT NULL UNIQUE,
    created_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    created_by VARCHAR(400) NOT NULL
) ENGINE = InnoDB;

-- name: account_keys
-- What a caller shows to act for an account. The secret is not here: it is derived from a master key, the account's id,
-- the key's id and the version. A revoked key stays, so that no other key gets its id.
CREATE TABLE IF NOT EXISTS account_keys (
    id VARCHAR(64) NOT NULL PRIMARY KEY,
    account_id VARCHAR(32) NOT NULL,
    version INT NOT NULL,
    -- Which master key: the name that programs compute from it.
    master VARCHAR(64) NOT NULL,
    -- Which kinds of calls: r(eceive), p(ublish), u(pdate), a(cknowledge), g(et a description), c(reate), d(elete).
    levels VARCHAR(7) NOT NULL,
    -- The only queue for which it is good; NULL: all queues of the account.
    queue VARCHAR(500),
    starts_at DATETIME(6) NOT NULL,
    ends_at DATETIME(6),
    created_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    created_by VARCHAR(400) NOT NULL,
    revoked_at DATETIME(6),
    revoked_by VARCHAR(400),
    KEY account_keys_account (account_id)
) ENGINE = InnoDB;

-- name: account_uses
-- How often each key was used, and when last, as gateways report it.
CREATE TABLE IF NOT EXISTS account_uses (
    key_id VARCHAR(64) NOT NULL PRIMARY KEY,
    uses BIGINT NOT NULL,
    last_used_at DATETIME(6) NOT NULL
) ENGINE = InnoDB;

-- name: account_audit
-- Who did what to accounts, their keys and their rights.
CREATE TABLE IF NOT EXISTS account_audit (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    `by` VARCHAR(400) NOT NULL,
    account_id VARCHAR(32) NOT NULL,
    account VARCHAR(500) NOT NULL,
    action VARCHAR(40) NOT NULL,
    detail LONGTEXT NOT NULL,
    KEY account_audit_account (account_id, id)
) ENGINE = InnoDB;

-- name: installed_gateways
-- The logins of gateways. Such a login does nothing of its own: in each transaction it names the account it acts for.
CREATE TABLE IF NOT EXISTS installed_gateways (
    login VARCHAR(255) NOT NULL PRIMARY KEY,
    installed_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    installed_by VARCHAR(400) NOT NULL
) ENGINE = InnoDB;

-- name: account_quotas
-- How much an account may publish a second, on average over ten seconds, and how many events may wait in its namespace.
-- NULL: no limit.
CREATE TABLE IF NOT EXISTS account_quotas (
    account_id VARCHAR(32) NOT NULL PRIMARY KEY,
    max_events BIGINT,
    max_bytes BIGINT,
    max_waiting BIGINT,
    -- Requests, polls and streams at a time, of one process of a gateway: it counts them, the database does not.
    max_requests INT,
    set_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    set_by VARCHAR(400) NOT NULL
) ENGINE = InnoDB;

-- name: account_published
-- What each session has published for accounts with a quota, by the second. A session writes its own rows only, so it
-- waits for nobody, and rows of a past second are neither changed nor read again: a long snapshot makes nothing slower.
CREATE TABLE IF NOT EXISTS account_published (
    account_id VARCHAR(32) NOT NULL,
    second BIGINT NOT NULL,
    session BIGINT NOT NULL,
    events BIGINT NOT NULL,
    bytes BIGINT NOT NULL,
    PRIMARY KEY (account_id, second, session)
) ENGINE = InnoDB;

-- name: account_waiting
-- Accounts in whose namespaces more events wait than their quota allows, as measured last.
CREATE TABLE IF NOT EXISTS account_waiting (
    account_id VARCHAR(32) NOT NULL PRIMARY KEY,
    events BIGINT NOT NULL,
    measured_at DATETIME(6) NOT NULL
) ENGINE = InnoDB;

-- name: accounts_counted
-- How far the counting of what waits for accounts has come in its round: the account, the topic and the subscription
-- that were counted last, and how many events of the account were found so far.
CREATE TABLE IF NOT EXISTS accounts_counted (
    singleton BOOLEAN NOT NULL PRIMARY KEY,
    account_id VARCHAR(32) NOT NULL,
    topic_id BIGINT NOT NULL,
    subscription_id BIGINT NOT NULL,
    events BIGINT NOT NULL
) ENGINE = InnoDB;

-- name: first_rows_of_accounts_counted
-- A round begins.
INSERT IGNORE INTO accounts_counted (singleton, account_id, topic_id, subscription_id, events)
VALUES (TRUE, '', 0, 0, 0);

-- name: act_as
-- Names the account for which this transaction acts.
SELECT penstock.act_as(%(account)s, %(key_ids)s::text[])

-- name: check_gateway
-- Refuses a login that may not be a gateway's.
SELECT penstock.check_gateway()

-- name: record_gateway
-- Records a login as a gateway's.
SELECT penstock.record_gateway(%(login)s)

-- name: forget_gateway
-- The reverse. Returns whether it was recorded.
SELECT penstock.forget_gateway(%(login)s)

-- name: create_account
-- Makes an account and its namespace. Returns its id.
SELECT penstock.create_account(%(account)s, %(keep)s::jsonb)

-- name: delete_account
-- Deletes an account when confirmed. Returns what there is in its namespace.
SELECT keys, topics, queues, streams, leases, dead_letters, holds, copies
FROM penstock.delete_account(%(account)s, %(confirmed)s)

-- name: list_accounts
-- All accounts.
SELECT account, account_id, created_at, created_by, keys, last_used_at FROM penstock.list_accounts()

-- name: grant_account
-- Gives an account a right in a namespace.
SELECT penstock.grant_account(%(account)s, %(namespace)s, %(verb)s)

-- name: revoke_account
-- Takes a right of an account back. Returns whether it existed.
SELECT penstock.revoke_account(%(account)s, %(namespace)s, %(verb)s, %(unrestrict)s)

-- name: set_account_quota
-- How much an account may publish.
SELECT penstock.set_account_quota(
    %(account)s, %(max_events)s::bigint, %(max_bytes)s::bigint, %(max_waiting)s::bigint, %(max_requests)s::integer
)

-- name: account_quota
-- The quota of an account, and what it has used.
SELECT max_events, max_bytes, max_waiting, max_requests, set_at, set_by, events, bytes, waiting
FROM penstock.account_quota(%(account)s)

-- name: measure_accounts
-- Goes on counting what waits for accounts with a quota. Returns how many are at the limit, and whether it goes on.
SELECT pressed, more FROM penstock.measure_accounts(%(max_readers)s::integer)

-- name: audit_of
-- What was done to accounts, the newest first.
SELECT at, by, account, account_id, action, detail FROM penstock.audit_of(%(account)s, %(most)s::integer)

-- name: create_key
-- Makes a key of an account. Returns the account's id and the key's version.
SELECT account_id, version
FROM penstock.create_key(
    %(account)s, %(key_id)s, %(master)s, %(levels)s, %(queue)s, %(starts_at)s::timestamptz,
    %(ends_at)s::timestamptz
)

-- name: revoke_key
-- Ends a key. Returns whether it was good.
SELECT penstock.revoke_key(%(account)s, %(key_id)s)

-- name: find_key
-- What a gateway needs to check a caller.
SELECT account_id, account, version, master, levels, queue, starts_at, ends_at, max_requests, is_good
FROM penstock.find_key(%(key_id)s)

-- name: keys_of
-- The keys of an account.
SELECT
    key_id, version, master, levels, queue, starts_at, ends_at, created_at, created_by, revoked_at, revoked_by, uses,
    last_used_at
FROM penstock.keys_of(%(account)s)

-- name: note_uses
-- Adds to how often keys were used.
SELECT penstock.note_uses(%(key_ids)s::text[], %(uses)s::bigint[])

-- name: act_as
-- Names the account for which this transaction acts.
CALL penstock.act_as(%(account)s, %(key_ids)s)

-- name: check_gateway
-- Refuses a login that may not be a gateway's.
-- reads only
CALL penstock.check_gateway()

-- name: record_gateway
-- Records a login as a gateway's.
CALL penstock.record_gateway(%(login)s)

-- name: forget_gateway
-- The reverse. Returns whether it was recorded.
CALL penstock.forget_gateway(%(login)s)

-- name: create_account
-- Makes an account and its namespace. Returns its id.
CALL penstock.create_account(%(account)s, %(keep)s)

-- name: delete_account
-- Deletes an account when confirmed. Returns what there is in its namespace.
CALL penstock.delete_account(%(account)s, %(confirmed)s)

-- name: list_accounts
-- All accounts.
-- reads only
CALL penstock.list_accounts()

-- name: grant_account
-- Gives an account a right in a namespace.
CALL penstock.grant_account(%(account)s, %(namespace)s, %(verb)s)

-- name: revoke_account
-- Takes a right of an account back. Returns whether it existed.
CALL penstock.revoke_account(%(account)s, %(namespace)s, %(verb)s, %(unrestrict)s)

-- name: set_account_quota
-- How much an account may publish.
CALL penstock.set_account_quota(
    %(account)s, %(max_events)s, %(max_bytes)s, %(max_waiting)s, %(max_requests)s
)

-- name: account_quota
-- The quota of an account, and what it has used.
-- reads only
CALL penstock.account_quota(%(account)s)

-- name: measure_accounts
-- Goes on counting what waits for accounts with a quota. Returns how many are at the limit, and whether it goes on.
CALL penstock.measure_accounts(%(max_readers)s)

-- name: audit_of
-- What was done to accounts, the newest first.
-- reads only
CALL penstock.audit_of(%(account)s, %(most)s)

-- name: create_key
-- Makes a key of an account. Returns the account's id and the key's version.
CALL penstock.create_key(%(account)s, %(key_id)s, %(master)s, %(levels)s, %(queue)s, %(starts_at)s, %(ends_at)s)

-- name: revoke_key
-- Ends a key. Returns whether it was good.
CALL penstock.revoke_key(%(account)s, %(key_id)s)

-- name: find_key
-- What a gateway needs to check a caller.
-- reads only
CALL penstock.find_key(%(key_id)s)

-- name: keys_of
-- The keys of an account.
-- reads only
CALL penstock.keys_of(%(account)s)

-- name: note_uses
-- Adds to how often keys were used.
CALL penstock.note_uses(%(key_ids)s, %(uses)s)

-- name: create_account
-- Makes an account and its namespace, at the top level, in which it gets the right to operate. From that right on the
-- namespace is closed to logins. So a namespace that exists already is refused (PS020), unless keep says which roles
-- keep which rights there: a JSON list of [login, verb], which may be empty. Returns the account's id. Raises PS006,
-- PS007, PS018, PS020, PS030 to PS034.
CREATE OR REPLACE FUNCTION create_account(account text, keep jsonb DEFAULT NULL) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    new_id text := replace(gen_random_uuid()::text, '-', '');
    root bigint;
BEGIN
    PERFORM commit_durably();
    PERFORM require_name(account, 'account');
    PERFORM lock_names('create_account()', true);
    SELECT n.id INTO root FROM namespaces AS n WHERE n.path = account;
    IF EXISTS (SELECT FROM accounts AS a WHERE a.namespace_id = root) THEN
        PERFORM refuse_taken('account', account);
    ELSIF root IS NOT NULL AND keep IS NULL THEN
        PERFORM refuse('PS020', format('the namespace "%s" exists, and an account closes it to all others',
                                       left(account, 200)),
                       'Say which roles keep which rights there, also when none does.');
    ELSIF root IS NULL THEN
        INSERT INTO namespaces (parent_id, name, path) VALUES (0, account, account) RETURNING id INTO root;
    END IF;
    INSERT INTO accounts (id, namespace_id, created_by) VALUES (new_id, root, principal());
    PERFORM give_right(root, 'role', k.login, k.verb)
    FROM (SELECT e ->> 0 AS login, e ->> 1 AS verb FROM jsonb_array_elements(keep) AS e) AS k;
    PERFORM give_right(root, 'account', new_id, 'operate');
    PERFORM record_audit(new_id, account, 'create account', COALESCE(keep::text, ''));
    RETURN new_id;
END
$$;

-- name: delete_account
-- Deletes an account, when confirmed; else it changes nothing and returns the same: what there is in the account's
-- namespace. Its keys end at once. Everything else stays: topics, events, queues, streams, holds and archived copies,
-- and the namespace stays closed, so that only logins that pass the walls reach it. Raises PS018, PS050.
CREATE OR REPLACE FUNCTION delete_account(account text, confirmed boolean DEFAULT false)
RETURNS TABLE (
    keys bigint, topics bigint, queues bigint, streams bigint, leases bigint, dead_letters bigint, holds bigint,
    copies bigint
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    own_id text;
BEGIN
    PERFORM commit_durably();
    PERFORM lock_names('delete_account()', true);
    own_id := require_account(account);
    RETURN QUERY SELECT * FROM account_holdings(own_id);
    IF confirmed IS NOT TRUE THEN
        RETURN;
    END IF;
    UPDATE account_keys AS k SET revoked_at = clock_timestamp(), revoked_by = principal()
    WHERE k.account_id = own_id AND k.revoked_at IS NULL;
    DELETE FROM account_quotas AS q WHERE q.account_id = own_id;
    DELETE FROM accounts AS a WHERE a.id = own_id;
    PERFORM record_audit(own_id, account, 'delete account', '');
END
$$;

-- name: list_accounts
-- All accounts, with how many of their keys are good and when one was used last.
CREATE OR REPLACE FUNCTION list_accounts()
RETURNS TABLE (
    account text, account_id text, created_at timestamptz, created_by text, keys bigint, last_used_at timestamptz
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    RETURN QUERY
    SELECT n.path, a.id, a.created_at, a.created_by,
           count(k.id) FILTER (WHERE k.revoked_at IS NULL AND k.starts_at <= clock_timestamp()
                               AND COALESCE(k.ends_at > clock_timestamp(), true)),
           max(u.last_used_at)
    FROM accounts AS a
    JOIN namespaces AS n ON n.id = a.namespace_id
    LEFT JOIN account_keys AS k ON k.account_id = a.id
    LEFT JOIN account_uses AS u ON u.key_id = k.id
    GROUP BY n.path, a.id
    ORDER BY n.path;
END
$$;

-- name: grant_account
-- Gives an account a right in a namespace and below it, as grant_namespace gives it to a login. Raises PS001, PS006,
-- PS018, PS030 to PS034, PS050.
CREATE OR REPLACE FUNCTION grant_account(account text, namespace text, verb text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    own_id text;
BEGIN
    PERFORM commit_durably();
    PERFORM require_path(namespace, 'namespace', 3998);
    PERFORM lock_names('grant_account()', true);
    own_id := require_account(account);
    PERFORM give_right((require_namespace(namespace, 'grant')).id, 'account', own_id, verb);
    PERFORM record_audit(own_id, account, 'grant', verb || ' in ' || namespace);
END
$$;

-- name: revoke_account
-- Takes a right of an account back. Returns whether it existed. The last right of a namespace is taken back only with
-- unrestrict (else PS020): a namespace with no right on it or above it is open to all. Raises PS001, PS006, PS018,
-- PS020, PS030 to PS034, PS050.
CREATE OR REPLACE FUNCTION revoke_account(
    account text, namespace text, verb text, unrestrict boolean DEFAULT false
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    own_id text;
BEGIN
    PERFORM commit_durably();
    PERFORM require_path(namespace, 'namespace', 3998);
    PERFORM lock_names('revoke_account()', true);
    own_id := require_account(account);
    IF NOT take_right(require_namespace(namespace, 'grant'), 'account', own_id, verb, unrestrict) THEN
        RETURN false;
    END IF;
    PERFORM record_audit(own_id, account, 'revoke', verb || ' in ' || namespace);
    RETURN true;
END
$$;

-- name: audit_of
-- What was done to accounts, their keys and their rights, the newest first, at most so many rows; of one account, also
-- of one that is deleted, or of all ('').
CREATE OR REPLACE FUNCTION audit_of(of_account text DEFAULT '', most integer DEFAULT 100)
RETURNS TABLE (at timestamptz, by text, account text, account_id text, action text, detail text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    RETURN QUERY
    SELECT u.at, u.by, u.account, u.account_id, u.action, u.detail
    FROM account_audit AS u
    WHERE of_account = '' OR u.account = of_account
    ORDER BY u.id DESC
    LIMIT LEAST(GREATEST(most, 0), 10000);
END
$$;

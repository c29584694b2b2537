-- name: create_key
-- Makes a key of an account. The caller makes its id at random, 16 to 64 letters and digits, and derives its secret
-- from the result, which is the account's id and the version. At most two keys of an account are good or will be, so
-- that one can replace the other. levels are letters of rpuagcd. Raises PS006, PS007, PS020, PS050.
CREATE OR REPLACE FUNCTION create_key(
    account text, key_id text, master text, levels text, queue text DEFAULT NULL, starts_at timestamptz DEFAULT NULL,
    ends_at timestamptz DEFAULT NULL
) RETURNS TABLE (account_id text, version integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    own_id text := require_account(account);
    begins timestamptz := COALESCE(create_key.starts_at, clock_timestamp());
BEGIN
    PERFORM commit_durably();
    IF COALESCE(key_id !~ '^[A-Za-z0-9]{16,64}$' OR levels !~ '^[rpuagcd]{1,7}$' OR master !~ '^[a-z0-9]{8,64}$', true)
        OR create_key.ends_at <= begins THEN
        PERFORM refuse('PS006', 'this is no id of a key, no set of levels, no name of a master key or no time',
                       'Levels are letters of rpuagcd, and a key ends after it starts.');
    END IF;
    PERFORM FROM accounts AS a WHERE a.id = own_id FOR UPDATE;
    IF (SELECT count(*) FROM account_keys AS k
        WHERE k.account_id = own_id AND k.revoked_at IS NULL AND COALESCE(k.ends_at > clock_timestamp(), true)) >= 2
    THEN
        PERFORM refuse('PS020', format('the account "%s" has two keys already', left(account, 200)),
                       'Revoke one first: penstock account key revoke.');
    END IF;
    BEGIN
        INSERT INTO account_keys (id, account_id, version, master, levels, queue, starts_at, ends_at, created_by)
        VALUES (create_key.key_id, own_id, 1, create_key.master, create_key.levels, create_key.queue, begins,
                create_key.ends_at, principal());
    EXCEPTION WHEN unique_violation THEN
        PERFORM refuse('PS007', 'there is or was a key of this id', 'Make the id at random.');
    END;
    PERFORM record_audit(own_id, account, 'create key', key_id);
    RETURN QUERY SELECT own_id, 1;
END
$$;

-- name: revoke_key
-- Ends a key at once: no transaction that begins later acts for it. Returns whether it was good or would have been.
-- Raises PS050.
CREATE OR REPLACE FUNCTION revoke_key(account text, key_id text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    own_id text := require_account(account);
BEGIN
    PERFORM commit_durably();
    UPDATE account_keys AS k SET revoked_at = clock_timestamp(), revoked_by = principal()
    WHERE k.id = revoke_key.key_id AND k.account_id = own_id AND k.revoked_at IS NULL;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM record_audit(own_id, account, 'revoke key', key_id);
    RETURN true;
END
$$;

-- name: find_key
-- What a gateway needs to check a caller: whose key it is, how its secret is derived, what it is good for, and how many
-- requests the account may have at a time. No row when there is no such key. is_good: it was not revoked, its time has
-- come and is not over.
CREATE OR REPLACE FUNCTION find_key(key_id text)
RETURNS TABLE (
    account_id text, account text, version integer, master text, levels text, queue text, starts_at timestamptz,
    ends_at timestamptz, max_requests integer, is_good boolean
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    RETURN QUERY
    SELECT k.account_id, n.path, k.version, k.master, k.levels, k.queue, k.starts_at, k.ends_at, q.max_requests,
           k.revoked_at IS NULL AND k.starts_at <= clock_timestamp() AND COALESCE(k.ends_at > clock_timestamp(), true)
    FROM account_keys AS k
    JOIN accounts AS a ON a.id = k.account_id
    JOIN namespaces AS n ON n.id = a.namespace_id
    LEFT JOIN account_quotas AS q ON q.account_id = a.id
    WHERE k.id = find_key.key_id;
END
$$;

-- name: keys_of
-- The keys of an account, the newest first, with their uses. Raises PS050.
CREATE OR REPLACE FUNCTION keys_of(account text)
RETURNS TABLE (
    key_id text, version integer, master text, levels text, queue text, starts_at timestamptz, ends_at timestamptz,
    created_at timestamptz, created_by text, revoked_at timestamptz, revoked_by text, uses bigint,
    last_used_at timestamptz
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    own_id text := require_account(account);
BEGIN
    RETURN QUERY
    SELECT k.id, k.version, k.master, k.levels, k.queue, k.starts_at, k.ends_at, k.created_at, k.created_by,
           k.revoked_at, k.revoked_by, COALESCE(u.uses, 0), u.last_used_at
    FROM account_keys AS k LEFT JOIN account_uses AS u ON u.key_id = k.id
    WHERE k.account_id = own_id
    ORDER BY k.created_at DESC, k.id;
END
$$;

-- name: note_uses
-- Adds to how often keys were used. A gateway calls it from time to time, not with each request; ids that are not
-- known are skipped.
CREATE OR REPLACE FUNCTION note_uses(key_ids text[], uses bigint[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO account_uses AS u (key_id, uses, last_used_at)
    SELECT k.id, sum(g.uses), clock_timestamp()
    FROM unnest(note_uses.key_ids, note_uses.uses) AS g (id, uses) JOIN account_keys AS k ON k.id = g.id
    WHERE g.uses > 0
    GROUP BY k.id
    ORDER BY k.id
    ON CONFLICT (key_id) DO UPDATE SET uses = u.uses + EXCLUDED.uses, last_used_at = EXCLUDED.last_used_at;
END
$$;

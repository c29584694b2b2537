-- name: create_key
-- Makes a key of an account. The caller makes its id at random, 16 to 64 letters and digits, and derives its secret
-- from the result, which is the account's id and the version. At most two keys of an account are good or will be, so
-- that one can replace the other. levels are letters of rpuagcd. Raises PS006, PS007, PS018, PS020, PS050.
CREATE PROCEDURE create_key(
    account LONGTEXT, key_id LONGTEXT, master LONGTEXT, levels LONGTEXT, queue LONGTEXT, starts_at DATETIME(6),
    ends_at DATETIME(6)
)
BEGIN
    DECLARE own_id VARCHAR(32);
    DECLARE begins DATETIME(6) DEFAULT COALESCE(starts_at, UTC_TIMESTAMP(6));
    DECLARE live, taken INT DEFAULT 0;
    {{on error: CALL undo_call()}}
    CALL begin_call('create_key()');
    CALL require_account(account, own_id);
    IF COALESCE(key_id NOT REGEXP '^[A-Za-z0-9]{16,64}$' OR levels NOT REGEXP '^[rpuagcd]{1,7}$'
                OR master NOT REGEXP '^[a-z0-9]{8,64}$', TRUE) OR ends_at <= begins THEN
        CALL refuse('PS006', 'this is no id of a key, no set of levels, no name of a master key or no time');
    END IF;
    SET own_id = (SELECT a.id FROM accounts AS a WHERE a.id = own_id FOR UPDATE);
    SELECT COUNT(k.id) INTO live FROM account_keys AS k
    WHERE k.account_id = own_id AND k.revoked_at IS NULL AND COALESCE(k.ends_at > UTC_TIMESTAMP(6), TRUE)
    FOR UPDATE;
    IF live >= 2 THEN
        CALL refuse('PS020', CONCAT('the account "', LEFT(account, 80), '" has two keys already'));
    END IF;
    SELECT COUNT(k.id) INTO taken FROM account_keys AS k WHERE k.id = key_id FOR UPDATE;
    IF taken > 0 THEN
        CALL refuse('PS007', 'there is or was a key of this id');
    END IF;
    INSERT INTO account_keys (id, account_id, version, master, levels, queue, starts_at, ends_at, created_by)
    VALUES (key_id, own_id, 1, master, levels, queue, begins, ends_at, principal());
    CALL record_audit(own_id, account, 'create key', key_id);
    SELECT own_id AS account_id, 1 AS version;
    CALL end_call();
END;

-- name: revoke_key
-- Ends a key at once: no transaction that begins later acts for it. Returns whether it was good or would have been.
-- Raises PS018, PS050.
CREATE PROCEDURE revoke_key(account LONGTEXT, key_id LONGTEXT)
BEGIN
    DECLARE own_id VARCHAR(32);
    DECLARE was_there BOOLEAN;
    {{on error: CALL undo_call()}}
    CALL begin_call('revoke_key()');
    CALL require_account(account, own_id);
    UPDATE account_keys AS k SET k.revoked_at = UTC_TIMESTAMP(6), k.revoked_by = principal()
    WHERE k.id = key_id AND k.account_id = own_id AND k.revoked_at IS NULL;
    SET was_there = ROW_COUNT() > 0;
    IF was_there THEN
        CALL record_audit(own_id, account, 'revoke key', key_id);
    END IF;
    SELECT was_there AS was_there;
    CALL end_call();
END;

-- name: find_key
-- What a gateway needs to check a caller: whose key it is, how its secret is derived, what it is good for, and how many
-- requests the account may have at a time. No row when there is no such key. is_good: it was not revoked, its time has
-- come and is not over.
CREATE PROCEDURE find_key(key_id LONGTEXT)
READS SQL DATA
BEGIN
    CALL refuse_serializable('find_key()');
    SELECT k.account_id, n.path AS account, k.version, k.master, k.levels, k.queue, k.starts_at, k.ends_at,
           q.max_requests, k.revoked_at IS NULL AND k.starts_at <= UTC_TIMESTAMP(6)
               AND COALESCE(k.ends_at > UTC_TIMESTAMP(6), TRUE) AS is_good
    FROM account_keys AS k
    JOIN accounts AS a ON a.id = k.account_id
    JOIN namespaces AS n ON n.id = a.namespace_id
    LEFT JOIN account_quotas AS q ON q.account_id = a.id
    WHERE k.id = key_id;
END;

-- name: keys_of
-- The keys of an account, the newest first, with their uses. Raises PS050.
CREATE PROCEDURE keys_of(account LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE own_id VARCHAR(32);
    CALL refuse_serializable('keys_of()');
    CALL require_account(account, own_id);
    SELECT k.id AS key_id, k.version, k.master, k.levels, k.queue, k.starts_at, k.ends_at, k.created_at, k.created_by,
           k.revoked_at, k.revoked_by, COALESCE(u.uses, 0) AS uses, u.last_used_at
    FROM account_keys AS k LEFT JOIN account_uses AS u ON u.key_id = k.id
    WHERE k.account_id = own_id
    ORDER BY k.created_at DESC, k.id;
END;

-- name: note_uses
-- Adds to how often keys were used (two JSON arrays). A gateway calls it from time to time, not with each request; ids
-- that are not known are skipped.
CREATE PROCEDURE note_uses(key_ids JSON, uses JSON)
BEGIN
    {{on error: CALL undo_call()}}
    CALL begin_call('note_uses()');
    INSERT INTO account_uses (key_id, uses, last_used_at)
    SELECT k.id, SUM(n.uses), UTC_TIMESTAMP(6)
    FROM JSON_TABLE(key_ids, '$[*]' COLUMNS (place FOR ORDINALITY, id VARCHAR(64) PATH '$')) AS g
    JOIN JSON_TABLE(uses, '$[*]' COLUMNS (place FOR ORDINALITY, uses BIGINT PATH '$')) AS n ON n.place = g.place
    JOIN account_keys AS k ON k.id = g.id
    WHERE n.uses > 0
    GROUP BY k.id
    ORDER BY k.id
    ON DUPLICATE KEY UPDATE uses = account_uses.uses + VALUES(uses), last_used_at = VALUES(last_used_at);
    CALL end_call();
END;

-- name: create_account
-- Makes an account and its namespace, at the top level, in which it gets the right to operate. From that right on the
-- namespace is closed to logins. So a namespace that exists already is refused (PS020), unless keep says which roles
-- keep which rights there: a JSON list of [login, verb], which may be empty. Returns the account's id. Raises PS006,
-- PS007, PS018, PS020, PS030 to PS034.
CREATE PROCEDURE create_account(account LONGTEXT, keep JSON)
BEGIN
    DECLARE root, found, place BIGINT DEFAULT 0;
    DECLARE new_id BINARY(16);
    DECLARE kept_login, kept_verb LONGTEXT;
    DECLARE id_before BIGINT DEFAULT LAST_INSERT_ID();
    {{on error: CALL undo_call(); DO LAST_INSERT_ID(id_before)}}
    CALL begin_call('create_account()');
    CALL require_name(account, 'account');
    CALL lock_names('create_account()', TRUE);
    SELECT MAX(n.id) INTO root FROM namespaces AS n WHERE n.path_hash = UNHEX(SHA2(account, 256));
    SELECT COUNT(a.id) INTO found FROM accounts AS a WHERE a.namespace_id = root;
    IF found > 0 THEN
        CALL refuse('PS007', CONCAT('there is already an account "', LEFT(account, 80), '"'));
    ELSEIF root IS NOT NULL AND keep IS NULL THEN
        CALL refuse('PS020', CONCAT('the namespace "', LEFT(account, 50),
                                    '" exists, and an account closes it to all others'));
    ELSEIF root IS NULL THEN
        INSERT INTO namespaces (parent_id, name, path) VALUES (0, account, account);
        SET root = LAST_INSERT_ID();
    END IF;
    DO LAST_INSERT_ID(id_before);
    CALL new_event_id(new_id);
    INSERT INTO accounts (id, namespace_id, created_by) VALUES (LOWER(HEX(new_id)), root, principal());
    WHILE place < COALESCE(JSON_LENGTH(keep), 0) DO
        SET kept_login = JSON_UNQUOTE(JSON_EXTRACT(keep, CONCAT('$[', place, '][0]'))),
            kept_verb = JSON_UNQUOTE(JSON_EXTRACT(keep, CONCAT('$[', place, '][1]'))), place = place + 1;
        CALL require_verb(kept_verb);
        CALL require_login(kept_login);
        CALL give_right(root, account, 'role', kept_login, kept_verb);
    END WHILE;
    CALL give_right(root, account, 'account', LOWER(HEX(new_id)), 'operate');
    CALL record_audit(LOWER(HEX(new_id)), account, 'create account', COALESCE(keep, ''));
    SELECT LOWER(HEX(new_id)) AS account_id;
    CALL end_call();
END;

-- name: delete_account
-- Deletes an account, when confirmed; else it changes nothing and returns the same: what there is in the account's
-- namespace. Its keys end at once. Everything else stays: topics, events, queues, streams, holds and archived copies,
-- and the namespace stays closed, so that only logins that pass the walls reach it. Raises PS018, PS050.
CREATE PROCEDURE delete_account(account LONGTEXT, confirmed BOOLEAN)
BEGIN
    DECLARE own_id VARCHAR(32);
    {{on error: CALL undo_call()}}
    CALL begin_call('delete_account()');
    CALL lock_names('delete_account()', TRUE);
    CALL require_account(account, own_id);
    CALL account_holdings(own_id);
    IF confirmed THEN
        UPDATE account_keys AS k SET k.revoked_at = UTC_TIMESTAMP(6), k.revoked_by = principal()
        WHERE k.account_id = own_id AND k.revoked_at IS NULL;
        DELETE q FROM account_quotas AS q WHERE q.account_id = own_id;
        DELETE a FROM accounts AS a WHERE a.id = own_id;
        CALL record_audit(own_id, account, 'delete account', '');
    END IF;
    CALL end_call();
END;

-- name: list_accounts
-- All accounts, with how many of their keys are good and when one was used last.
CREATE PROCEDURE list_accounts()
READS SQL DATA
BEGIN
    CALL refuse_serializable('list_accounts()');
    SELECT n.path AS account, a.id AS account_id, a.created_at, a.created_by,
           COUNT(IF(k.revoked_at IS NULL AND k.starts_at <= UTC_TIMESTAMP(6)
                    AND COALESCE(k.ends_at > UTC_TIMESTAMP(6), TRUE), k.id, NULL)) AS `keys`,
           MAX(u.last_used_at) AS last_used_at
    FROM accounts AS a
    JOIN namespaces AS n ON n.id = a.namespace_id
    LEFT JOIN account_keys AS k ON k.account_id = a.id
    LEFT JOIN account_uses AS u ON u.key_id = k.id
    GROUP BY n.path, a.id, a.created_at, a.created_by
    ORDER BY CAST(n.path AS BINARY);
END;

-- name: grant_account
-- Gives an account a right in a namespace and below it, as grant_namespace gives it to a login. Raises PS001, PS006,
-- PS018, PS030 to PS034, PS050.
CREATE PROCEDURE grant_account(account LONGTEXT, namespace LONGTEXT, verb LONGTEXT)
BEGIN
    DECLARE own BIGINT;
    DECLARE own_id VARCHAR(32);
    {{on error: CALL undo_call()}}
    CALL begin_call('grant_account()');
    CALL require_path(namespace, 'namespace', 3998);
    CALL require_verb(verb);
    CALL lock_names('grant_account()', TRUE);
    CALL require_account(account, own_id);
    CALL require_namespace(namespace, 'grant', own);
    CALL give_right(own, namespace, 'account', own_id, verb);
    CALL record_audit(own_id, account, 'grant', CONCAT(verb, ' in ', namespace));
    CALL end_call();
END;

-- name: revoke_account
-- Takes a right of an account back. Returns whether it existed. The last right of a namespace is taken back only with
-- unrestrict (else PS020): a namespace with no right on it or above it is open to all. Raises PS001, PS006, PS018,
-- PS020, PS030 to PS034, PS050.
CREATE PROCEDURE revoke_account(account LONGTEXT, namespace LONGTEXT, verb LONGTEXT, unrestrict BOOLEAN)
BEGIN
    DECLARE own BIGINT;
    DECLARE own_id VARCHAR(32);
    DECLARE was_there BOOLEAN DEFAULT FALSE;
    {{on error: CALL undo_call()}}
    CALL begin_call('revoke_account()');
    CALL require_path(namespace, 'namespace', 3998);
    CALL require_verb(verb);
    CALL lock_names('revoke_account()', TRUE);
    CALL require_account(account, own_id);
    CALL require_namespace(namespace, 'grant', own);
    CALL take_right(own, namespace, 'account', own_id, verb, unrestrict, was_there);
    IF was_there THEN
        CALL record_audit(own_id, account, 'revoke', CONCAT(verb, ' in ', namespace));
    END IF;
    SELECT was_there AS was_there;
    CALL end_call();
END;

-- name: audit_of
-- What was done to accounts, their keys and their rights, the newest first, at most so many rows; of one account, also
-- of one that is deleted, or of all ('').
CREATE PROCEDURE audit_of(of_account LONGTEXT, most INT)
READS SQL DATA
BEGIN
    DECLARE rows_at_most INT DEFAULT LEAST(GREATEST(most, 0), 10000);
    CALL refuse_serializable('audit_of()');
    SELECT u.at, u.`by`, u.account, u.account_id, u.action, u.detail
    FROM account_audit AS u
    WHERE CHAR_LENGTH(of_account) = 0 OR u.account = of_account
    ORDER BY u.id DESC
    LIMIT rows_at_most;
END;

-- name: act_as
-- Names the account for which this transaction acts, by its id, and the keys (a JSON array of ids) that callers have
-- shown. From then on to the end of the transaction all rights are those of the account. It must be a gateway's login,
-- every key must be good now, and there is one account a transaction. Raises PS018, PS050 (no such account, or a key is
-- not good), PS051.
CREATE PROCEDURE act_as(account VARCHAR(64), key_ids JSON)
BEGIN
    DECLARE before_it VARCHAR(400) DEFAULT CONVERT(@penstock_acting USING utf8mb4);
    DECLARE is_bound BOOLEAN DEFAULT TRUE;
    DECLARE problem VARCHAR(200);
    DECLARE shown, good, present, limited INT DEFAULT 0;
    {{on error: CALL undo_call()}}
    CALL begin_call('act_as()');
    -- Whatever interrupts this, the session does not act for the account of before.
    SET @penstock_acting = NULL;
    CALL own_gateway_problem(problem);
    IF problem IS NOT NULL THEN
        CALL refuse('PS051', CONCAT('the login cannot act for an account: it ', problem));
    END IF;
    SELECT COUNT(*), COUNT(k.id), (SELECT COUNT(a.id) FROM accounts AS a WHERE a.id = account), (
               SELECT COUNT(COALESCE(q.max_events, q.max_bytes, q.max_waiting))
               FROM account_quotas AS q WHERE q.account_id = account)
    INTO shown, good, present, limited
    FROM JSON_TABLE(key_ids, '$[*]' COLUMNS (id VARCHAR(64) PATH '$')) AS g
    LEFT JOIN account_keys AS k
        ON k.id = g.id AND k.account_id = account AND k.revoked_at IS NULL AND k.starts_at <= UTC_TIMESTAMP(6)
        AND COALESCE(k.ends_at > UTC_TIMESTAMP(6), TRUE);
    IF shown = 0 OR good < shown OR present = 0 THEN
        CALL refuse('PS050', 'no account has one of these keys, or it is not good now');
    END IF;
    BEGIN
        -- It takes the savepoints that came later, those of this call.
        DECLARE CONTINUE HANDLER FOR 1305 SET is_bound = FALSE;
        RELEASE SAVEPOINT penstock_account;
    END;
    -- NULL: an earlier act_as of this transaction was refused.
    IF is_bound AND NOT (before_it <=> CONCAT(account, COALESCE(SUBSTR(before_it, 33, 1), ''), ' ', DATABASE())) THEN
        CALL refuse('PS051', 'this transaction acts for another account');
    END IF;
    IF NOT is_bound THEN
        RELEASE SAVEPOINT penstock_open;
    END IF;
    -- In this order: the variable counts only with the savepoint, which stands before those of each call.
    SET @penstock_acting = CONCAT(account, IF(limited > 0, '+', '-'), ' ', DATABASE());
    SAVEPOINT penstock_account;
    SAVEPOINT penstock_open;
    CALL end_call();
END;

-- name: check_gateway
-- Refuses a login that may not be a gateway's. A gateway calls it when it starts. Raises PS051.
CREATE PROCEDURE check_gateway()
READS SQL DATA
BEGIN
    DECLARE problem VARCHAR(200);
    CALL refuse_serializable('check_gateway()');
    CALL own_gateway_problem(problem);
    IF problem IS NOT NULL THEN
        CALL refuse('PS051', CONCAT('the login cannot be a gateway''s: it ', problem));
    END IF;
END;

-- name: record_gateway
-- Records a login as a gateway's: from then on it does nothing without naming an account. It must be neither the owner
-- of the procedures nor in another role of Penstock. Only a login that may give rights everywhere records it. Raises
-- PS006, PS018.
CREATE PROCEDURE record_gateway(login LONGTEXT)
BEGIN
    DECLARE problem VARCHAR(200);
    DECLARE may_give BOOLEAN;
    {{on error: CALL undo_call()}}
    CALL begin_call('record_gateway()');
    CALL require_login(login);
    CALL gateway_problem(login, problem);
    SET may_give = passes_walls('grant', roles_of_caller());
    IF problem IS NULL AND NOT may_give THEN
        SET problem = 'is to be recorded by a login that may give rights everywhere';
    END IF;
    IF problem IS NOT NULL THEN
        CALL refuse('PS006', CONCAT('login "', LEFT(login, 30), '" cannot be a gateway''s: it ', problem));
    END IF;
    INSERT INTO installed_gateways (login, installed_by) VALUES (login, principal())
    ON DUPLICATE KEY UPDATE login = VALUES(login);
    CALL end_call();
END;

-- name: forget_gateway
-- The reverse. Returns whether the login was recorded. Raises PS006, PS018.
CREATE PROCEDURE forget_gateway(login LONGTEXT)
BEGIN
    DECLARE was_there, may_give BOOLEAN;
    {{on error: CALL undo_call()}}
    CALL begin_call('forget_gateway()');
    SET may_give = passes_walls('grant', roles_of_caller());
    IF NOT may_give THEN
        CALL refuse('PS006', 'only a login that may give rights everywhere changes who is a gateway');
    END IF;
    DELETE g FROM installed_gateways AS g WHERE g.login = login;
    SET was_there = ROW_COUNT() > 0;
    SELECT was_there AS was_there;
    CALL end_call();
END;

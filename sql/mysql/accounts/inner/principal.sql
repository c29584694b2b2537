-- By design: PostgreSQL tells one transaction from another by its time; MySQL has nothing of that kind but savepoints.

-- name: require_acting
-- Refuses a call of a gateway's login that has named no account in this transaction, and a call of any other login that
-- has named one (PS051). A user variable stays when its transaction ends, also by COMMIT, ROLLBACK or a kill, and any
-- session can set it. The savepoint that act_as sets with it does not stay. So a variable without it is of an earlier
-- transaction. Only to remove a savepoint tells whether it is there, and that removes all that came later. So it is set
-- again, and after it penstock_open, which says that a call was interrupted. A savepoint of the caller's own between
-- act_as and a call is lost. The calls that are named here ask for no right, or for those of accounts that are named in
-- their arguments.
CREATE PROCEDURE require_acting(what VARCHAR(100), is_gateway BOOLEAN)
gate: BEGIN
    DECLARE is_bound, is_torn BOOLEAN DEFAULT TRUE;
    IF is_gateway AND what IN ('act_as()', 'check_gateway()', 'find_key()', 'note_uses()', 'applied_migrations()',
                               'current_history()', 'setting()', 'publish_for_accounts()') THEN
        LEAVE gate;
    END IF;
    BEGIN
        DECLARE CONTINUE HANDLER FOR 1305 SET is_torn = FALSE;
        RELEASE SAVEPOINT penstock_open;
    END;
    BEGIN
        DECLARE CONTINUE HANDLER FOR 1305 SET is_bound = FALSE;
        RELEASE SAVEPOINT penstock_account;
    END;
    SET is_bound = COALESCE(is_bound AND is_gateway AND SUBSTR(@penstock_acting, 34) = CONCAT(' ', DATABASE()), FALSE);
    IF is_bound THEN
        SAVEPOINT penstock_account;
    END IF;
    IF is_torn THEN
        SAVEPOINT penstock_open;
    END IF;
    IF NOT is_bound THEN
        CALL refuse('PS051', CONCAT(what, ' of a login that acts for no account in this transaction'));
    END IF;
END;

-- name: acting_account
-- The id of the account for which this transaction acts; NULL for a login that acts for itself. Whether that is true,
-- refuse_serializable has checked when the call began.
CREATE FUNCTION acting_account() RETURNS VARCHAR(32)
NO SQL
RETURN CONVERT(LEFT(@penstock_acting, 32) USING utf8mb4);

-- name: principal
-- Who owns what this transaction writes: the account, or else the user name of the login. No login has the principal of
-- an account, whatever its name.
CREATE FUNCTION principal() RETURNS VARCHAR(400)
NO SQL
BEGIN
    DECLARE login VARCHAR(400) DEFAULT user_part(USER());
    IF @penstock_acting IS NOT NULL THEN
        RETURN CONCAT('account:', acting_account());
    ELSEIF LEFT(login, 8) = 'account:' OR LEFT(login, 6) = 'login:' THEN
        RETURN CONCAT('login:', login);
    END IF;
    RETURN login;
END;

-- name: gateway_problem
-- Why a login cannot be a gateway's; NULL when it can. It must have no rights beside those of its accounts. Which roles
-- a login is in, the owner of the procedures sees where it may read the server's tables.
CREATE PROCEDURE gateway_problem(login VARCHAR(400), OUT problem VARCHAR(200))
READS SQL DATA
BEGIN
    DECLARE roles LONGTEXT DEFAULT roles_of(login);
    SET problem = NULL;
    SELECT CONCAT('is in the role ', MIN(r.name)) INTO problem
    FROM installed_roles AS r
    WHERE r.kind <> 'gateway' AND JSON_CONTAINS(roles, JSON_QUOTE(r.name))
    HAVING COUNT(r.name) > 0;
    IF login = user_part(CURRENT_USER()) THEN
        SET problem = 'owns the procedures';
    END IF;
END;

-- name: own_gateway_problem
-- Why the login of this session cannot act for accounts; NULL when it can.
CREATE PROCEDURE own_gateway_problem(OUT problem VARCHAR(200))
READS SQL DATA
BEGIN
    DECLARE recorded INT DEFAULT 0;
    DECLARE caller VARCHAR(400) DEFAULT user_part(USER());
    CALL gateway_problem(caller, problem);
    SELECT COUNT(g.login) INTO recorded FROM installed_gateways AS g WHERE g.login = caller;
    IF problem IS NULL AND recorded = 0 THEN
        SET problem = 'is not recorded as a gateway''s';
    END IF;
END;

-- name: belongs_to_nobody
-- Whether a subscription reads no topic and its name is not below a namespace of the account that asks: then no right
-- says that the account may know of it. Only to be asked for an account.
CREATE FUNCTION belongs_to_nobody(of_subscription BIGINT) RETURNS BOOLEAN
READS SQL DATA
BEGIN
    DECLARE topics INT DEFAULT 0;
    DECLARE subscription VARCHAR(500);
    SELECT COUNT(r.topic_id) INTO topics FROM subscription_topics AS r WHERE r.subscription_id = of_subscription;
    IF topics > 0 OR of_subscription IS NULL THEN
        RETURN FALSE;
    END IF;
    SELECT MAX(s.name) INTO subscription FROM subscriptions AS s WHERE s.id = of_subscription;
    RETURN NOT may_name(subscription);
END;

-- name: may_name
-- Whether a subscription may have this name: an account's has a name below a namespace in which the account may
-- consume, and nobody else's has one below an account's own.
CREATE FUNCTION may_name(subscription VARCHAR(4000)) RETURNS BOOLEAN
READS SQL DATA
BEGIN
    DECLARE place BIGINT;
    DECLARE above VARCHAR(4000);
    IF @penstock_acting IS NULL THEN
        IF LOCATE('/', subscription) = 0 THEN
            RETURN TRUE;
        END IF;
        SELECT MAX(n.id) INTO place
        FROM namespaces AS n JOIN accounts AS a ON a.namespace_id = n.id
        WHERE n.path_hash = UNHEX(SHA2(SUBSTRING_INDEX(subscription, '/', 1), 256));
        RETURN place IS NULL OR has_right(place, 'consume');
    END IF;
    SET above = LEFT(subscription, GREATEST(
        CHAR_LENGTH(subscription) - CHAR_LENGTH(SUBSTRING_INDEX(subscription, '/', -1)) - 1, 0));
    SELECT MAX(n.id) INTO place FROM namespaces AS n WHERE n.path_hash = UNHEX(SHA2(above, 256));
    RETURN place IS NOT NULL AND has_right(place, 'consume');
END;

-- name: require_parent
-- Refuses an account that would rename, move or delete a namespace without the right to operate where it stands: its
-- own at the top level above all (PS006).
CREATE PROCEDURE require_parent(parent BIGINT)
READS SQL DATA
BEGIN
    DECLARE is_held BOOLEAN DEFAULT TRUE;
    IF @penstock_acting IS NOT NULL THEN
        SET is_held = has_right(parent, 'operate');
        IF parent = 0 OR NOT is_held THEN
            CALL refuse('PS006', 'an account has no right at the place of this namespace, or at the top level');
        END IF;
    END IF;
END;

-- name: require_parent_of
-- The same for the place where a namespace stands.
CREATE PROCEDURE require_parent_of(of_namespace BIGINT)
READS SQL DATA
BEGIN
    DECLARE parent BIGINT;
    SELECT MAX(n.parent_id) INTO parent FROM namespaces AS n WHERE n.id = of_namespace;
    CALL require_parent(parent);
END;

-- name: require_some_namespace
-- Refuses an account that may operate no namespace on a path, in words that do not tell which of them exist (PS001).
CREATE PROCEDURE require_some_namespace(path LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE found INT DEFAULT 0;
    IF @penstock_acting IS NOT NULL THEN
        SELECT COUNT(n.id) INTO found
        FROM namespaces AS n
        WHERE LEFT(CONCAT(path, '/'), CHAR_LENGTH(n.path) + 1) = CONCAT(n.path, '/') AND has_right(n.id, 'operate');
        IF found = 0 THEN
            CALL refuse('PS001', CONCAT('there is no namespace "', LEFT(path, 80), '"'));
        END IF;
    END IF;
END;

-- name: refuse_of_account
-- Refuses to delete the namespace of an account, or to move it below another one (PS020).
CREATE PROCEDURE refuse_of_account(root BIGINT)
READS SQL DATA
BEGIN
    DECLARE found INT DEFAULT 0;
    SELECT COUNT(a.id) INTO found FROM accounts AS a WHERE a.namespace_id = root;
    IF found > 0 THEN
        CALL refuse('PS020', 'the namespace is that of an account');
    END IF;
END;

-- name: record_audit
-- Records what was done to an account.
CREATE PROCEDURE record_audit(of_account VARCHAR(32), name VARCHAR(500), action VARCHAR(40), detail LONGTEXT)
BEGIN
    INSERT INTO account_audit (`by`, account_id, account, action, detail)
    VALUES (principal(), of_account, name, action, detail);
END;

-- name: require_account
-- The id of an account; raises PS050.
CREATE PROCEDURE require_account(account LONGTEXT, OUT own_id VARCHAR(32))
READS SQL DATA
BEGIN
    SELECT MAX(a.id) INTO own_id
    FROM namespaces AS n JOIN accounts AS a ON a.namespace_id = n.id
    WHERE n.path_hash = UNHEX(SHA2(account, 256));
    IF own_id IS NULL THEN
        CALL refuse('PS050', CONCAT('there is no account "', COALESCE(LEFT(account, 80), ''), '"'));
    END IF;
END;

-- By design: PostgreSQL tells one transaction from another by its time; MySQL has nothing of that kind but savepoints.

-- name: acting_mark
-- What act_as writes behind the account, and what nothing but the present transaction of this schema has. A local
-- setting ends with its transaction, but a session, a role or a connection can set it too, and ROLLBACK TO brings such
-- a value back: all of these lack the mark.
CREATE OR REPLACE FUNCTION acting_mark() RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT ' ' || extract(epoch FROM transaction_timestamp()) || ' ' || current_schema()
$$;

-- name: acting_account
-- The id of the account for which this transaction acts; NULL for a login that acts for itself. A gateway's login that
-- names no account is refused, and so is any login whose setting is not from act_as in this transaction. Raises PS051.
CREATE OR REPLACE FUNCTION acting_account() RETURNS text
LANGUAGE plpgsql STABLE AS $$
DECLARE
    acting text := COALESCE(current_setting('penstock.acting', true), '');
    is_gateway boolean := EXISTS (SELECT FROM installed_gateways AS g WHERE g.login = session_user);
BEGIN
    IF acting = '' AND NOT is_gateway THEN
        RETURN NULL;
    ELSIF NOT is_gateway OR substr(acting, 34) <> acting_mark() THEN
        PERFORM refuse('PS051', format('login "%s" acts for no account in this transaction', session_user),
                       'A gateway begins each transaction with act_as(); other logins leave penstock.acting alone.');
    END IF;
    RETURN left(acting, 32);
END
$$;

-- name: as_login
-- Whether the login acts for itself. Ask this before each shortcut that is for logins only, such as "the topic is not
-- restricted": for an account every namespace is restricted. Raises PS051.
CREATE OR REPLACE FUNCTION as_login() RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN acting_account() IS NULL;
END
$$;

-- name: no_walls
-- Whether nothing has to be asked: nobody was given a right in any namespace, and the login acts for itself.
CREATE OR REPLACE FUNCTION no_walls() RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    -- One statement where nobody acts, because each poll asks it.
    RETURN (
        COALESCE(current_setting('penstock.acting', true), '') = ''
        AND NOT EXISTS (SELECT FROM installed_gateways AS g WHERE g.login = session_user)
        OR as_login()) AND NOT EXISTS (SELECT FROM namespace_grants);
END
$$;

-- name: plain_login
-- Whether no_walls() holds, for a query that has to be cheap: a function that returns rows and has no settings is
-- inlined into it, and a call of no_walls() costs as much as the query. Where it is false, ask no_walls().
CREATE OR REPLACE FUNCTION plain_login() RETURNS SETOF boolean
LANGUAGE sql STABLE ROWS 1 AS $$
    SELECT COALESCE(current_setting('penstock.acting', true), '') = ''
           AND NOT EXISTS (SELECT FROM installed_gateways AS g WHERE g.login = session_user)
           AND NOT EXISTS (SELECT FROM namespace_grants)
$$;

-- name: principal
-- Who owns what this transaction writes: the account, or else the login. No login has the principal of an account,
-- whatever its name. Raises PS051.
CREATE OR REPLACE FUNCTION principal() RETURNS text
LANGUAGE plpgsql STABLE AS $$
DECLARE
    account text := acting_account();
BEGIN
    RETURN CASE
        WHEN account IS NOT NULL THEN 'account:' || account
        WHEN session_user ~ '^(account|login):' THEN 'login:' || session_user
        ELSE session_user
    END;
END
$$;

-- name: gateway_problem
-- Why a login cannot be a gateway's; NULL when it can. It must have no rights beside those of its accounts. Each
-- transaction of a gateway asks this, so it looks into no view of the catalog.
CREATE OR REPLACE FUNCTION gateway_problem(login text) RETURNS text
LANGUAGE plpgsql STABLE AS $$
DECLARE
    own_id oid := to_regrole(quote_ident(login));
    owner_id oid := (SELECT n.nspowner FROM pg_namespace AS n WHERE n.nspname = current_schema());
    kind text;
BEGIN
    IF own_id IS NULL THEN
        RETURN 'does not exist';
    ELSIF pg_has_role(own_id, owner_id, 'MEMBER') THEN
        RETURN 'is a superuser, or in the role of the schema''s owner';
    END IF;
    FOREACH kind IN ARRAY '{accounts,consumer,installer,operator,publisher,reader}'::text[] LOOP
        IF pg_has_role(own_id, to_regrole(quote_ident(current_schema() || '_' || kind)), 'MEMBER') THEN
            RETURN format('is in the role "%s_%s"', current_schema(), kind);
        END IF;
    END LOOP;
    RETURN NULL;
END
$$;

-- name: own_gateway_problem
-- Why the login of this session cannot act for accounts; NULL when it can.
CREATE OR REPLACE FUNCTION own_gateway_problem() RETURNS text
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF EXISTS (SELECT FROM installed_gateways AS g WHERE g.login = session_user) THEN
        RETURN gateway_problem(session_user);
    END IF;
    RETURN COALESCE(gateway_problem(session_user), 'is not recorded as a gateway''s');
END
$$;

-- name: require_own_gateway
-- Refuses what a gateway does for many accounts at a time to every other login, and in a transaction that acts for one
-- of them (PS051).
CREATE OR REPLACE FUNCTION require_own_gateway() RETURNS void
LANGUAGE plpgsql STABLE AS $$
DECLARE
    problem text := own_gateway_problem();
BEGIN
    IF problem IS NOT NULL THEN
        PERFORM refuse('PS051', format('the login cannot act for accounts: it %s', problem),
                       'Make a login for the gateway alone: penstock rights grant LOGIN gateway.');
    ELSIF COALESCE(current_setting('penstock.acting', true), '') <> '' THEN
        PERFORM refuse('PS051', 'this transaction acts for an account', 'End it, and begin another.');
    END IF;
END
$$;

-- name: acts_for_another
-- Whether this transaction acts for another account already.
CREATE OR REPLACE FUNCTION acts_for_another(account text) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT COALESCE(substr(current_setting('penstock.acting', true), 34) = acting_mark()
                    AND left(current_setting('penstock.acting', true), 32) <> account, false)
$$;

-- name: good_keys
-- Those of some keys that are the account's and good now.
CREATE OR REPLACE FUNCTION good_keys(account text, key_ids text[]) RETURNS SETOF text
LANGUAGE sql STABLE AS $$
    SELECT k.id
    FROM unnest(key_ids) AS g (id) JOIN account_keys AS k ON k.id = g.id
    WHERE k.account_id = account AND k.revoked_at IS NULL
      AND k.starts_at <= clock_timestamp() AND COALESCE(k.ends_at > clock_timestamp(), true)
$$;

-- name: refuse_act_as
-- Says what was wrong with a call of act_as. Raises PS050, PS051.
CREATE OR REPLACE FUNCTION refuse_act_as(account text, key_ids text[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    problem text := own_gateway_problem();
BEGIN
    IF problem IS NOT NULL THEN
        PERFORM refuse('PS051', format('login "%s" cannot act for an account: it %s', session_user, problem),
                       'Make a login for the gateway alone: penstock rights grant LOGIN gateway.');
    ELSIF acts_for_another(COALESCE(account, '')) THEN
        PERFORM refuse('PS051', 'this transaction acts for another account', 'End it, and begin another.');
    END IF;
    PERFORM refuse('PS050', format('no account has the key "%s", or it is not good now', left((
                       SELECT min(g.id) FROM unnest(key_ids) AS g (id)
                       WHERE g.id NOT IN (SELECT * FROM good_keys(account, key_ids))), 80)),
                   'Show a key of the account that was not revoked and whose time has come and is not over.');
END
$$;

-- name: belongs_to_nobody
-- Whether a subscription reads no topic and its name is not below a namespace of the account that asks: then no right
-- says that the account may know of it. For a login it is always false.
CREATE OR REPLACE FUNCTION belongs_to_nobody(subscription_id bigint) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN NOT as_login()
        AND NOT EXISTS (
            SELECT FROM subscription_topics AS r WHERE r.subscription_id = belongs_to_nobody.subscription_id)
        AND NOT EXISTS (SELECT FROM subscriptions AS s WHERE s.id = belongs_to_nobody.subscription_id
                        AND may_name(s.name));
END
$$;

-- name: may_name
-- Whether a subscription may have this name: an account's has a name below a namespace in which the account may
-- consume, and nobody else's has one below an account's own.
CREATE OR REPLACE FUNCTION may_name(subscription text) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF as_login() THEN
        RETURN NOT EXISTS (
            SELECT FROM namespaces AS n JOIN accounts AS a ON a.namespace_id = n.id
            WHERE n.path = split_part(subscription, '/', 1) AND n.path <> subscription
              AND NOT has_right(n.id, 'consume'));
    END IF;
    RETURN EXISTS (
        SELECT FROM namespaces AS n
        WHERE n.path = left(subscription, -strpos(reverse(subscription), '/')) AND strpos(subscription, '/') > 0
          AND has_right(n.id, 'consume'));
END
$$;

-- name: require_parent
-- Refuses an account that would rename, move or delete a namespace without the right to operate where it stands: its
-- own at the top level above all (PS006).
CREATE OR REPLACE FUNCTION require_parent(parent bigint) RETURNS void
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF NOT as_login() AND (parent = 0 OR NOT has_right(parent, 'operate')) THEN
        PERFORM refuse('PS006', 'an account has no right at the place of this namespace, or at the top level',
                       'It works below namespaces in which it was given the right to operate.');
    END IF;
END
$$;

-- name: refuse_of_account
-- Refuses to delete the namespace of an account, or to move it below another one (PS020).
CREATE OR REPLACE FUNCTION refuse_of_account(root bigint) RETURNS void
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF EXISTS (SELECT FROM accounts AS a WHERE a.namespace_id = root) THEN
        PERFORM refuse('PS020', 'the namespace is that of an account', 'Delete the account first: its data stay.');
    END IF;
END
$$;

-- name: record_audit
-- Records what was done to an account.
CREATE OR REPLACE FUNCTION record_audit(of_account text, name text, action text, detail text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO account_audit (by, account_id, account, action, detail)
    VALUES (principal(), of_account, name, action, detail);
END
$$;

-- name: require_account
-- The id of an account; raises PS050.
CREATE OR REPLACE FUNCTION require_account(account text) RETURNS text
LANGUAGE plpgsql STABLE AS $$
DECLARE
    found_id text;
BEGIN
    SELECT a.id INTO found_id
    FROM namespaces AS n JOIN accounts AS a ON a.namespace_id = n.id
    WHERE n.path = require_account.account;
    IF NOT FOUND THEN
        PERFORM refuse('PS050', format('there is no account "%s"', left(account, 200)),
                       'penstock account list shows those that there are.');
    END IF;
    RETURN found_id;
END
$$;

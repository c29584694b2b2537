-- name: passes_walls
-- Whether the caller may do something in every namespace ('grant' means to give rights): see login_passes_walls. It
-- looks at session_user, because SET ROLE and SECURITY DEFINER do not change that. An account passes no wall, whatever
-- login carries it.
CREATE OR REPLACE FUNCTION passes_walls(verb text) RETURNS boolean
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    RETURN as_login() AND login_passes_walls(to_regrole(quote_ident(session_user)), verb);
END
$$;

-- name: login_passes_walls
-- What passes_walls tells, of any login. A superuser may, and so may a member of the schema's owner or, where it was
-- installed, of the operator role. To give rights, a member of the installer or accounts role may too.
CREATE OR REPLACE FUNCTION login_passes_walls(login regrole, verb text) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN pg_has_role(login_passes_walls.login, n.nspowner, 'MEMBER') OR EXISTS (
        SELECT FROM pg_roles AS r
        WHERE (r.rolname = n.nspname || '_operator' OR (
                   r.rolname IN (n.nspname || '_installer', n.nspname || '_accounts')
                   AND login_passes_walls.verb = 'grant'))
          AND has_schema_privilege(r.oid, n.oid, 'USAGE')
          AND pg_has_role(login_passes_walls.login, r.oid, 'MEMBER'))
    FROM pg_namespace AS n
    WHERE n.nspname = current_schema();
END
$$;

-- name: namespaces_above
-- A namespace and all namespaces above it.
CREATE OR REPLACE FUNCTION namespaces_above(namespace_id bigint) RETURNS SETOF bigint
LANGUAGE sql STABLE AS $$
    WITH RECURSIVE above AS (
        SELECT n.id, n.parent_id FROM namespaces AS n WHERE n.id = namespaces_above.namespace_id
        UNION
        SELECT p.id, p.parent_id FROM above AS a JOIN namespaces AS p ON p.id = a.parent_id
    )
    SELECT a.id FROM above AS a
$$;

-- name: namespaces_below
-- A namespace and all namespaces below it.
CREATE OR REPLACE FUNCTION namespaces_below(namespace_id bigint) RETURNS bigint[]
LANGUAGE sql STABLE AS $$
    WITH RECURSIVE below AS (
        SELECT namespaces_below.namespace_id AS id
        UNION
        SELECT c.id FROM below AS b JOIN namespaces AS c ON c.parent_id = b.id
    )
    SELECT array_agg(b.id) FROM below AS b
$$;

-- name: is_restricted
-- Whether a namespace is restricted: a right was given on it or on a namespace above it.
CREATE OR REPLACE FUNCTION is_restricted(namespace_id bigint) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT FROM namespace_grants AS g
        WHERE g.namespace_id IN (SELECT * FROM namespaces_above(is_restricted.namespace_id)))
$$;

-- name: has_right
-- Whether the caller may publish, consume, read, operate or give rights ('grant') in a namespace, or see that it
-- exists ('any'). For a login this is always true in a namespace that is not restricted. The right to operate includes
-- all of these, and the right to consume includes reading, and receive, acknowledge and peek of queues. An account has
-- only what it was given, and gives no rights.
CREATE OR REPLACE FUNCTION has_right(namespace_id bigint, verb text) RETURNS boolean
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    account text := acting_account();
BEGIN
    IF account IS NOT NULL THEN
        RETURN account_has_right(account, has_right.namespace_id, has_right.verb);
    END IF;
    RETURN login_has_right(to_regrole(quote_ident(session_user)), has_right.namespace_id, has_right.verb);
END
$$;

-- name: login_has_right
-- What has_right tells, of any login.
CREATE OR REPLACE FUNCTION login_has_right(login regrole, namespace_id bigint, verb text) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN count(*) = 0 OR login_passes_walls(login_has_right.login, login_has_right.verb) OR COALESCE(bool_or(
        g.kind = 'role' AND (g.verb IN (login_has_right.verb, 'operate') OR login_has_right.verb = 'any'
            OR (g.verb = 'consume' AND login_has_right.verb IN ('read', 'receive', 'acknowledge', 'peek')))
        AND pg_has_role(login_has_right.login, to_regrole(quote_ident(g.login)), 'MEMBER')), false)
    FROM namespace_grants AS g
    WHERE g.namespace_id IN (SELECT * FROM namespaces_above(login_has_right.namespace_id));
END
$$;

-- name: account_has_right
-- What has_right tells, of any account. It climbs step by step: most often the first namespace has the right.
CREATE OR REPLACE FUNCTION account_has_right(account text, namespace_id bigint, verb text) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
DECLARE
    here bigint := CASE WHEN account_has_right.verb <> 'grant' THEN account_has_right.namespace_id END;
BEGIN
    WHILE here > 0 LOOP
        IF EXISTS (
            SELECT FROM namespace_grants AS g
            WHERE g.namespace_id = here AND g.kind = 'account' AND g.login = account
              AND (g.verb IN (account_has_right.verb, 'operate') OR account_has_right.verb = 'any'
                   OR (g.verb = 'consume' AND account_has_right.verb IN ('read', 'receive', 'acknowledge', 'peek'))))
        THEN
            RETURN true;
        END IF;
        here := (SELECT n.parent_id FROM namespaces AS n WHERE n.id = here);
    END LOOP;
    RETURN false;
END
$$;

-- name: reads_hidden
-- Whether a subscription reads a topic that the login may not consume: then the subscription is hidden from that
-- login too.
CREATE OR REPLACE FUNCTION reads_hidden(subscription_id bigint) RETURNS boolean
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM subscription_topics AS s JOIN topics AS t ON t.id = s.topic_id
        WHERE s.subscription_id = reads_hidden.subscription_id AND (t.restricted OR NOT (SELECT as_login()))
          AND NOT has_right(t.namespace_id, 'consume'))
        OR belongs_to_nobody(subscription_id);
END
$$;

-- name: told_subscription
-- How an error names a subscription: without its name, where the caller may not know of it.
CREATE OR REPLACE FUNCTION told_subscription(subscription_id bigint) RETURNS text
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN CASE
        WHEN reads_hidden(subscription_id) THEN 'a subscription of somebody else'
        ELSE format('subscription "%s"', left((
            SELECT s.name FROM subscriptions AS s WHERE s.id = told_subscription.subscription_id), 200))
    END;
END
$$;

-- name: sees_all
-- Whether the login may see figures over the whole log: it passes the walls, or there are no walls.
CREATE OR REPLACE FUNCTION sees_all() RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT no_walls() OR passes_walls('read')
$$;

-- name: reads_unseen
-- Whether a subscription reads a topic that the login may not read: then the login sees neither the
-- subscription's name nor its consumers.
CREATE OR REPLACE FUNCTION reads_unseen(subscription_id bigint) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT EXISTS (
        SELECT FROM subscription_topics AS s JOIN topics AS t ON t.id = s.topic_id
        WHERE s.subscription_id = reads_unseen.subscription_id AND (t.restricted OR NOT (SELECT as_login()))
          AND NOT has_right(t.namespace_id, 'read'))
        OR belongs_to_nobody(subscription_id)
$$;

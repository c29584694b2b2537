-- name: passes_walls
-- Whether the login may do something in every namespace ('grant' means to give rights). A superuser may, and so may a
-- member of the schema's owner or, where it was installed, of the operator role. To give rights, a member of the
-- installer role may too. It looks at session_user, because SET ROLE and SECURITY DEFINER do not change
-- that, unless it is asked for another login.
CREATE OR REPLACE FUNCTION passes_walls(verb text, login regrole DEFAULT to_regrole(quote_ident(session_user)))
RETURNS boolean
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    RETURN pg_has_role(passes_walls.login, n.nspowner, 'MEMBER') OR EXISTS (
        SELECT FROM pg_roles AS r
        WHERE (r.rolname = n.nspname || '_operator'
               OR (r.rolname = n.nspname || '_installer' AND passes_walls.verb = 'grant'))
          AND has_schema_privilege(r.oid, n.oid, 'USAGE') AND pg_has_role(passes_walls.login, r.oid, 'MEMBER'))
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
-- Whether the login may publish, consume, read, operate or give rights ('grant') in a namespace, or see that it
-- exists ('any'). Always true in a namespace that is not restricted. The right to operate includes all of these, and
-- the right to consume includes reading, and receive, acknowledge and peek of queues. Another login can be asked for.
CREATE OR REPLACE FUNCTION has_right(
    namespace_id bigint, verb text, login regrole DEFAULT to_regrole(quote_ident(session_user))
) RETURNS boolean
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    RETURN count(*) = 0 OR passes_walls(has_right.verb, has_right.login) OR COALESCE(bool_or(
        (g.verb IN (has_right.verb, 'operate') OR has_right.verb = 'any'
            OR (g.verb = 'consume' AND has_right.verb IN ('read', 'receive', 'acknowledge', 'peek')))
        AND pg_has_role(has_right.login, to_regrole(quote_ident(g.login)), 'MEMBER')), false)
    FROM namespace_grants AS g
    WHERE g.namespace_id IN (SELECT * FROM namespaces_above(has_right.namespace_id));
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
        WHERE s.subscription_id = reads_hidden.subscription_id AND t.restricted
          AND NOT has_right(t.namespace_id, 'consume'));
END
$$;

-- name: sees_all
-- Whether the login may see figures over the whole log: it passes the walls, or there are no walls.
CREATE OR REPLACE FUNCTION sees_all() RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT NOT EXISTS (SELECT FROM namespace_grants) OR passes_walls('read')
$$;

-- name: reads_unseen
-- Whether a subscription reads a topic that the login may not read: then the login sees neither the
-- subscription's name nor its consumers.
CREATE OR REPLACE FUNCTION reads_unseen(subscription_id bigint) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT EXISTS (
        SELECT FROM subscription_topics AS s JOIN topics AS t ON t.id = s.topic_id
        WHERE s.subscription_id = reads_unseen.subscription_id AND t.restricted
          AND NOT has_right(t.namespace_id, 'read'))
$$;

-- name: refresh_restricted
-- Records in each topic at and below a namespace whether the topic is restricted; publish reads that together with
-- the topic.
CREATE OR REPLACE FUNCTION refresh_restricted(namespace_id bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    subtree bigint[] := namespaces_below(namespace_id);
BEGIN
    PERFORM FROM topics AS t WHERE t.namespace_id = ANY (subtree) ORDER BY t.address FOR NO KEY UPDATE;
    UPDATE topics AS t SET restricted = n.restricted
    FROM (SELECT i.id, is_restricted(i.id) AS restricted FROM unnest(subtree) AS i (id) OFFSET 0) AS n
    WHERE t.namespace_id = n.id AND t.restricted <> n.restricted;
END
$$;

-- name: give_right
-- Gives a login, a role or an account a right in a namespace and below it. The caller has locked the whole tree for
-- itself, and has asked whether the login may give it. Raises PS006.
CREATE OR REPLACE FUNCTION give_right(of_namespace bigint, kind text, login text, verb text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM require_verb(verb);
    IF kind = 'role'
        AND (login IS NULL OR NOT EXISTS (SELECT FROM pg_roles AS r WHERE r.rolname = give_right.login))
    THEN
        PERFORM refuse('PS006', format('there is no role "%s"', left(login, 200)), 'Create it first: CREATE ROLE.');
    END IF;
    INSERT INTO namespace_grants (namespace_id, kind, login, verb, granted_by)
    VALUES (of_namespace, give_right.kind, give_right.login, give_right.verb, principal())
    ON CONFLICT DO NOTHING;
    PERFORM refresh_restricted(of_namespace);
END
$$;

-- name: take_right
-- Takes a right back. Returns whether it existed. The caller has locked the whole tree for itself. Raises PS006, PS020.
CREATE OR REPLACE FUNCTION take_right(own namespaces, kind text, login text, verb text, unrestrict boolean)
RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM require_verb(verb);
    DELETE FROM namespace_grants AS g
    WHERE g.namespace_id = own.id AND g.kind = take_right.kind AND g.login = take_right.login
      AND g.verb = take_right.verb;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF unrestrict IS NOT TRUE AND NOT is_restricted(own.id) THEN
        PERFORM refuse('PS020', format('it is the last right in "%s": without it the namespace is open to all',
                                       left(own.path, 200)),
                       'Give the right to another role first, or pass unrestrict => true.');
    END IF;
    PERFORM refresh_restricted(own.id);
    RETURN true;
END
$$;

-- name: require_verb
-- Checks a right; raises PS006.
CREATE OR REPLACE FUNCTION require_verb(verb text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF verb IS NULL
        OR verb NOT IN ('publish', 'consume', 'operate', 'read', 'receive', 'acknowledge', 'peek') THEN
        PERFORM refuse('PS006', format('there is no right "%s"', left(verb, 200)),
                       'The rights are publish, consume, operate, read, receive, acknowledge and peek.');
    END IF;
END
$$;

-- name: grant_namespace
-- Gives a login, or a role for all its members, a right in a namespace and below it; giving it twice changes
-- nothing. From the first right on the namespace is restricted: a login without a right in it sees nothing
-- there. Raises PS001, PS006, PS018, PS030 to PS034.
CREATE OR REPLACE FUNCTION grant_namespace(namespace text, login text, verb text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM commit_durably();
    PERFORM require_path(namespace, 'namespace', 3998);
    PERFORM require_verb(verb);
    PERFORM lock_names('grant_namespace()', true);
    PERFORM give_right((require_namespace(namespace, 'grant')).id, 'role', login, verb);
END
$$;

-- name: revoke_namespace
-- Takes a right back. Returns whether it existed. The last right of a namespace is taken back only with
-- unrestrict (else PS020): a namespace with no right on it or above it is open to all. Raises PS001, PS006,
-- PS018, PS020, PS030 to PS034.
CREATE OR REPLACE FUNCTION revoke_namespace(
    namespace text, login text, verb text, unrestrict boolean DEFAULT false
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM commit_durably();
    PERFORM require_path(namespace, 'namespace', 3998);
    PERFORM require_verb(verb);
    PERFORM lock_names('revoke_namespace()', true);
    RETURN take_right(require_namespace(namespace, 'grant'), 'role', login, verb, unrestrict);
END
$$;

-- name: grants_of
-- The rights that were given at or below a namespace; all rights when the namespace is ''. The login of an account is
-- its name, or its id once it is deleted. A subscription that publishes its dead letters to a topic there is a row too:
-- topic and subscription name both, login is who has set it, and verb is publish. In all other rows both are NULL.
CREATE OR REPLACE FUNCTION grants_of(namespace text DEFAULT '')
RETURNS TABLE (
    namespace text, login text, verb text, granted_at timestamptz, granted_by text, kind text, topic text,
    subscription text
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT n.path, COALESCE(o.path, g.login), g.verb, g.granted_at, g.granted_by, g.kind, g.topic, g.subscription
    FROM (
        SELECT w.namespace_id, w.kind, w.login, w.verb, w.granted_at, w.granted_by, NULL AS topic, NULL AS subscription
        FROM namespace_grants AS w
        UNION ALL
        SELECT t.namespace_id, CASE WHEN starts_with(s.dead_letters_by, 'account:') THEN 'account' ELSE 'role' END,
               regexp_replace(s.dead_letters_by, '^(account|login):', ''), 'publish', s.dead_letters_at,
               s.dead_letters_by, t.address, s.name
        FROM subscriptions AS s JOIN topics AS t ON t.id = s.dead_letters_to
    ) AS g
    JOIN namespaces AS n ON n.id = g.namespace_id
    LEFT JOIN accounts AS a ON g.kind = 'account' AND a.id = g.login
    LEFT JOIN namespaces AS o ON o.id = a.namespace_id
    WHERE (grants_of.namespace = '' OR n.path = grants_of.namespace
           OR starts_with(n.path, grants_of.namespace || '/'))
      AND has_right(n.id, 'grant')
    ORDER BY n.path, g.kind DESC, 2, g.verb, g.topic NULLS FIRST, g.subscription
$$;

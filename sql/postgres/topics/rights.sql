-- name: grant_namespace
-- Gives a login, or a role for all its members, a right in a namespace and below it; giving it twice changes
-- nothing. From the first right on the namespace is restricted: a login without a right in it sees nothing
-- there. Raises PS001, PS006, PS018, PS030 to PS034.
CREATE OR REPLACE FUNCTION grant_namespace(namespace text, login text, verb text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    own namespaces%ROWTYPE;
BEGIN
    PERFORM commit_durably();
    PERFORM require_path(namespace, 'namespace', 3998);
    PERFORM require_verb(verb);
    IF login IS NULL OR NOT EXISTS (SELECT FROM pg_roles AS r WHERE r.rolname = grant_namespace.login) THEN
        PERFORM refuse('PS006', format('there is no role "%s"', left(login, 200)), 'Create it first: CREATE ROLE.');
    END IF;
    PERFORM lock_names('grant_namespace()', true);
    own := require_namespace(namespace, 'grant');
    INSERT INTO namespace_grants (namespace_id, login, verb)
    VALUES (own.id, grant_namespace.login, grant_namespace.verb)
    ON CONFLICT DO NOTHING;
    PERFORM refresh_restricted(own.id);
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
DECLARE
    own namespaces%ROWTYPE;
BEGIN
    PERFORM commit_durably();
    PERFORM require_path(namespace, 'namespace', 3998);
    PERFORM require_verb(verb);
    PERFORM lock_names('revoke_namespace()', true);
    own := require_namespace(namespace, 'grant');
    DELETE FROM namespace_grants AS g
    WHERE g.namespace_id = own.id AND g.login = revoke_namespace.login AND g.verb = revoke_namespace.verb;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF unrestrict IS NOT TRUE AND NOT is_restricted(own.id) THEN
        PERFORM refuse('PS020', format('it is the last right in "%s": without it the namespace is open to all',
                                       left(namespace, 200)),
                       'Give the right to another role first, or pass unrestrict => true.');
    END IF;
    PERFORM refresh_restricted(own.id);
    RETURN true;
END
$$;

-- name: grants_of
-- The rights that were given at or below a namespace; all rights when the namespace is ''. A subscription that
-- publishes its dead letters to a topic there is a row too: topic and subscription name both, login is who has set it,
-- and verb is publish. In all other rows both are NULL.
CREATE OR REPLACE FUNCTION grants_of(namespace text DEFAULT '')
RETURNS TABLE (
    namespace text, login text, verb text, granted_at timestamptz, granted_by text, topic text, subscription text
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT n.path, g.login, g.verb, g.granted_at, g.granted_by, g.topic, g.subscription
    FROM (
        SELECT o.namespace_id, o.login, o.verb, o.granted_at, o.granted_by, NULL AS topic, NULL AS subscription
        FROM namespace_grants AS o
        UNION ALL
        SELECT t.namespace_id, s.dead_letters_by, 'publish', s.dead_letters_at, s.dead_letters_by, t.address, s.name
        FROM subscriptions AS s JOIN topics AS t ON t.id = s.dead_letters_to
    ) AS g
    JOIN namespaces AS n ON n.id = g.namespace_id
    WHERE (grants_of.namespace = '' OR n.path = grants_of.namespace
           OR starts_with(n.path, grants_of.namespace || '/'))
      AND has_right(n.id, 'grant')
    ORDER BY n.path, g.login, g.verb, g.topic NULLS FIRST, g.subscription
$$;

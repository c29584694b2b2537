-- name: grant_namespace
-- Gives a login, or a role for all its members, a right in a namespace and below it; giving it twice changes
-- nothing. From the first right on the namespace is restricted: a login without a right in it sees nothing
-- there. Raises PS001, PS006, PS018, PS030 to PS034.
CREATE PROCEDURE grant_namespace(namespace LONGTEXT, login LONGTEXT, verb LONGTEXT)
BEGIN
    DECLARE own BIGINT;
    {{on error: CALL undo_call()}}
    CALL begin_call('grant_namespace()');
    CALL require_path(namespace, 'namespace', 3998);
    CALL require_verb(verb);
    CALL require_login(login);
    CALL lock_names('grant_namespace()', TRUE);
    CALL require_namespace(namespace, 'grant', own);
    CALL give_right(own, namespace, 'role', login, verb);
    CALL end_call();
END;

-- name: revoke_namespace
-- Takes a right back. Returns whether it existed. The last right of a namespace is taken back only with
-- unrestrict (else PS020): a namespace with no right on it or above it is open to all. Raises PS001, PS006,
-- PS018, PS020, PS030 to PS034.
CREATE PROCEDURE revoke_namespace(namespace LONGTEXT, login LONGTEXT, verb LONGTEXT, unrestrict BOOLEAN)
BEGIN
    DECLARE own BIGINT;
    DECLARE was_there BOOLEAN DEFAULT FALSE;
    {{on error: CALL undo_call()}}
    CALL begin_call('revoke_namespace()');
    CALL require_path(namespace, 'namespace', 3998);
    CALL require_verb(verb);
    CALL lock_names('revoke_namespace()', TRUE);
    CALL require_namespace(namespace, 'grant', own);
    CALL take_right(own, namespace, 'role', login, verb, unrestrict, was_there);
    SELECT was_there AS was_there;
    CALL end_call();
END;

-- name: grants_of
-- The rights that were given at or below a namespace; all rights when the namespace is ''. The login of an account is
-- its name, or its id once it is deleted. A subscription that publishes its dead letters to a topic there is a row too:
-- topic and subscription name both, login is who has set it, and verb is publish. In all other rows both are NULL.
CREATE PROCEDURE grants_of(namespace LONGTEXT)
READS SQL DATA
BEGIN
    CALL refuse_serializable('grants_of()');
    SELECT n.path AS namespace, COALESCE(o.path, g.login) AS login, g.verb, g.granted_at, g.granted_by, g.kind,
           g.topic, g.subscription
    FROM (
        SELECT w.namespace_id, w.kind, w.login, w.verb, w.granted_at, w.granted_by, NULL AS topic, NULL AS subscription
        FROM namespace_grants AS w
        UNION ALL
        SELECT t.namespace_id, IF(LEFT(s.dead_letters_by, 8) = 'account:', 'account', 'role'),
               CASE WHEN LEFT(s.dead_letters_by, 8) = 'account:' THEN SUBSTR(s.dead_letters_by, 9)
                    WHEN LEFT(s.dead_letters_by, 6) = 'login:' THEN SUBSTR(s.dead_letters_by, 7)
                    ELSE s.dead_letters_by END,
               'publish', s.dead_letters_at, s.dead_letters_by, t.address, s.name
        FROM subscriptions AS s JOIN topics AS t ON t.id = s.dead_letters_to
    ) AS g
    JOIN namespaces AS n ON n.id = g.namespace_id
    LEFT JOIN accounts AS a ON g.kind = 'account' AND a.id = g.login
    LEFT JOIN namespaces AS o ON o.id = a.namespace_id
    WHERE (CHAR_LENGTH(namespace) = 0 OR CAST(n.path AS BINARY) = CAST(namespace AS BINARY)
           OR LEFT(n.path, CHAR_LENGTH(namespace) + 1) = CONCAT(namespace, '/'))
      AND has_right(n.id, 'grant')
    ORDER BY CAST(n.path AS BINARY), g.kind DESC, CAST(COALESCE(o.path, g.login) AS BINARY), g.verb, g.topic,
             g.subscription;
END;

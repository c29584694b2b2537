-- name: refresh_restricted
-- Records in each topic at and below a namespace whether the topic is restricted; publish reads that together
-- with the topic. The caller has locked the whole tree for itself.
CREATE PROCEDURE refresh_restricted(own BIGINT, own_path LONGTEXT)
BEGIN
    DECLARE here BIGINT;
    DECLARE is_restricted, done BOOLEAN DEFAULT FALSE;
    DECLARE below CURSOR FOR
        SELECT n.id
        FROM namespaces AS n
        WHERE n.id = own OR LEFT(n.path, CHAR_LENGTH(own_path) + 1) = CONCAT(own_path, '/')
        ORDER BY n.id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    OPEN below;
    each_namespace: LOOP
        FETCH below INTO here;
        IF done THEN
            LEAVE each_namespace;
        END IF;
        CALL find_restricted(here, is_restricted);
        UPDATE topics AS t FORCE INDEX (topics_namespace)
        SET t.restricted = is_restricted
        WHERE t.namespace_id = here AND t.restricted <> is_restricted;
    END LOOP;
    CLOSE below;
END;

-- name: require_verb
-- Checks a right; raises PS006.
CREATE PROCEDURE require_verb(verb LONGTEXT)
NO SQL
BEGIN
    IF verb IS NULL OR verb NOT IN (
        'publish', 'consume', 'operate', 'read', 'receive', 'acknowledge', 'peek') THEN
        CALL refuse('PS006', CONCAT('there is no right "', COALESCE(LEFT(verb, 80), ''), '"'));
    END IF;
END;

-- name: require_login
-- Checks that there is a user or a role of this name, for any host; raises PS006. Every name is accepted where the
-- owner of the procedures may not read the server's table of users. On MariaDB every name is accepted too, because a
-- transaction that has read that table can set no savepoint.
CREATE PROCEDURE require_login(login LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE known INT DEFAULT 1;
    DECLARE CONTINUE HANDLER FOR 1142, 1143 SET known = 1;
    /*!80000 SELECT COUNT(u.User) INTO known FROM mysql.user AS u WHERE u.User = login; */
    IF login IS NULL OR CHAR_LENGTH(login) NOT BETWEEN 1 AND 128 OR known = 0 THEN
        CALL refuse('PS006', CONCAT('there is no role "', COALESCE(LEFT(login, 80), ''), '", and no user'));
    END IF;
END;

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
    CALL find_namespace(namespace, 'grant', own);
    INSERT INTO namespace_grants (namespace_id, login, verb, granted_by)
    VALUES (own, login, verb, USER())
    ON DUPLICATE KEY UPDATE namespace_id = VALUES(namespace_id);
    CALL refresh_restricted(own, namespace);
    CALL end_call();
END;

-- name: revoke_namespace
-- Takes a right back. Returns whether it existed. The last right of a namespace is taken back only with
-- unrestrict (else PS020): a namespace with no right on it or above it is open to all. Raises PS001, PS006,
-- PS018, PS020, PS030 to PS034.
CREATE PROCEDURE revoke_namespace(namespace LONGTEXT, login LONGTEXT, verb LONGTEXT, unrestrict BOOLEAN)
BEGIN
    DECLARE own BIGINT;
    DECLARE was_there, is_restricted BOOLEAN DEFAULT FALSE;
    {{on error: CALL undo_call()}}
    CALL begin_call('revoke_namespace()');
    CALL require_path(namespace, 'namespace', 3998);
    CALL require_verb(verb);
    CALL lock_names('revoke_namespace()', TRUE);
    CALL find_namespace(namespace, 'grant', own);
    DELETE g FROM namespace_grants AS g WHERE g.namespace_id = own AND g.login = login AND g.verb = verb;
    SET was_there = ROW_COUNT() > 0;
    IF was_there THEN
        CALL find_restricted(own, is_restricted);
        IF unrestrict IS NOT TRUE AND NOT is_restricted THEN
            CALL refuse('PS020', CONCAT('it is the last right in "', LEFT(namespace, 50),
                                        '": without it the namespace is open to all'));
        END IF;
        CALL refresh_restricted(own, namespace);
    END IF;
    SELECT was_there AS was_there;
    CALL end_call();
END;

-- name: grants_of
-- The rights that were given at or below a namespace; all rights when the namespace is ''.
CREATE PROCEDURE grants_of(namespace LONGTEXT)
READS SQL DATA
BEGIN
    CALL refuse_serializable('grants_of()');
    SELECT n.path AS namespace, g.login, g.verb, g.granted_at, g.granted_by
    FROM namespace_grants AS g JOIN namespaces AS n ON n.id = g.namespace_id
    WHERE (CHAR_LENGTH(namespace) = 0 OR CAST(n.path AS BINARY) = CAST(namespace AS BINARY)
           OR LEFT(n.path, CHAR_LENGTH(namespace) + 1) = CONCAT(namespace, '/'))
      AND has_right(n.id, 'grant')
    ORDER BY CAST(n.path AS BINARY), CAST(g.login AS BINARY), g.verb;
END;

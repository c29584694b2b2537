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
        CALL is_restricted(here, is_restricted);
        UPDATE topics AS t FORCE INDEX (topics_namespace)
        SET t.restricted = is_restricted
        WHERE t.namespace_id = here AND t.restricted <> is_restricted;
    END LOOP;
    CLOSE below;
END;

-- name: give_right
-- Gives a login, a role or an account a right in a namespace and below it. The caller has locked the whole tree for
-- itself, and has checked who gives what to whom.
CREATE PROCEDURE give_right(own BIGINT, own_path LONGTEXT, kind VARCHAR(20), login VARCHAR(255), verb VARCHAR(20))
BEGIN
    INSERT INTO namespace_grants (namespace_id, kind, login, verb, granted_by)
    VALUES (own, kind, login, verb, principal())
    ON DUPLICATE KEY UPDATE namespace_id = VALUES(namespace_id);
    CALL refresh_restricted(own, own_path);
END;

-- name: take_right
-- Takes a right back, and tells whether it existed. The caller has locked the whole tree for itself. Raises PS020.
CREATE PROCEDURE take_right(
    own BIGINT, own_path LONGTEXT, kind VARCHAR(20), login LONGTEXT, verb VARCHAR(20), unrestrict BOOLEAN,
    OUT was_there BOOLEAN
)
BEGIN
    DECLARE is_restricted BOOLEAN DEFAULT FALSE;
    DELETE g FROM namespace_grants AS g
    WHERE g.namespace_id = own AND g.kind = kind AND g.login = login AND g.verb = verb;
    SET was_there = ROW_COUNT() > 0;
    IF was_there THEN
        CALL is_restricted(own, is_restricted);
        IF unrestrict IS NOT TRUE AND NOT is_restricted THEN
            CALL refuse('PS020', CONCAT('it is the last right in "', LEFT(own_path, 50),
                                        '": without it the namespace is open to all'));
        END IF;
        CALL refresh_restricted(own, own_path);
    END IF;
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

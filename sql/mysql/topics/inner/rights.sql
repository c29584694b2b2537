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

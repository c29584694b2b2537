-- name: user_part
-- The name in an account, which has its host behind the last @.
CREATE FUNCTION user_part(account VARCHAR(400)) RETURNS VARCHAR(400)
DETERMINISTIC NO SQL
RETURN LEFT(account, CHAR_LENGTH(account) - CHAR_LENGTH(SUBSTRING_INDEX(account, '@', -1)) - 1);

-- name: roles_of_caller
-- The roles that the login is in, also through other roles and whether or not they are active, as a JSON array. None
-- where the owner of the procedures may not read the server's table of them: then nobody has more than was given to his
-- own name. On MariaDB they are those that refresh_roles has seen last. Role by role, not by a query that recurs or
-- aggregates: where those end is a setting of the session.
CREATE FUNCTION roles_of_caller() RETURNS LONGTEXT
READS SQL DATA
BEGIN
    -- Here CURRENT_USER() is the owner, CURRENT_ROLE() nobody's, and SESSION_USER() not the same on both engines.
    DECLARE holder VARCHAR(400) DEFAULT user_part(USER());
    DECLARE found VARCHAR(400);
    DECLARE roles LONGTEXT DEFAULT '[]';
    DECLARE place INT DEFAULT 0;
    DECLARE CONTINUE HANDLER FOR 1142, 1143 SET found = NULL;
    WHILE holder IS NOT NULL DO
        SET found = '';
        WHILE found IS NOT NULL DO
            -- Each of the two engines reads the comment that is meant for it.
            /*!80000
            SELECT MIN(e.FROM_USER) INTO found
            FROM mysql.role_edges AS e WHERE e.TO_USER = holder AND e.FROM_USER > found;
            */
            /*M!
            SELECT MIN(e.role) INTO found
            FROM role_edges AS e WHERE e.member = holder AND e.is_role = (place > 0) AND e.role > found;
            */
            IF found IS NOT NULL AND NOT JSON_CONTAINS(roles, JSON_QUOTE(found)) THEN
                SET roles = JSON_ARRAY_APPEND(roles, '$', found);
            END IF;
        END WHILE;
        SET holder = JSON_UNQUOTE(JSON_EXTRACT(roles, CONCAT('$[', place, ']'))), place = place + 1;
    END WHILE;
    RETURN roles;
END;

-- name: passes_walls
-- Whether the login, which is in these roles, may do something ('grant' is to give rights) in every
-- namespace: the owner of the procedures, by name, a member of the operator role where that was installed,
-- and for rights of the installer role.
CREATE FUNCTION passes_walls(verb VARCHAR(20), roles LONGTEXT) RETURNS BOOLEAN
READS SQL DATA
BEGIN
    DECLARE found INT DEFAULT 0;
    IF user_part(USER()) = user_part(CURRENT_USER()) THEN
        RETURN TRUE;
    END IF;
    SELECT COUNT(r.name) INTO found
    FROM installed_roles AS r
    WHERE (r.kind = 'operator' OR (r.kind = 'installer' AND verb = 'grant'))
      AND JSON_CONTAINS(roles, JSON_QUOTE(r.name));
    RETURN found > 0;
END;

-- name: namespaces_above
-- A namespace and all that it lies in, as a JSON array. Step by step: where a recursive query ends is a setting of the
-- session on MariaDB, and a right that was given above that would not count.
CREATE FUNCTION namespaces_above(of_namespace BIGINT) RETURNS LONGTEXT
READS SQL DATA
BEGIN
    DECLARE here BIGINT DEFAULT of_namespace;
    DECLARE found LONGTEXT DEFAULT '[]';
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET here = 0;
    WHILE here > 0 DO
        SET found = JSON_ARRAY_APPEND(found, '$', here);
        SELECT n.parent_id INTO here FROM namespaces AS n WHERE n.id = here;
    END WHILE;
    RETURN found;
END;

-- name: has_right
-- Whether the login may publish, consume, read, operate or give rights ('grant') in a namespace, or see that it
-- is there ('any'). True where rights are not asked for. Who may operate may all of it, and who may consume may
-- read. Every query here names the columns it needs: a temporary table that a session has put in the way of one
-- of ours is an error, never an answer.
CREATE FUNCTION has_right(of_namespace BIGINT, verb VARCHAR(20)) RETURNS BOOLEAN
READS SQL DATA
BEGIN
    DECLARE caller VARCHAR(400) DEFAULT user_part(USER());
    DECLARE above LONGTEXT DEFAULT namespaces_above(of_namespace);
    DECLARE roles LONGTEXT;
    DECLARE given, held INT DEFAULT 0;
    SELECT COUNT(g.login), COALESCE(SUM(
        g.login = caller AND (
            g.verb IN (verb, 'operate') OR verb = 'any' OR (verb = 'read' AND g.verb = 'consume'))), 0)
    INTO given, held
    FROM JSON_TABLE(above, '$[*]' COLUMNS (id BIGINT PATH '$')) AS a
    JOIN namespace_grants AS g ON g.namespace_id = a.id;
    IF given = 0 OR held > 0 THEN
        RETURN TRUE;
    END IF;
    SET roles = roles_of_caller();
    IF passes_walls(verb, roles) THEN
        RETURN TRUE;
    END IF;
    SELECT COUNT(g.login) INTO held
    FROM JSON_TABLE(above, '$[*]' COLUMNS (id BIGINT PATH '$')) AS a JOIN namespace_grants AS g ON g.namespace_id = a.id
    WHERE (g.verb IN (verb, 'operate') OR verb = 'any' OR (verb = 'read' AND g.verb = 'consume'))
      AND JSON_CONTAINS(roles, JSON_QUOTE(g.login));
    RETURN held > 0;
END;

-- name: reads_hidden
-- Whether a subscription reads a topic that the login may not consume: then the subscription is hidden from it too.
CREATE FUNCTION reads_hidden(of_subscription BIGINT) RETURNS BOOLEAN
READS SQL DATA
BEGIN
    DECLARE hidden INT DEFAULT 0;
    SELECT COUNT(t.id) INTO hidden
    FROM subscription_topics AS s JOIN topics AS t ON t.id = s.topic_id
    WHERE s.subscription_id = of_subscription AND t.restricted AND NOT has_right(t.namespace_id, 'consume');
    RETURN hidden > 0;
END;

-- name: find_restricted
-- Whether rights are asked for in a namespace: somebody holds one on it or above it. By locking reads, because the
-- caller holds the tree of names, and a snapshot may be older than that.
CREATE PROCEDURE find_restricted(of_namespace BIGINT, OUT is_restricted BOOLEAN)
BEGIN
    DECLARE here BIGINT DEFAULT of_namespace;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET here = 0;
    SET is_restricted = FALSE;
    WHILE here > 0 AND NOT is_restricted DO
        SELECT COUNT(g.login) > 0 INTO is_restricted
        FROM namespace_grants AS g WHERE g.namespace_id = here LOCK IN SHARE MODE;
        SELECT n.parent_id INTO here FROM namespaces AS n WHERE n.id = here LOCK IN SHARE MODE;
    END WHILE;
END;

-- name: passes_walls
-- Whether the caller, whose login is in these roles, may do something in every namespace ('grant' means to give
-- rights): see login_passes_walls. An account passes no wall, whatever login carries it.
CREATE FUNCTION passes_walls(verb VARCHAR(20), roles LONGTEXT) RETURNS BOOLEAN
READS SQL DATA
RETURN @penstock_acting IS NULL AND login_passes_walls(user_part(USER()), verb, roles);

-- name: login_passes_walls
-- What passes_walls tells, of any login. The owner of the procedures may, by name, and so may a member of the operator
-- role where it was installed. To give rights, a member of the installer or accounts role may too.
CREATE FUNCTION login_passes_walls(login VARCHAR(400), verb VARCHAR(20), roles LONGTEXT) RETURNS BOOLEAN
READS SQL DATA
BEGIN
    DECLARE found INT DEFAULT 0;
    IF login = user_part(CURRENT_USER()) THEN
        RETURN TRUE;
    END IF;
    SELECT COUNT(r.name) INTO found
    FROM installed_roles AS r
    WHERE (r.kind = 'operator' OR (r.kind IN ('installer', 'accounts') AND verb = 'grant'))
      AND JSON_CONTAINS(roles, JSON_QUOTE(r.name));
    RETURN found > 0;
END;

-- name: namespaces_above
-- A namespace and all namespaces above it, as a JSON array. It climbs step by step: on MariaDB a setting of the
-- session limits how deep a recursive query goes, and a right given above that would not count.
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

-- name: is_restricted
-- Whether a namespace is restricted: a right was given on it or on a namespace above it. It uses locking reads: the
-- caller has locked the tree of names, and its snapshot may be older than that lock.
CREATE PROCEDURE is_restricted(of_namespace BIGINT, OUT is_restricted BOOLEAN)
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

-- name: has_right
-- Whether the caller may publish, consume, read, operate or give rights ('grant') in a namespace, or see that it
-- exists ('any'). For a login this is always true in a namespace that is not restricted. The right to operate includes
-- all of these, and the right to consume includes reading, and receive, acknowledge and peek of queues. An account has
-- only what it was given, and gives no rights.
CREATE FUNCTION has_right(of_namespace BIGINT, verb VARCHAR(20)) RETURNS BOOLEAN
READS SQL DATA
BEGIN
    IF @penstock_acting IS NOT NULL THEN
        RETURN account_has_right(acting_account(), of_namespace, verb);
    END IF;
    RETURN login_has_right(user_part(USER()), of_namespace, verb);
END;

-- name: login_has_right
-- What has_right tells, of any login. Every query here names the columns that it needs. If a session has made a
-- temporary table with the name of one of our tables, the query fails instead of reading it.
CREATE FUNCTION login_has_right(caller VARCHAR(400), of_namespace BIGINT, verb VARCHAR(20)) RETURNS BOOLEAN
READS SQL DATA
BEGIN
    DECLARE above LONGTEXT DEFAULT namespaces_above(of_namespace);
    DECLARE roles LONGTEXT;
    DECLARE given, held INT DEFAULT 0;
    SELECT COUNT(g.login), COALESCE(SUM(
        g.kind = 'role' AND g.login = caller AND (
            g.verb IN (verb, 'operate') OR verb = 'any'
            OR (verb IN ('read', 'receive', 'acknowledge', 'peek') AND g.verb = 'consume'))), 0)
    INTO given, held
    FROM JSON_TABLE(above, '$[*]' COLUMNS (id BIGINT PATH '$')) AS a
    JOIN namespace_grants AS g ON g.namespace_id = a.id;
    IF given = 0 OR held > 0 THEN
        RETURN TRUE;
    END IF;
    SET roles = roles_of(caller);
    IF login_passes_walls(caller, verb, roles) THEN
        RETURN TRUE;
    END IF;
    SELECT COUNT(g.login) INTO held
    FROM JSON_TABLE(above, '$[*]' COLUMNS (id BIGINT PATH '$')) AS a JOIN namespace_grants AS g ON g.namespace_id = a.id
    WHERE g.kind = 'role' AND (g.verb IN (verb, 'operate') OR verb = 'any'
           OR (verb IN ('read', 'receive', 'acknowledge', 'peek') AND g.verb = 'consume'))
      AND JSON_CONTAINS(roles, JSON_QUOTE(g.login));
    RETURN held > 0;
END;

-- name: account_has_right
-- What has_right tells, of any account.
CREATE FUNCTION account_has_right(account VARCHAR(32), of_namespace BIGINT, verb VARCHAR(20)) RETURNS BOOLEAN
READS SQL DATA
BEGIN
    DECLARE above LONGTEXT DEFAULT namespaces_above(of_namespace);
    DECLARE held INT DEFAULT 0;
    SELECT COUNT(g.login) INTO held
    FROM JSON_TABLE(above, '$[*]' COLUMNS (id BIGINT PATH '$')) AS a JOIN namespace_grants AS g ON g.namespace_id = a.id
    WHERE g.kind = 'account' AND g.login = account AND (
        g.verb IN (verb, 'operate') OR verb = 'any'
        OR (verb IN ('read', 'receive', 'acknowledge', 'peek') AND g.verb = 'consume'));
    RETURN held > 0 AND verb <> 'grant';
END;

-- name: require_right
-- Refuses a topic in whose namespace the login does not hold a right (see has_right); raises PS002. To be called for
-- restricted topics only: any statement that mentions has_right makes the server open the tables of rights.
CREATE PROCEDURE require_right(topic LONGTEXT, of_namespace BIGINT, verb VARCHAR(20))
READS SQL DATA
BEGIN
    DECLARE is_held BOOLEAN DEFAULT has_right(of_namespace, verb);
    IF NOT is_held THEN
        CALL refuse_topic(topic);
    END IF;
END;

-- name: reads_hidden
-- Whether a subscription reads a topic that the login may not consume: then the subscription is hidden from that
-- login too.
CREATE FUNCTION reads_hidden(of_subscription BIGINT) RETURNS BOOLEAN
READS SQL DATA
BEGIN
    DECLARE hidden INT DEFAULT 0;
    SELECT COUNT(t.id) INTO hidden
    FROM subscription_topics AS s JOIN topics AS t ON t.id = s.topic_id
    WHERE s.subscription_id = of_subscription AND (t.restricted OR @penstock_acting IS NOT NULL)
      AND NOT has_right(t.namespace_id, 'consume');
    IF @penstock_acting IS NOT NULL AND hidden = 0 THEN
        SET hidden = belongs_to_nobody(of_subscription);
    END IF;
    RETURN hidden > 0;
END;

-- name: told_subscription
-- How an error names a subscription: without its name, where the caller may not know of it.
CREATE FUNCTION told_subscription(of_subscription BIGINT) RETURNS VARCHAR(100)
READS SQL DATA
BEGIN
    DECLARE own_name VARCHAR(500);
    IF reads_hidden(of_subscription) THEN
        RETURN 'a subscription of somebody else';
    END IF;
    SELECT MAX(s.name) INTO own_name FROM subscriptions AS s WHERE s.id = of_subscription;
    RETURN CONCAT('subscription "', LEFT(own_name, 60), '"');
END;

-- name: user_part
-- The user name in an account: all that comes before the last @. The host comes after it.
CREATE FUNCTION user_part(account VARCHAR(400)) RETURNS VARCHAR(400)
DETERMINISTIC NO SQL
RETURN LEFT(account, CHAR_LENGTH(account) - CHAR_LENGTH(SUBSTRING_INDEX(account, '@', -1)) - 1);

-- name: roles_of_caller
-- The roles that the login is in (see roles_of).
CREATE FUNCTION roles_of_caller() RETURNS LONGTEXT
READS SQL DATA
-- Here CURRENT_USER() is the owner, CURRENT_ROLE() is empty, and SESSION_USER() differs between the engines.
RETURN roles_of(user_part(USER()));

-- name: roles_of
-- The roles that a login is in, as a JSON array: also through other roles, and whether or not they are active. The
-- array is empty where the owner of the procedures may not read the server's table of roles: then only rights that
-- were given to the login by name count. On MariaDB they are the roles that refresh_roles has seen last. It goes role
-- by role, because settings of the session limit queries that recur or aggregate.
CREATE FUNCTION roles_of(login VARCHAR(400)) RETURNS LONGTEXT
READS SQL DATA
BEGIN
    DECLARE holder VARCHAR(400) DEFAULT login;
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

-- name: sees_all
-- Whether the login may see figures over the whole log: it passes the walls, or there are no walls.
CREATE FUNCTION sees_all() RETURNS BOOLEAN
READS SQL DATA
BEGIN
    DECLARE given INT DEFAULT 0;
    IF @penstock_acting IS NOT NULL THEN
        RETURN FALSE;
    END IF;
    SELECT COUNT(g.login) INTO given FROM namespace_grants AS g;
    RETURN given = 0 OR passes_walls('read', roles_of_caller());
END;

-- name: reads_unseen
-- Whether a subscription reads a topic that the login may not read: then the login sees neither the
-- subscription's name nor its consumers.
CREATE FUNCTION reads_unseen(of_subscription BIGINT) RETURNS BOOLEAN
READS SQL DATA
BEGIN
    DECLARE unseen INT DEFAULT 0;
    SELECT COUNT(t.id) INTO unseen
    FROM subscription_topics AS s JOIN topics AS t ON t.id = s.topic_id
    WHERE s.subscription_id = of_subscription AND (t.restricted OR @penstock_acting IS NOT NULL)
      AND NOT has_right(t.namespace_id, 'read');
    IF @penstock_acting IS NOT NULL AND unseen = 0 THEN
        SET unseen = belongs_to_nobody(of_subscription);
    END IF;
    RETURN unseen > 0;
END;

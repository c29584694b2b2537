-- By design: a GRANT commits on MySQL, so the program makes it, and the roles are recorded.

-- name: find_bad_roles
-- One of the roles that does not exist, and one that is a user who can log in.
CREATE PROCEDURE find_bad_roles(OUT missing VARCHAR(80), OUT strong VARCHAR(80))
READS SQL DATA
BEGIN
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    SET missing = NULL, strong = NULL;
    -- No MIN: MariaDB refuses one over its view of users.
    SELECT CONCAT(DATABASE(), '_', k.kind) INTO missing
    FROM JSON_TABLE(
        '["accounts", "consumer", "gateway", "installer", "operator", "publisher", "reader"]',
        '$[*]' COLUMNS (kind VARCHAR(20) PATH '$')
    ) AS k
    WHERE CONCAT(DATABASE(), '_', k.kind) NOT IN (
        SELECT u.User FROM mysql.user AS u WHERE u.Host = /*!80000 '%' */ /*M! '' */)
    ORDER BY k.kind
    LIMIT 1;
    SELECT CONCAT(DATABASE(), '_', k.kind) INTO strong
    FROM JSON_TABLE(
        '["accounts", "consumer", "gateway", "installer", "operator", "publisher", "reader"]',
        '$[*]' COLUMNS (kind VARCHAR(20) PATH '$')
    ) AS k
    JOIN mysql.user AS u ON u.User = CONCAT(DATABASE(), '_', k.kind) AND u.Host = /*!80000 '%' */ /*M! '' */
    WHERE u./*!80000 account_locked */ /*M! is_role */ <> 'Y'
    ORDER BY k.kind
    LIMIT 1;
END;

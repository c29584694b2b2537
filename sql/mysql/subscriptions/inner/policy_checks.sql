-- name: require_policy_scope
-- Checks the scope of a policy; raises PS006.
CREATE PROCEDURE require_policy_scope(of_scope LONGTEXT)
NO SQL
BEGIN
    IF NOT COALESCE(CAST(of_scope AS BINARY) IN ('global', 'namespace', 'topic', 'subscription'), FALSE) THEN
        CALL refuse('PS006',
                    CONCAT('a policy cannot be for a "', COALESCE(LEFT(of_scope, 60), ''), '" of this name'));
    END IF;
END;

-- name: lock_policy_scope
-- The id of the scope for which a policy is set, locked so that nothing that inherits from it is added or moved
-- meanwhile. The locks are in the order of every change of names: the tree, the topics, then the subscription. Raises
-- PS001, PS002, PS006, PS013.
CREATE PROCEDURE lock_policy_scope(of_scope LONGTEXT, of_name LONGTEXT, OUT scope_id BIGINT)
BEGIN
    DECLARE topic_partitions INT;
    DECLARE may_all BOOLEAN;
    CALL require_policy_scope(of_scope);
    CASE of_scope
        WHEN 'topic' THEN CALL lock_topic(of_name, 'operate', scope_id, topic_partitions);
        WHEN 'subscription' THEN CALL lock_subscription(of_name, scope_id);
        WHEN 'namespace' THEN
            CALL lock_names('set_policy()', TRUE);
            CALL require_namespace(of_name, 'operate', scope_id);
            CALL lock_topics_below(scope_id);
        WHEN 'global' THEN
            SET may_all = passes_walls('operate', roles_of_caller());
            IF NOT may_all THEN
                CALL refuse('PS006', 'only a login that may operate all namespaces sets the global policy');
            END IF;
            CALL lock_names('set_policy()', TRUE);
            SET scope_id = 0;
            CALL lock_topics_below(0);
    END CASE;
END;

-- name: find_policy_scope
-- The id of the scope whose policy is read. Raises PS001, PS002, PS006, PS013.
CREATE PROCEDURE find_policy_scope(of_scope LONGTEXT, of_name LONGTEXT, OUT scope_id BIGINT)
READS SQL DATA
BEGIN
    CALL require_policy_scope(of_scope);
    CASE of_scope
        WHEN 'global' THEN SET scope_id = 0;
        WHEN 'topic' THEN CALL require_topic(LEFT(of_name, 4000), scope_id);
        WHEN 'subscription' THEN CALL require_subscription(of_name, scope_id);
        WHEN 'namespace' THEN
            SELECT MAX(n.id) INTO scope_id
            FROM namespaces AS n
            WHERE n.path_hash = UNHEX(SHA2(of_name, 256)) AND has_right(n.id, 'read');
            IF scope_id IS NULL THEN
                CALL refuse('PS001', CONCAT('there is no namespace "', COALESCE(LEFT(of_name, 80), ''), '"'));
            END IF;
    END CASE;
END;

-- name: policy_scope_name
-- The name of the scope for which a policy was set; empty for everything.
CREATE FUNCTION policy_scope_name(of_scope VARCHAR(20), of_id BIGINT) RETURNS LONGTEXT
READS SQL DATA
BEGIN
    DECLARE found LONGTEXT DEFAULT '';
    IF of_scope = 'namespace' THEN
        SELECT MAX(n.path) INTO found FROM namespaces AS n WHERE n.id = of_id;
    ELSEIF of_scope = 'topic' THEN
        SELECT MAX(t.address) INTO found FROM topics AS t WHERE t.id = of_id;
    ELSEIF of_scope = 'subscription' THEN
        SELECT MAX(s.name) INTO found FROM subscriptions AS s WHERE s.id = of_id;
    END IF;
    RETURN found;
END;

-- name: require_policy_kind
-- Checks the kind of a policy; raises PS006.
CREATE PROCEDURE require_policy_kind(of_kind LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE known INT;
    SELECT COUNT(k.kind) INTO known FROM policy_settings AS k WHERE CAST(k.kind AS BINARY) = CAST(of_kind AS BINARY);
    IF known = 0 THEN
        CALL refuse('PS006', CONCAT('there is no policy "', COALESCE(LEFT(of_kind, 60), ''), '"'));
    END IF;
END;

-- name: require_origin
-- Checks the origin of a policy: 'hand', 'file', or 'file ' and the name of the file (1 to 500 characters). Raises
-- PS006.
CREATE PROCEDURE require_origin(origin LONGTEXT)
NO SQL
BEGIN
    IF NOT COALESCE(CAST(origin AS BINARY) IN ('file', 'hand') OR CAST(LEFT(origin, 5) AS BINARY) = 'file '
                    AND CHAR_LENGTH(origin) BETWEEN 6 AND 505, FALSE) THEN
        CALL refuse('PS006',
                    CONCAT('origin cannot be "', COALESCE(LEFT(origin, 60), ''), '": use hand, or file and its name'));
    END IF;
END;

-- name: require_policy_settings
-- Checks what a policy sets, JSON: known settings, each of its type and within its bounds; raises PS006. Settings
-- that depend on each other must be set together, so that they are also valid where they are inherited.
CREATE PROCEDURE require_policy_settings(of_kind VARCHAR(20), given LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE wrong, value LONGTEXT;
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    IF NOT COALESCE(JSON_VALID(given), FALSE) OR JSON_TYPE(given) <> 'OBJECT' THEN
        CALL refuse('PS006', 'the settings of a policy are not a JSON object');
    END IF;
    SELECT MIN(g.name) INTO wrong
    FROM JSON_TABLE(JSON_KEYS(given), '$[*]' COLUMNS (name LONGTEXT PATH '$')) AS g
    LEFT JOIN policy_settings AS k ON k.kind = of_kind AND CAST(k.setting AS BINARY) = CAST(g.name AS BINARY)
    WHERE k.setting IS NULL;
    IF wrong IS NOT NULL THEN
        CALL refuse('PS006', CONCAT('the policy ', of_kind, ' has no setting "', LEFT(wrong, 60), '"'));
    END IF;
    SELECT k.setting, JSON_EXTRACT(given, CONCAT('$.', k.setting)) INTO wrong, value
    FROM policy_settings AS k
    WHERE k.kind = of_kind AND JSON_CONTAINS_PATH(given, 'one', CONCAT('$.', k.setting)) AND NOT CASE k.type
        WHEN 'word' THEN
            JSON_TYPE(JSON_EXTRACT(given, CONCAT('$.', k.setting))) = 'STRING'
            AND FIND_IN_SET(CAST(JSON_UNQUOTE(JSON_EXTRACT(given, CONCAT('$.', k.setting))) AS BINARY),
                            CAST(k.words AS BINARY)) > 0
        ELSE
            JSON_TYPE(JSON_EXTRACT(given, CONCAT('$.', k.setting)))
                IN ('INTEGER', 'UNSIGNED INTEGER', IF(k.type = 'number', 'DOUBLE', 'INTEGER'))
            AND JSON_UNQUOTE(JSON_EXTRACT(given, CONCAT('$.', k.setting))) + 0e0 BETWEEN k.lowest AND k.highest
    END
    ORDER BY k.setting
    LIMIT 1;
    IF wrong IS NOT NULL THEN
        CALL refuse('PS006', CONCAT(wrong, ' cannot be ', LEFT(value, 60)));
    END IF;
    CALL require_policy_pair(given, 'heartbeat_seconds', 'lease_seconds', 3);
    CALL require_policy_pair(given, 'first_backoff_seconds', 'longest_backoff_seconds', 1);
END;

-- name: require_policy_pair
-- Checks two settings that depend on each other: both or neither is set, and the second is at least the given
-- multiple of the first; raises PS006.
CREATE PROCEDURE require_policy_pair(given LONGTEXT, low VARCHAR(40), high VARCHAR(40), times INT)
NO SQL
BEGIN
    DECLARE low_value, high_value VARCHAR(60);
    SET low_value = JSON_EXTRACT(given, CONCAT('$.', low)), high_value = JSON_EXTRACT(given, CONCAT('$.', high));
    IF (low_value IS NULL) <> (high_value IS NULL) OR high_value + 0e0 < times * (low_value + 0e0) THEN
        CALL refuse('PS006',
                    CONCAT(low, ' ', COALESCE(low_value, 'unset'), ' does not fit ', high, ' ',
                           COALESCE(high_value, 'unset')));
    END IF;
END;

-- name: lock_topics
-- Locks topics (a JSON array of addresses) in which the login holds a right, in the order of their ids. Raises PS002.
CREATE PROCEDURE lock_topics(topics JSON, verb VARCHAR(20))
BEGIN
    DECLARE address VARCHAR(4000);
    DECLARE topic_id BIGINT;
    DECLARE topic_partitions INT;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE given CURSOR FOR
        SELECT g.address
        FROM JSON_TABLE(topics, '$[*]' COLUMNS (address VARCHAR(4000) PATH '$')) AS g
        LEFT JOIN topics AS t ON t.address_hash = UNHEX(SHA2(g.address, 256))
        ORDER BY t.id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    OPEN given;
    topic: LOOP
        FETCH given INTO address;
        IF done THEN
            LEAVE topic;
        END IF;
        CALL lock_topic(COALESCE(address, ''), verb, topic_id, topic_partitions);
    END LOOP;
    CLOSE given;
END;

-- name: lock_topics_below
-- Locks the topics in a namespace and below it, in the order of their ids; all topics for 0.
CREATE PROCEDURE lock_topics_below(of_namespace BIGINT)
BEGIN
    DECLARE path_below LONGTEXT;
    DECLARE locked INT;
    SELECT CONCAT(MAX(n.path), '/') INTO path_below FROM namespaces AS n WHERE n.id = of_namespace;
    SELECT COUNT(l.id) INTO locked
    FROM (
        SELECT t.id
        FROM topics AS t
        WHERE of_namespace = 0 OR LEFT(t.address, CHAR_LENGTH(path_below)) = path_below
        ORDER BY t.id
        -- The limit keeps MariaDB from merging the two queries.
        LIMIT 1000000
        FOR UPDATE
    ) AS l;
END;

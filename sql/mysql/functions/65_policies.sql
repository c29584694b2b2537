-- name: find_policies
-- Every setting as it is in force for a scope, and where it comes from ('preset' when it was never set), as a JSON
-- array of objects. The nearest source counts, in this order: the scope itself, the topics that it reads, their
-- namespaces, the policy for everything. Of several topics it is the one that the subscription has read for longest.
CREATE PROCEDURE find_policies(of_scope VARCHAR(20), of_id BIGINT, OUT found LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE how_many INT;
    DECLARE limit_before BIGINT UNSIGNED DEFAULT @@SESSION.group_concat_max_len;
    {{on error: SET SESSION group_concat_max_len = limit_before}}
    SET SESSION group_concat_max_len = 4294967295;
    WITH RECURSIVE topics_read AS (
        SELECT r.topic_id AS id, r.created_at AS since
        FROM subscription_topics AS r
        WHERE of_scope = 'subscription' AND r.subscription_id = of_id
        UNION ALL
        SELECT t.id, t.created_at FROM topics AS t WHERE of_scope = 'topic' AND t.id = of_id
    ), above AS (
        SELECT n.id, n.parent_id, 1 AS distance, r.since
        FROM topics_read AS r JOIN topics AS t ON t.id = r.id JOIN namespaces AS n ON n.id = t.namespace_id
        UNION ALL
        SELECT n.id, n.parent_id, 1, n.created_at FROM namespaces AS n WHERE of_scope = 'namespace' AND n.id = of_id
        UNION ALL
        SELECT p.id, p.parent_id, a.distance + 1, a.since FROM above AS a JOIN namespaces AS p ON p.id = a.parent_id
    ), set_here AS (
        SELECT p.kind, p.settings, p.scope, p.scope_id, p.version, p.origin, 1 AS nearness, 0 AS distance, NULL AS since
        FROM policies AS p
        WHERE of_scope = 'subscription' AND p.scope = 'subscription' AND p.scope_id = of_id
        UNION ALL
        SELECT p.kind, p.settings, p.scope, p.scope_id, p.version, p.origin, 2, 0, r.since
        FROM topics_read AS r JOIN policies AS p ON p.scope = 'topic' AND p.scope_id = r.id
        UNION ALL
        SELECT p.kind, p.settings, p.scope, p.scope_id, p.version, p.origin, 3, a.distance, a.since
        FROM above AS a JOIN policies AS p ON p.scope = 'namespace' AND p.scope_id = a.id
        UNION ALL
        SELECT p.kind, p.settings, p.scope, p.scope_id, p.version, p.origin, 4, 0, NULL
        FROM policies AS p
        WHERE p.scope = 'global' AND p.scope_id = 0
    ), ranked AS (
        SELECT k.kind, k.setting, k.preset, JSON_EXTRACT(s.settings, CONCAT('$.', k.setting)) AS value, s.scope,
               s.scope_id, s.version, s.origin,
               ROW_NUMBER() OVER (
                   PARTITION BY k.setting
                   ORDER BY s.kind IS NULL, s.nearness, s.distance, s.since, s.scope_id) AS place
        FROM policy_settings AS k
        LEFT JOIN set_here AS s ON s.kind = k.kind AND JSON_CONTAINS_PATH(s.settings, 'one', CONCAT('$.', k.setting))
    )
    SELECT JSON_ARRAYAGG(JSON_OBJECT(
        'kind', b.kind, 'setting', b.setting, 'value', COALESCE(JSON_UNQUOTE(b.value), b.preset),
        'source', COALESCE(b.scope, 'preset'), 'source_id', b.scope_id, 'version', COALESCE(b.version, 0),
        'origin', b.origin)), COUNT(b.setting)
    INTO found, how_many
    FROM ranked AS b
    WHERE b.place = 1;
    SET SESSION group_concat_max_len = limit_before;
    IF NOT COALESCE(JSON_LENGTH(found) = how_many, FALSE) THEN
        CALL refuse('PS019', 'not all policies in force were found');
    END IF;
END;

-- name: refresh_policy
-- Writes what is in force for a subscription into its row. It takes the lock first and then reads in a separate
-- query, so that it sees what an earlier holder of the lock has written. policy_version grows only when something has
-- changed.
CREATE PROCEDURE refresh_policy(owner_id BIGINT)
BEGIN
    DECLARE locked BIGINT;
    DECLARE found LONGTEXT;
    DECLARE heartbeats, lease, giving_up, per_second, refresh, first_pause, longest_pause, random_share, lag_allowed,
        letters_kept DOUBLE;
    DECLARE consumers_allowed, attempts INT;
    DECLARE at_last VARCHAR(20);
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    SELECT s.id INTO locked FROM subscriptions AS s WHERE s.id = owner_id FOR UPDATE;
    CALL find_policies('subscription', owner_id, found);
    SELECT MAX(IF(f.setting = 'heartbeat_seconds', f.value + 0e0, NULL)),
           MAX(IF(f.setting = 'lease_seconds', f.value + 0e0, NULL)),
           MAX(IF(f.setting = 'release_seconds', f.value + 0e0, NULL)),
           MAX(IF(f.setting = 'target_qps', f.value + 0e0, NULL)),
           MAX(IF(f.setting = 'max_consumers', f.value + 0e0, NULL)),
           MAX(IF(f.setting = 'refresh_seconds', f.value + 0e0, NULL)),
           MAX(IF(f.setting = 'max_attempts', f.value + 0e0, NULL)),
           MAX(IF(f.setting = 'first_backoff_seconds', f.value + 0e0, NULL)),
           MAX(IF(f.setting = 'longest_backoff_seconds', f.value + 0e0, NULL)),
           MAX(IF(f.setting = 'jitter', f.value + 0e0, NULL)),
           MAX(IF(f.setting = 'exhausted', f.value, NULL)),
           MAX(IF(f.setting = 'max_lag_seconds', f.value + 0e0, NULL)),
           MAX(IF(f.setting = 'dead_letter_seconds', f.value + 0e0, NULL))
    INTO heartbeats, lease, giving_up, per_second, consumers_allowed, refresh, attempts, first_pause, longest_pause,
         random_share, at_last, lag_allowed, letters_kept
    FROM JSON_TABLE(found, '$[*]' COLUMNS (
        setting VARCHAR(40) PATH '$.setting', value VARCHAR(40) PATH '$.value')) AS f;
    UPDATE subscriptions AS s
    SET s.policy_version = s.policy_version + 1, s.heartbeat_seconds = heartbeats, s.lease_seconds = lease,
        s.release_seconds = giving_up, s.target_qps = per_second, s.max_consumers = consumers_allowed,
        s.refresh_seconds = refresh, s.max_attempts = attempts, s.first_backoff_seconds = first_pause,
        s.longest_backoff_seconds = longest_pause, s.jitter = random_share, s.exhausted = at_last,
        s.max_lag_seconds = lag_allowed, s.dead_letter_seconds = letters_kept
    WHERE s.id = owner_id AND NOT (
        s.heartbeat_seconds = heartbeats AND s.lease_seconds = lease AND s.release_seconds = giving_up
        AND s.target_qps = per_second AND s.max_consumers = consumers_allowed AND s.refresh_seconds = refresh
        AND s.max_attempts = attempts AND s.first_backoff_seconds = first_pause
        AND s.longest_backoff_seconds = longest_pause AND s.jitter = random_share AND s.exhausted = at_last
        AND s.max_lag_seconds = lag_allowed AND s.dead_letter_seconds = letters_kept);
END;

-- name: refresh_policies
-- Does what refresh_policy does for all subscriptions that inherit from a scope, in the order in which every
-- call locks subscriptions.
CREATE PROCEDURE refresh_policies(of_scope VARCHAR(20), of_id BIGINT)
BEGIN
    DECLARE reader BIGINT;
    DECLARE path_below LONGTEXT;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE readers CURSOR FOR
        SELECT s.id
        FROM subscriptions AS s
        WHERE of_scope = 'global' OR (of_scope = 'subscription' AND s.id = of_id) OR s.id IN (
            SELECT r.subscription_id
            FROM subscription_topics AS r JOIN topics AS t ON t.id = r.topic_id
            WHERE (of_scope = 'topic' AND t.id = of_id) OR LEFT(t.address, CHAR_LENGTH(path_below)) = path_below)
        ORDER BY s.id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    SELECT CONCAT(MAX(n.path), '/') INTO path_below FROM namespaces AS n WHERE of_scope = 'namespace' AND n.id = of_id;
    OPEN readers;
    reader: LOOP
        FETCH readers INTO reader;
        IF done THEN
            LEAVE reader;
        END IF;
        CALL refresh_policy(reader);
    END LOOP;
    CLOSE readers;
END;

-- name: refresh_readers
-- Does what refresh_policy does for subscriptions (a JSON array of ids) that the caller has locked.
CREATE PROCEDURE refresh_readers(readers JSON)
BEGIN
    DECLARE place INT DEFAULT 0;
    WHILE place < JSON_LENGTH(readers) DO
        CALL refresh_policy(JSON_EXTRACT(readers, CONCAT('$[', place, ']')));
        SET place = place + 1;
    END WHILE;
END;

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
            CALL find_namespace(of_name, 'operate', scope_id);
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
        WHEN 'topic' THEN CALL find_topic(LEFT(of_name, 4000), scope_id);
        WHEN 'subscription' THEN CALL find_subscription(of_name, scope_id);
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

-- name: is_taken_over
-- Whether a file that says its name now owns a policy that a hand or another file has set.
CREATE FUNCTION is_taken_over(present_origin VARCHAR(600), new_origin VARCHAR(600)) RETURNS BOOLEAN
NO SQL DETERMINISTIC
RETURN COALESCE(CAST(LEFT(new_origin, 5) AS BINARY) = 'file '
                AND CAST(new_origin AS BINARY) <> CAST(present_origin AS BINARY), FALSE);

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

-- name: store_policy
-- Writes the next version of a policy, and updates what is in force where it is inherited. If the policy is already
-- the same and no file takes it over, it writes nothing. The caller has locked the scope.
CREATE PROCEDURE store_policy(
    of_scope VARCHAR(20), of_id BIGINT, of_kind VARCHAR(20), given LONGTEXT, given_origin VARCHAR(600),
    OUT new_version INT
)
BEGIN
    DECLARE present LONGTEXT DEFAULT '{}';
    DECLARE present_origin VARCHAR(600);
    DECLARE different INT;
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    SET new_version = 0;
    SELECT p.settings, p.version, p.origin INTO present, new_version, present_origin
    FROM policies AS p WHERE p.scope = of_scope AND p.scope_id = of_id AND p.kind = of_kind;
    -- Compared one by one: on MariaDB JSON is text.
    SELECT COUNT(k.type) INTO different
    FROM policy_settings AS k
    WHERE k.kind = of_kind AND NOT IF(
        k.type = 'word',
        JSON_EXTRACT(present, CONCAT('$.', k.setting)) <=> JSON_EXTRACT(given, CONCAT('$.', k.setting)),
        JSON_EXTRACT(present, CONCAT('$.', k.setting)) + 0e0 <=> JSON_EXTRACT(given, CONCAT('$.', k.setting)) + 0e0);
    IF different > 0 OR is_taken_over(present_origin, given_origin) AND JSON_LENGTH(given) > 0 THEN
        SET new_version = new_version + 1;
        REPLACE INTO policies (scope, scope_id, kind, settings, version, origin, updated_by)
        VALUES (of_scope, of_id, of_kind, given, new_version, given_origin, USER());
        INSERT INTO policy_versions (scope, scope_id, kind, settings, version, origin, updated_at, updated_by)
        SELECT p.scope, p.scope_id, p.kind, p.settings, p.version, p.origin, p.updated_at, p.updated_by
        FROM policies AS p
        WHERE p.scope = of_scope AND p.scope_id = of_id AND p.kind = of_kind;
        CALL refresh_policies(of_scope, of_id);
    END IF;
END;

-- name: forget_policies
-- Removes the policies of deleted scopes (a JSON array of ids), with their history.
CREATE PROCEDURE forget_policies(of_scope VARCHAR(20), ids JSON)
BEGIN
    DELETE p
    FROM JSON_TABLE(ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS j
    STRAIGHT_JOIN policies AS p FORCE INDEX (PRIMARY) ON p.scope = of_scope AND p.scope_id = j.id;
    DELETE v
    FROM JSON_TABLE(ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS j
    STRAIGHT_JOIN policy_versions AS v FORCE INDEX (PRIMARY) ON v.scope = of_scope AND v.scope_id = j.id;
END;

-- name: set_policy
-- Sets a policy (heartbeat, keep, lease, metrics or retry) for everything ('global', ''), a namespace, a topic or a
-- subscription, as a whole. A setting that it does not name is inherited: a subscription's policy comes before its
-- topic's, then the namespace's, then that for everything. origin says who sets it: 'hand', or 'file ' and the name of
-- the policy file, which owns it from then on. Returns its version, which grows with each change. Raises PS001, PS002,
-- PS006, PS013, PS018.
CREATE PROCEDURE set_policy(kind LONGTEXT, scope LONGTEXT, name LONGTEXT, settings LONGTEXT, origin LONGTEXT)
BEGIN
    DECLARE of_id BIGINT;
    DECLARE new_version INT;
    {{on error: CALL undo_call()}}
    CALL begin_call('set_policy()');
    CALL require_policy_kind(kind);
    CALL require_policy_settings(kind, settings);
    CALL require_origin(origin);
    CALL require_read_committed('set_policy()');
    CALL lock_policy_scope(scope, name, of_id);
    CALL store_policy(scope, of_id, kind, settings, origin, new_version);
    SELECT new_version AS version;
    CALL end_call();
END;

-- name: clear_policy
-- Removes all that a policy sets, so that everything is inherited again. Returns the policy's version. Raises PS001,
-- PS002, PS006, PS013, PS018.
CREATE PROCEDURE clear_policy(kind LONGTEXT, scope LONGTEXT, name LONGTEXT, origin LONGTEXT)
BEGIN
    CALL set_policy(kind, scope, name, '{}', origin);
END;

-- name: policy_of
-- What is in force for everything ('global', ''), a namespace, a topic or a subscription: each setting with its
-- source ('preset' when it was never set) and the version of that policy. Raises PS001, PS002, PS006, PS013.
CREATE PROCEDURE policy_of(scope LONGTEXT, name LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE of_id BIGINT;
    DECLARE found LONGTEXT;
    CALL refuse_serializable('policy_of()');
    CALL find_policy_scope(scope, name, of_id);
    CALL find_policies(scope, of_id, found);
    SELECT f.kind, f.setting, f.value, f.source, policy_scope_name(f.source, f.source_id) AS source_name, f.version,
           f.origin
    FROM JSON_TABLE(found, '$[*]' COLUMNS (
        kind VARCHAR(20) PATH '$.kind', setting VARCHAR(40) PATH '$.setting', value VARCHAR(40) PATH '$.value',
        source VARCHAR(20) PATH '$.source', source_id BIGINT PATH '$.source_id', version INT PATH '$.version',
        origin VARCHAR(600) PATH '$.origin'
    )) AS f
    ORDER BY f.kind, f.setting;
END;

-- name: policy_history
-- Every version of a scope's policy, the oldest first. Raises PS001, PS002, PS006, PS013.
CREATE PROCEDURE policy_history(kind LONGTEXT, scope LONGTEXT, name LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE of_id BIGINT;
    CALL refuse_serializable('policy_history()');
    CALL find_policy_scope(scope, name, of_id);
    CALL require_policy_kind(kind);
    SELECT v.version, v.settings, v.origin, v.updated_at, v.updated_by
    FROM policy_versions AS v
    WHERE v.scope = scope AND v.scope_id = of_id AND v.kind = kind
    ORDER BY v.version;
END;

-- name: list_policies
-- Every policy that sets something, for scopes that the login may see.
CREATE PROCEDURE list_policies()
READS SQL DATA
BEGIN
    CALL refuse_serializable('list_policies()');
    SELECT p.kind, p.scope, policy_scope_name(p.scope, p.scope_id) AS name, p.settings, p.version, p.origin,
           p.updated_at, p.updated_by
    FROM policies AS p LEFT JOIN topics AS t ON p.scope = 'topic' AND t.id = p.scope_id
    WHERE JSON_LENGTH(p.settings) > 0 AND CASE p.scope
        WHEN 'namespace' THEN has_right(p.scope_id, 'any')
        WHEN 'topic' THEN NOT t.restricted OR has_right(t.namespace_id, 'any')
        WHEN 'subscription' THEN NOT reads_hidden(p.scope_id)
        ELSE TRUE
    END
    ORDER BY p.scope, CAST(policy_scope_name(p.scope, p.scope_id) AS BINARY), p.kind;
END;

-- name: subscription_policy
-- The settings in force for a subscription, read from its row: cheap enough for every check-in. policy_version grows
-- with each change of any policy that applies; a batch runs under one version. Raises PS013.
CREATE PROCEDURE subscription_policy(subscription LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE owner_id BIGINT;
    CALL refuse_serializable('subscription_policy()');
    CALL find_subscription(subscription, owner_id);
    SELECT s.policy_version, s.heartbeat_seconds, s.lease_seconds, s.release_seconds, s.target_qps, s.max_consumers,
           s.refresh_seconds, s.max_attempts, s.first_backoff_seconds, s.longest_backoff_seconds, s.jitter, s.exhausted
    FROM subscriptions AS s
    WHERE s.id = owner_id;
END;

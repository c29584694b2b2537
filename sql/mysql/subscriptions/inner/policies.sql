-- name: policies_in_force
-- Every setting as it is in force for a scope, and where it comes from ('preset' when it was never set), as a JSON
-- array of objects. The nearest source counts, in this order: the scope itself, the topics that it reads, their
-- namespaces, the policy for everything. Of several topics it is the one that the subscription has read for longest.
CREATE PROCEDURE policies_in_force(of_scope VARCHAR(20), of_id BIGINT, OUT found LONGTEXT)
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
    CALL policies_in_force('subscription', owner_id, found);
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

-- name: is_taken_over
-- Whether a file that says its name now owns a policy that a hand or another file has set.
CREATE FUNCTION is_taken_over(present_origin VARCHAR(600), new_origin VARCHAR(600)) RETURNS BOOLEAN
NO SQL DETERMINISTIC
RETURN COALESCE(CAST(LEFT(new_origin, 5) AS BINARY) = 'file '
                AND CAST(new_origin AS BINARY) <> CAST(present_origin AS BINARY), FALSE);

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
        VALUES (of_scope, of_id, of_kind, given, new_version, given_origin, principal());
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

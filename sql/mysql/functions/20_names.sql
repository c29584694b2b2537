-- name: require_name
-- Checks one name, of a path or of anything else; raises PS030, PS031, PS033, PS034. The blanks and control
-- characters of Unicode are listed one by one, so that every engine and Python refuse the same ones.
CREATE PROCEDURE require_name(name LONGTEXT, what VARCHAR(40))
NO SQL
BEGIN
    IF name REGEXP '[\\x{0}-\\x{1f}\\x{7f}-\\x{9f}]' THEN
        CALL refuse('PS033', CONCAT('the name of a ', what, ' holds a control character'));
    ELSEIF name IS NULL OR name REGEXP
        '^[ \\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}]*$' THEN
        CALL refuse('PS030', CONCAT('the name of a ', what, ' is empty'));
    ELSEIF CHAR_LENGTH(name) > 500 THEN
        CALL refuse('PS031', CONCAT('the name of a ', what, ' has ', CHAR_LENGTH(name), ' characters'));
    ELSEIF LOCATE('/', name) > 0 THEN
        CALL refuse('PS034', CONCAT('the name of a ', what, ' holds "/"'));
    END IF;
END;

-- name: require_path
-- Checks the path of a namespace or of a topic (what says which); raises PS030 to PS034.
CREATE PROCEDURE require_path(path LONGTEXT, what VARCHAR(40), longest INT)
NO SQL
BEGIN
    DECLARE rest LONGTEXT DEFAULT path;
    DECLARE part LONGTEXT;
    IF path IS NULL OR CHAR_LENGTH(path) = 0 THEN
        CALL refuse('PS030', CONCAT('the path of a ', what, ' is empty'));
    ELSEIF CHAR_LENGTH(path) > longest THEN
        CALL refuse('PS032', CONCAT('the path of a ', what, ' has ', CHAR_LENGTH(path), ' characters'));
    END IF;
    WHILE rest IS NOT NULL DO
        SET part = SUBSTRING_INDEX(rest, '/', 1);
        SET rest = IF(LOCATE('/', rest) > 0, SUBSTR(rest, LOCATE('/', rest) + 1), NULL);
        IF CHAR_LENGTH(part) = 0 THEN
            CALL refuse('PS034', CONCAT('the ', what, ' "', LEFT(path, 80), '" has an empty name in its path'));
        END IF;
        CALL require_name(part, IF(rest IS NULL, what, 'namespace'));
    END WHILE;
END;

-- name: require_address
-- Checks the address of a topic; raises PS003 and PS030 to PS034.
CREATE PROCEDURE require_address(topic LONGTEXT)
NO SQL
BEGIN
    CALL require_path(topic, 'topic', 4000);
    IF LOCATE('/', topic) = 0 THEN
        CALL refuse('PS003', CONCAT('the topic "', LEFT(topic, 80), '" has no namespace'));
    END IF;
END;

-- name: split_path
-- The part of a path before the last /, empty when there is none, and the part after it.
CREATE PROCEDURE split_path(path LONGTEXT, OUT parent LONGTEXT, OUT name LONGTEXT)
NO SQL
BEGIN
    SET name = SUBSTRING_INDEX(path, '/', -1);
    SET parent = LEFT(path, GREATEST(CHAR_LENGTH(path) - CHAR_LENGTH(name) - 1, 0));
END;

-- name: lock_names
-- Locks the names for a change, which needs READ COMMITTED (PS018). A change that rewrites paths or removes names
-- locks the tree alone; a change that only adds a name shares it. This lock is taken before the locks of topics, and
-- those before the sequencer's lock, so that no two changes deadlock.
CREATE PROCEDURE lock_names(what VARCHAR(100), alone BOOLEAN)
BEGIN
    DECLARE locked BOOLEAN;
    CALL require_read_committed(what);
    IF alone THEN
        SELECT t.singleton INTO locked FROM name_tree AS t FOR UPDATE;
    ELSE
        SELECT t.singleton INTO locked FROM name_tree AS t LOCK IN SHARE MODE;
    END IF;
END;

-- name: find_namespace
-- The id of a namespace in which the login holds a right; else raises PS001, in the same words whether the
-- namespace is missing or hidden.
CREATE PROCEDURE find_namespace(path LONGTEXT, verb VARCHAR(20), OUT namespace_id BIGINT)
BEGIN
    DECLARE is_held BOOLEAN DEFAULT TRUE;
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    SET namespace_id = NULL;
    -- A locking read: the tree is locked, and a snapshot may be older than that.
    SELECT n.id INTO namespace_id
    FROM namespaces AS n
    WHERE n.path_hash = UNHEX(SHA2(path, 256))
    LOCK IN SHARE MODE;
    IF namespace_id IS NOT NULL THEN
        SET is_held = has_right(namespace_id, verb);
    END IF;
    IF namespace_id IS NULL OR NOT is_held THEN
        CALL refuse('PS001', CONCAT('there is no namespace "', LEFT(path, 80), '"'));
    END IF;
END;

-- name: lock_topic
-- The id and the number of partitions of a topic in which the login holds a right, locked against deletion, resize
-- and subscribe to the end of the transaction; publishers are not affected. Raises PS002.
CREATE PROCEDURE lock_topic(topic LONGTEXT, verb VARCHAR(20), OUT topic_id BIGINT, OUT topic_partitions INT)
BEGIN
    DECLARE asked_in BIGINT;
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    -- First without a lock: a name that is refused must not stay locked to the end of another tenant's
    -- transaction.
    SELECT MAX(t.namespace_id) INTO asked_in
    FROM topics AS t WHERE t.address_hash = UNHEX(SHA2(topic, 256)) AND t.restricted;
    IF asked_in IS NOT NULL THEN
        CALL require_right(topic, asked_in, verb);
    END IF;
    SET topic_id = NULL, asked_in = NULL;
    SELECT t.id, t.partitions, IF(t.restricted, t.namespace_id, NULL) INTO topic_id, topic_partitions, asked_in
    FROM topics AS t
    WHERE t.address_hash = UNHEX(SHA2(topic, 256))
    FOR UPDATE;
    IF topic_id IS NULL THEN
        CALL refuse_topic(topic);
    ELSEIF asked_in IS NOT NULL THEN
        CALL require_right(topic, asked_in, verb);
    END IF;
END;

-- name: namespace_exists
-- Whether there is a namespace that the login may see.
CREATE PROCEDURE namespace_exists(path LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE is_there BOOLEAN;
    CALL refuse_serializable('namespace_exists()');
    SELECT COUNT(n.id) > 0 INTO is_there
    FROM namespaces AS n
    WHERE n.path_hash = UNHEX(SHA2(path, 256)) AND has_right(n.id, 'any');
    SELECT is_there AS namespace_exists;
END;

-- name: list_namespaces
-- All namespaces that the login may see, parents first.
CREATE PROCEDURE list_namespaces()
READS SQL DATA
BEGIN
    CALL refuse_serializable('list_namespaces()');
    SELECT n.path, n.created_at FROM namespaces AS n WHERE has_right(n.id, 'any') ORDER BY CAST(n.path AS BINARY);
END;

-- name: list_topics
-- The topics at or below a namespace that the login may see; all such topics when the namespace is ''.
CREATE PROCEDURE list_topics(namespace LONGTEXT)
READS SQL DATA
BEGIN
    CALL refuse_serializable('list_topics()');
    SELECT t.address AS topic, t.partitions, t.created_at, t.strategy
    FROM topics AS t
    WHERE (CHAR_LENGTH(namespace) = 0 OR LEFT(t.address, CHAR_LENGTH(namespace) + 1) = CONCAT(namespace, '/'))
      AND (NOT t.restricted OR has_right(t.namespace_id, 'any'))
    ORDER BY CAST(t.address AS BINARY);
END;

-- name: describe_topic
-- What is set for a topic, and how many subscriptions read it. known_as is the name by which sinks and archives know
-- the topic: it stays when the address changes, and is never given to a second topic. Raises PS002.
CREATE PROCEDURE describe_topic(topic VARCHAR(4000))
READS SQL DATA
BEGIN
    DECLARE own_id BIGINT;
    CALL refuse_serializable('describe_topic()');
    CALL find_topic(topic, own_id);
    SELECT t.partitions, t.strategy, t.max_payload_bytes, t.max_unsequenced_events, t.max_unsequenced_bytes,
           t.restricted, (
               SELECT COUNT(s.topic_id) FROM subscription_topics AS s
               WHERE s.topic_id = t.id AND NOT reads_hidden(s.subscription_id)) AS subscriptions, t.created_at,
           t.id AS topic_id, t.known_as
    FROM topics AS t
    WHERE t.id = own_id;
END;

-- name: sort_targets
-- The names of archive targets in a JSON array, each once and in order, as a JSON array again. Raises PS006.
CREATE PROCEDURE sort_targets(targets JSON, OUT sorted VARCHAR(4000))
BEGIN
    DECLARE limit_before BIGINT UNSIGNED DEFAULT @@SESSION.group_concat_max_len;
    DECLARE bad INT;
    {{on error: SET SESSION group_concat_max_len = limit_before}}
    SET SESSION group_concat_max_len = 4294967295;
    SELECT COUNT(CASE WHEN NOT COALESCE(
                     t.name REGEXP '^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$' AND INSTR(t.name, CHAR(10)) = 0, FALSE)
                 THEN 1 END),
           CONCAT('[', COALESCE(GROUP_CONCAT(DISTINCT CONCAT('"', t.name, '"') ORDER BY t.name SEPARATOR ', '), ''),
                  ']')
    INTO bad, sorted
    FROM JSON_TABLE(targets, '$[*]' COLUMNS (name VARCHAR(500) PATH '$')) AS t;
    SET SESSION group_concat_max_len = limit_before;
    IF bad > 0 THEN
        CALL refuse('PS006', 'a target of the retention policy has a name that is not allowed');
    END IF;
END;

-- name: set_retention
-- States how long events of a topic are kept and in how many verified copies they must exist before they go, and on
-- which archive targets (a JSON array) copies count: NULL leaves the targets as they are, and where none is named
-- nothing goes. With 0 copies and no target, events go without a copy. max_bytes is how many bytes of sealed events
-- stay at most, NULL: as many as there are; above it the oldest log epochs go before their age and before they were
-- read, but not without the copies. origin says who sets it: 'hand', or 'file ' and the name of the policy file, which
-- owns it from then on. Returns the policy's version. Raises PS002, PS006, PS018.
CREATE PROCEDURE set_retention(
    topic VARCHAR(4000), minimum_age_seconds BIGINT, copies INT, origin LONGTEXT, targets JSON, max_bytes BIGINT
)
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE topic_partitions INT;
    DECLARE named VARCHAR(4000);
    {{on error: CALL undo_call()}}
    CALL begin_call('set_retention()');
    CALL lock_topic(topic, 'operate', owner_id, topic_partitions);
    IF minimum_age_seconds IS NULL OR minimum_age_seconds < 0 OR copies IS NULL OR copies < 0 THEN
        CALL refuse('PS006', CONCAT('retention cannot be ', COALESCE(minimum_age_seconds, 'NULL'), ' seconds and ',
                                    COALESCE(copies, 'NULL'), ' copies'));
    END IF;
    IF max_bytes < 1 THEN
        CALL refuse('PS006', CONCAT('max_bytes cannot be ', max_bytes, ': use 1 or more bytes, or NULL for no limit'));
    END IF;
    CALL require_origin(origin);
    IF copies = 0 THEN
        IF JSON_LENGTH(targets) > 0 THEN
            CALL refuse('PS006', 'a retention policy of no copies names archive targets');
        END IF;
        SET named = '[]';
    ELSEIF targets IS NULL THEN
        SELECT COALESCE(MAX(r.targets), '[]') INTO named FROM retention_policies AS r WHERE r.topic_id = owner_id;
    ELSE
        CALL sort_targets(targets, named);
    END IF;
    IF JSON_LENGTH(named) BETWEEN 1 AND copies - 1 THEN
        CALL refuse('PS006', CONCAT(copies, ' copies cannot lie on ', JSON_LENGTH(named), ' targets'));
    END IF;
    IF NOT EXISTS (
        SELECT *
        FROM retention_policies AS r
        WHERE r.topic_id = owner_id AND r.minimum_age_seconds = minimum_age_seconds AND r.copies = copies
          AND r.targets = named AND r.max_bytes <=> max_bytes AND NOT is_taken_over(r.origin, origin)
        LOCK IN SHARE MODE
    ) THEN
        INSERT INTO retention_policies (
            topic_id, minimum_age_seconds, copies, version, origin, updated_by, targets, max_bytes)
        VALUES (owner_id, minimum_age_seconds, copies, 1, origin, USER(), named, max_bytes)
        ON DUPLICATE KEY UPDATE
            minimum_age_seconds = VALUES(minimum_age_seconds), copies = VALUES(copies), version = version + 1,
            origin = VALUES(origin), updated_at = UTC_TIMESTAMP(6), updated_by = VALUES(updated_by),
            targets = VALUES(targets), max_bytes = VALUES(max_bytes);
    END IF;
    SELECT r.version FROM retention_policies AS r WHERE r.topic_id = owner_id;
    CALL end_call();
END;

-- name: retention_of
-- The retention policies in force.
CREATE PROCEDURE retention_of()
READS SQL DATA
BEGIN
    CALL refuse_serializable('retention_of()');
    SELECT t.address AS topic, r.minimum_age_seconds, r.copies, r.version, r.updated_at, r.origin, r.targets,
           r.max_bytes
    FROM retention_policies AS r JOIN topics AS t ON t.id = r.topic_id
    WHERE NOT t.restricted OR has_right(t.namespace_id, 'any')
    ORDER BY CAST(t.address AS BINARY);
END;

-- name: require_namespace
-- The id of a namespace in which the login holds a right; else raises PS001, in the same words whether the
-- namespace is missing or hidden.
CREATE PROCEDURE require_namespace(path LONGTEXT, verb VARCHAR(20), OUT namespace_id BIGINT)
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

-- name: place_namespace
-- Gives a namespace another parent and name, and updates the paths of everything below it. The caller has
-- locked the whole tree for itself.
CREATE PROCEDURE place_namespace(own BIGINT, own_path LONGTEXT, parent BIGINT, new_name LONGTEXT, new_path LONGTEXT)
BEGIN
    DECLARE rest INT DEFAULT CHAR_LENGTH(own_path) + 1;
    DECLARE longest INT;
    DECLARE is_taken BOOLEAN;
    SELECT COUNT(*) INTO is_taken FROM namespaces AS n WHERE n.path_hash = UNHEX(SHA2(new_path, 256));
    IF is_taken THEN
        CALL refuse('PS007', CONCAT('there is already a namespace "', LEFT(new_path, 80), '"'));
    END IF;
    -- A namespace takes two characters more than its path: the shortest topic has to fit below it.
    SELECT MAX(l.characters) INTO longest
    FROM (
        SELECT CHAR_LENGTH(n.path) + 2 AS characters
        FROM namespaces AS n
        WHERE n.id = own OR LEFT(n.path, rest) = CONCAT(own_path, '/')
        UNION ALL SELECT CHAR_LENGTH(t.address) FROM topics AS t WHERE LEFT(t.address, rest) = CONCAT(own_path, '/')
    ) AS l;
    IF longest - CHAR_LENGTH(own_path) + CHAR_LENGTH(new_path) > 4000 THEN
        CALL refuse('PS032', 'a path below the namespace would have more than 4,000 characters');
    END IF;
    UPDATE topics AS t
    SET t.address = CONCAT(new_path, SUBSTR(t.address, rest))
    WHERE LEFT(t.address, rest) = CONCAT(own_path, '/');
    UPDATE namespaces AS n
    SET n.path = CONCAT(new_path, SUBSTR(n.path, rest))
    WHERE n.id = own OR LEFT(n.path, rest) = CONCAT(own_path, '/');
    UPDATE namespaces AS n SET n.parent_id = parent, n.name = new_name WHERE n.id = own;
END;

-- name: ensure_namespaces
-- Makes the namespaces of a path that do not exist yet, from the top; raises PS001. The caller has locked the names.
-- Changes LAST_INSERT_ID().
CREATE PROCEDURE ensure_namespaces(path LONGTEXT)
BEGIN
    DECLARE own_path, parent_path, own_name LONGTEXT;
    DECLARE parent, found BIGINT;
    DECLARE depth INT DEFAULT 0;
    CALL require_some_namespace(path);
    REPEAT
        SET depth = depth + 1, parent = 0;
        SET own_path = SUBSTRING_INDEX(path, '/', depth);
        SELECT COUNT(n.id) INTO found FROM namespaces AS n WHERE n.path_hash = UNHEX(SHA2(own_path, 256));
        IF found = 0 THEN
            CALL split_path(own_path, parent_path, own_name);
            IF depth > 1 THEN
                CALL require_namespace(parent_path, 'operate', parent);
            END IF;
            INSERT IGNORE INTO namespaces (parent_id, name, path) VALUES (parent, own_name, own_path);
        END IF;
    UNTIL CHAR_LENGTH(own_path) = CHAR_LENGTH(path) END REPEAT;
END;

-- name: lock_doomed
-- The topics at and below a namespace, as a JSON array of ids, locked.
CREATE PROCEDURE lock_doomed(path LONGTEXT, OUT doomed JSON)
BEGIN
    DECLARE how_many INT;
    DECLARE limit_before BIGINT UNSIGNED DEFAULT @@SESSION.group_concat_max_len;
    {{on error: SET SESSION group_concat_max_len = limit_before}}
    SET SESSION group_concat_max_len = 4294967295;
    SELECT COALESCE(JSON_ARRAYAGG(l.id), JSON_ARRAY()), COUNT(l.id) INTO doomed, how_many
    FROM (
        SELECT t.id
        FROM topics AS t
        WHERE LEFT(t.address, CHAR_LENGTH(path) + 1) = CONCAT(path, '/')
        ORDER BY t.id
        -- The limit keeps MariaDB from merging the two queries.
        LIMIT 1000000
        FOR UPDATE
    ) AS l;
    SET SESSION group_concat_max_len = limit_before;
    IF JSON_LENGTH(doomed) <> how_many THEN
        CALL refuse('PS019', 'not all topics of the namespace were found');
    END IF;
END;

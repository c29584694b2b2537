-- name: create_namespace
-- Creates one namespace below an existing parent. Returns its id. Raises PS001, PS007, PS018, PS030 to PS034.
CREATE PROCEDURE create_namespace(path LONGTEXT)
BEGIN
    DECLARE parent_path, own_name LONGTEXT;
    DECLARE parent BIGINT DEFAULT 0;
    DECLARE created BIGINT;
    DECLARE id_before BIGINT DEFAULT LAST_INSERT_ID();
    {{on error: CALL undo_call()}}
    CALL begin_call('create_namespace()');
    CALL require_path(path, 'namespace', 3998);
    CALL lock_names('create_namespace()', FALSE);
    CALL split_path(path, parent_path, own_name);
    IF CHAR_LENGTH(parent_path) > 0 THEN
        CALL require_namespace(parent_path, 'operate', parent);
    END IF;
    CALL require_parent(parent);
    INSERT IGNORE INTO namespaces (parent_id, name, path) VALUES (parent, own_name, path);
    IF ROW_COUNT() = 0 THEN
        CALL refuse('PS007', CONCAT('there is already a namespace "', LEFT(path, 80), '"'));
    END IF;
    SET created = LAST_INSERT_ID();
    DO LAST_INSERT_ID(id_before);
    SELECT created AS namespace_id;
    CALL end_call();
END;

-- name: rename_namespace
-- Gives a namespace another name and updates the paths of everything below it. Returns its new path. Raises
-- PS001, PS007, PS018, PS030 to PS034.
CREATE PROCEDURE rename_namespace(path LONGTEXT, new_name LONGTEXT)
BEGIN
    DECLARE own, parent BIGINT;
    DECLARE parent_path, own_name, new_path LONGTEXT;
    {{on error: CALL undo_call()}}
    CALL begin_call('rename_namespace()');
    CALL require_path(path, 'namespace', 3998);
    CALL require_name(new_name, 'namespace');
    CALL lock_names('rename_namespace()', TRUE);
    CALL require_namespace(path, 'operate', own);
    CALL require_parent_of(own);
    CALL split_path(path, parent_path, own_name);
    SET new_path = CONCAT(LEFT(path, CHAR_LENGTH(path) - CHAR_LENGTH(own_name)), new_name);
    IF CAST(new_path AS BINARY) <> CAST(path AS BINARY) THEN
        SELECT n.parent_id INTO parent FROM namespaces AS n WHERE n.id = own;
        CALL place_namespace(own, path, parent, new_name, new_path);
    END IF;
    SELECT new_path AS path;
    CALL end_call();
END;

-- name: move_namespace
-- Moves a namespace with everything below it under another parent, or to the root ('' as the parent). Returns its new
-- path. From then on the rights of the new place apply to it. Raises PS001, PS007, PS018, PS030 to PS035.
CREATE PROCEDURE move_namespace(path LONGTEXT, new_parent LONGTEXT)
BEGIN
    DECLARE own BIGINT;
    DECLARE parent BIGINT DEFAULT 0;
    DECLARE parent_path, own_name, new_path LONGTEXT;
    {{on error: CALL undo_call()}}
    CALL begin_call('move_namespace()');
    CALL require_path(path, 'namespace', 3998);
    IF new_parent IS NULL OR CHAR_LENGTH(new_parent) > 0 THEN
        CALL require_path(new_parent, 'namespace', 3998);
    END IF;
    CALL lock_names('move_namespace()', TRUE);
    CALL require_namespace(path, 'operate', own);
    IF CHAR_LENGTH(new_parent) > 0 THEN
        CALL require_namespace(new_parent, 'operate', parent);
    END IF;
    CALL require_parent_of(own);
    CALL require_parent(parent);
    IF parent > 0 THEN
        CALL refuse_of_account(own);
    END IF;
    IF LEFT(CONCAT(new_parent, '/'), CHAR_LENGTH(path) + 1) = CONCAT(path, '/') THEN
        CALL refuse('PS035', CONCAT('the namespace "', LEFT(path, 70), '" cannot be moved under itself'));
    END IF;
    CALL split_path(path, parent_path, own_name);
    SET new_path = IF(CHAR_LENGTH(new_parent) = 0, own_name, CONCAT(new_parent, '/', own_name));
    IF CAST(new_path AS BINARY) <> CAST(path AS BINARY) THEN
        CALL place_namespace(own, path, parent, own_name, new_path);
        CALL refresh_restricted(own, new_path);
        CALL refresh_policies('namespace', own);
    END IF;
    SELECT new_path AS path;
    CALL end_call();
END;

-- name: delete_namespace
-- Deletes a namespace with everything below it. Returns how many topics were deleted. Refused (PS020) when
-- there is a topic and with_topics is false, and always when a subscription reads one of the topics. Raises
-- PS001, PS018, PS020, PS030 to PS034.
CREATE PROCEDURE delete_namespace(path LONGTEXT, with_topics BOOLEAN)
BEGIN
    DECLARE own BIGINT;
    DECLARE doomed JSON;
    {{on error: CALL undo_call()}}
    CALL begin_call('delete_namespace()');
    CALL require_path(path, 'namespace', 3998);
    CALL lock_names('delete_namespace()', TRUE);
    CALL require_namespace(path, 'operate', own);
    CALL require_parent_of(own);
    CALL refuse_of_account(own);
    CALL lock_doomed(path, doomed);
    IF JSON_LENGTH(doomed) > 0 AND with_topics IS NOT TRUE THEN
        CALL refuse('PS020', CONCAT('the namespace "', LEFT(path, 60), '" holds ', JSON_LENGTH(doomed), ' topics'));
    ELSEIF JSON_LENGTH(doomed) > 0 THEN
        CALL drop_topics(doomed, FALSE);
    END IF;
    DELETE p, v
    FROM namespaces AS n
    STRAIGHT_JOIN policies AS p ON p.scope = 'namespace' AND p.scope_id = n.id
    STRAIGHT_JOIN policy_versions AS v ON v.scope = 'namespace' AND v.scope_id = n.id
    WHERE n.id = own OR LEFT(n.path, CHAR_LENGTH(path) + 1) = CONCAT(path, '/');
    DELETE g
    FROM namespaces AS n STRAIGHT_JOIN namespace_grants AS g ON g.namespace_id = n.id
    WHERE n.id = own OR LEFT(n.path, CHAR_LENGTH(path) + 1) = CONCAT(path, '/');
    DELETE FROM namespaces WHERE id = own OR LEFT(namespaces.path, CHAR_LENGTH(path) + 1) = CONCAT(path, '/');
    SELECT JSON_LENGTH(doomed) AS topics;
    CALL end_call();
END;

-- name: list_namespaces
-- All namespaces that the login may see, parents first.
CREATE PROCEDURE list_namespaces()
READS SQL DATA
BEGIN
    CALL refuse_serializable('list_namespaces()');
    SELECT n.path, n.created_at FROM namespaces AS n WHERE has_right(n.id, 'any') ORDER BY CAST(n.path AS BINARY);
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

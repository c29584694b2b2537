-- name: create_namespace
-- Creates one namespace below an existing parent. Returns its id. Raises PS001, PS007, PS018, PS030 to PS034.
CREATE OR REPLACE FUNCTION create_namespace(path text) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    parent bigint := 0;
    created bigint;
BEGIN
    PERFORM commit_durably();
    PERFORM require_path(path, 'namespace', 3998);
    PERFORM lock_names('create_namespace()', false);
    IF parent_of(path) <> '' THEN
        parent := (require_namespace(parent_of(path), 'operate')).id;
    END IF;
    PERFORM require_parent(parent);
    INSERT INTO namespaces (parent_id, name, path)
    VALUES (parent, name_of(create_namespace.path), create_namespace.path)
    ON CONFLICT DO NOTHING
    RETURNING id INTO created;
    IF created IS NULL THEN
        PERFORM refuse_taken('namespace', path);
    END IF;
    RETURN created;
END
$$;

-- name: rename_namespace
-- Gives a namespace another name and updates the paths of everything below it. Returns its new path. Raises
-- PS001, PS007, PS018, PS030 to PS034.
CREATE OR REPLACE FUNCTION rename_namespace(path text, new_name text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    own namespaces%ROWTYPE;
    new_path text;
BEGIN
    PERFORM commit_durably();
    PERFORM require_path(path, 'namespace', 3998);
    PERFORM require_name(new_name, 'namespace');
    PERFORM lock_names('rename_namespace()', true);
    own := require_namespace(path, 'operate');
    PERFORM require_parent(own.parent_id);
    new_path := left(own.path, -char_length(own.name)) || new_name;
    IF new_path <> own.path THEN
        PERFORM place_namespace(own, own.parent_id, new_name, new_path);
    END IF;
    RETURN new_path;
END
$$;

-- name: move_namespace
-- Moves a namespace with everything below it under another parent, or to the root ('' as the parent). Returns its new
-- path. From then on the rights of the new place apply to it. Raises PS001, PS007, PS018, PS030 to PS035.
CREATE OR REPLACE FUNCTION move_namespace(path text, new_parent text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    own namespaces%ROWTYPE;
    parent namespaces%ROWTYPE;
    new_path text;
BEGIN
    PERFORM commit_durably();
    PERFORM require_path(path, 'namespace', 3998);
    IF new_parent <> '' OR new_parent IS NULL THEN
        PERFORM require_path(new_parent, 'namespace', 3998);
    END IF;
    PERFORM lock_names('move_namespace()', true);
    own := require_namespace(path, 'operate');
    IF new_parent <> '' THEN
        parent := require_namespace(new_parent, 'operate');
    END IF;
    PERFORM require_parent(own.parent_id);
    PERFORM require_parent(COALESCE(parent.id, 0));
    PERFORM refuse_of_account(own.id) WHERE new_parent <> '';
    IF new_parent = path OR starts_with(new_parent, path || '/') THEN
        PERFORM refuse('PS035', format('the namespace "%s" cannot be moved under itself', left(path, 200)),
                       'Choose a parent outside of it.');
    END IF;
    new_path := CASE WHEN new_parent = '' THEN own.name ELSE parent.path || '/' || own.name END;
    IF new_path <> own.path THEN
        PERFORM place_namespace(own, COALESCE(parent.id, 0), own.name, new_path);
        PERFORM refresh_restricted(own.id);
        PERFORM refresh_policies('namespace', own.id);
    END IF;
    RETURN new_path;
END
$$;

-- name: delete_namespace
-- Deletes a namespace with everything below it. Returns how many topics were deleted. Refused (PS020) when
-- there is a topic and with_topics is false, and always when a subscription reads one of the topics. Raises
-- PS001, PS018, PS020, PS030 to PS034.
CREATE OR REPLACE FUNCTION delete_namespace(path text, with_topics boolean DEFAULT false) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    own namespaces%ROWTYPE;
    subtree bigint[];
    doomed bigint[];
    an_address text;
BEGIN
    PERFORM commit_durably();
    PERFORM require_path(path, 'namespace', 3998);
    PERFORM lock_names('delete_namespace()', true);
    own := require_namespace(path, 'operate');
    PERFORM require_parent(own.parent_id);
    PERFORM refuse_of_account(own.id);
    subtree := namespaces_below(own.id);
    SELECT array_agg(l.id), min(l.address) INTO doomed, an_address
    FROM (
        SELECT t.id, t.address
        FROM topics AS t
        WHERE t.namespace_id = ANY (subtree)
        ORDER BY t.address
        FOR NO KEY UPDATE
    ) AS l;
    IF doomed IS NOT NULL AND with_topics IS NOT TRUE THEN
        PERFORM refuse('PS020', format('the namespace "%s" holds %s topics, "%s" among them', left(path, 200),
                                       cardinality(doomed), left(an_address, 200)),
                       'Delete them first, or pass with_topics => true: their events are lost.');
    ELSIF doomed IS NOT NULL THEN
        PERFORM drop_topics(doomed, false);
    END IF;
    DELETE FROM namespace_grants AS g WHERE g.namespace_id = ANY (subtree);
    PERFORM forget_policies('namespace', subtree);
    DELETE FROM namespaces AS n WHERE n.id = ANY (subtree);
    RETURN COALESCE(cardinality(doomed), 0);
END
$$;

-- name: list_namespaces
-- All namespaces that the login may see, parents first.
CREATE OR REPLACE FUNCTION list_namespaces()
RETURNS TABLE (path text, created_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT n.path, n.created_at
    FROM namespaces AS n
    WHERE (SELECT no_walls()) OR has_right(n.id, 'any')
    ORDER BY n.path
$$;

-- name: namespace_exists
-- Whether there is a namespace that the login may see.
CREATE OR REPLACE FUNCTION namespace_exists(path text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT EXISTS (SELECT FROM namespaces AS n WHERE n.path = namespace_exists.path AND has_right(n.id, 'any'))
$$;

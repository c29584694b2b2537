-- name: require_namespace
-- A namespace in which the login holds a right; else raises PS001, in the same words whether the namespace is missing
-- or hidden.
CREATE OR REPLACE FUNCTION require_namespace(path text, verb text) RETURNS namespaces
LANGUAGE plpgsql STABLE AS $$
DECLARE
    found_row namespaces%ROWTYPE;
BEGIN
    SELECT n.* INTO found_row FROM namespaces AS n
    WHERE n.path = require_namespace.path AND has_right(n.id, verb);
    IF NOT FOUND THEN
        PERFORM refuse('PS001', format('there is no namespace "%s"', left(path, 200)),
                       'A topic is addressed as namespace/path/topic; create each namespace before what is in it.');
    END IF;
    RETURN found_row;
END
$$;

-- name: place_namespace
-- Gives a namespace another parent and name, and updates the paths of everything below it. The caller has
-- locked the whole tree for itself.
CREATE OR REPLACE FUNCTION place_namespace(own namespaces, parent bigint, new_name text, new_path text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    subtree bigint[] := namespaces_below(own.id);
    rest integer := char_length(own.path) + 1;
    longest integer;
BEGIN
    IF EXISTS (SELECT FROM namespaces AS n WHERE n.path = new_path) THEN
        PERFORM refuse_taken('namespace', new_path);
    END IF;
    PERFORM FROM topics AS t WHERE t.namespace_id = ANY (subtree) ORDER BY t.address FOR NO KEY UPDATE;
    -- A namespace takes two characters more than its path: the shortest topic has to fit below it.
    SELECT max(l.characters) INTO longest
    FROM (
        SELECT char_length(n.path) + 2 AS characters FROM namespaces AS n WHERE n.id = ANY (subtree)
        UNION ALL SELECT char_length(t.address) FROM topics AS t WHERE t.namespace_id = ANY (subtree)
    ) AS l;
    IF longest - char_length(own.path) + char_length(new_path) > 4000 THEN
        PERFORM refuse('PS032', 'a path below the namespace would have more than 4,000 characters',
                       'Choose a shorter name or another parent.');
    END IF;
    UPDATE namespaces AS n SET path = new_path || substr(n.path, rest) WHERE n.id = ANY (subtree);
    UPDATE namespaces AS n SET parent_id = parent, name = new_name WHERE n.id = own.id;
    UPDATE topics AS t SET address = new_path || substr(t.address, rest) WHERE t.namespace_id = ANY (subtree);
END
$$;

-- name: ensure_namespaces
-- Makes the namespaces of a path that do not exist yet, from the top; raises PS001. The caller has locked the names.
CREATE OR REPLACE FUNCTION ensure_namespaces(path text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    names text[] := string_to_array(path, '/');
    own_path text;
    parent bigint := 0;
BEGIN
    IF NOT as_login() AND NOT EXISTS (
        SELECT FROM namespaces AS n
        WHERE (n.path = ensure_namespaces.path OR starts_with(ensure_namespaces.path, n.path || '/'))
          AND has_right(n.id, 'operate'))
    THEN
        -- The words do not tell which of the namespaces above it exist.
        PERFORM require_namespace(path, 'operate');
    END IF;
    FOR depth IN 1 .. cardinality(names) LOOP
        own_path := array_to_string(names[1:depth], '/');
        CONTINUE WHEN EXISTS (SELECT FROM namespaces AS n WHERE n.path = own_path);
        IF depth > 1 THEN
            parent := (require_namespace(parent_of(own_path), 'operate')).id;
        END IF;
        INSERT INTO namespaces (parent_id, name, path) VALUES (parent, names[depth], own_path) ON CONFLICT DO NOTHING;
    END LOOP;
END
$$;

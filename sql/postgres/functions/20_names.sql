-- name: create_namespace
-- Creates one namespace below an existing parent; answers its id. Raises PS001, PS003, PS007.
CREATE OR REPLACE FUNCTION create_namespace(path text) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    parts text[] := string_to_array(path, '/');
    own_name text := parts[cardinality(parts)];
    parent_path text := array_to_string(parts[1:cardinality(parts) - 1], '/');
    parent bigint := 0;
    created bigint;
BEGIN
    PERFORM require_name(own_name, 'namespace');
    IF char_length(path) > 3500 THEN
        PERFORM refuse('PS003', format('the namespace path has %s characters', char_length(path)),
                       'Use at most 3,500 characters, so that a topic still fits below it.');
    END IF;
    IF parent_path <> '' OR cardinality(parts) > 1 THEN
        SELECT n.id INTO parent FROM namespaces AS n WHERE n.path = parent_path;
        IF NOT FOUND THEN
            PERFORM refuse('PS001', format('there is no namespace "%s"', parent_path), 'Create the parent first.');
        END IF;
    END IF;
    INSERT INTO namespaces (parent_id, name, path)
    VALUES (parent, own_name, create_namespace.path)
    ON CONFLICT DO NOTHING
    RETURNING id INTO created;
    IF created IS NULL THEN
        PERFORM refuse('PS007', format('there is already a namespace "%s"', path), 'Choose another name.');
    END IF;
    RETURN created;
END
$$;

-- name: create_topic
-- Creates a topic and its partitions; answers the topic's id. Raises PS001, PS003, PS005, PS007.
CREATE OR REPLACE FUNCTION create_topic(topic text, partitions integer DEFAULT 1) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    parts text[] := string_to_array(topic, '/');
    own_name text := parts[cardinality(parts)];
    parent_path text := array_to_string(parts[1:cardinality(parts) - 1], '/');
    parent bigint;
    created bigint;
BEGIN
    PERFORM require_name(own_name, 'topic');
    IF char_length(topic) > 4000 THEN
        PERFORM refuse('PS003', format('path and topic have %s characters', char_length(topic)),
                       'Use at most 4,000 characters.');
    END IF;
    IF partitions IS NULL OR partitions NOT BETWEEN 1 AND 65536 THEN
        PERFORM refuse('PS005', format('a topic cannot have %s partitions', partitions),
                       'Use 1 to 65,536; up to 1,024 is practical.');
    END IF;
    SELECT n.id INTO parent FROM namespaces AS n WHERE n.path = parent_path;
    IF NOT FOUND THEN
        PERFORM refuse('PS001', format('there is no namespace "%s"', parent_path),
                       'A topic is addressed as namespace/path/topic; create the namespace first.');
    END IF;
    INSERT INTO topics (namespace_id, name, address, partitions)
    VALUES (parent, own_name, create_topic.topic, create_topic.partitions)
    ON CONFLICT DO NOTHING
    RETURNING id INTO created;
    IF created IS NULL THEN
        PERFORM refuse('PS007', format('there is already a topic "%s"', topic), 'Choose another name.');
    END IF;
    INSERT INTO partitions (id, topic_id, number)
    SELECT (created << 16) | number, created, number
    FROM generate_series(0, create_topic.partitions - 1) AS number;
    RETURN created;
END
$$;

-- name: list_topics
-- The topics at or below a namespace; all of them when it is empty.
CREATE OR REPLACE FUNCTION list_topics(namespace text DEFAULT '')
RETURNS TABLE (topic text, partitions integer, created_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT t.address, t.partitions, t.created_at
    FROM topics AS t
    WHERE list_topics.namespace = '' OR starts_with(t.address, list_topics.namespace || '/')
    ORDER BY t.address
    LIMIT 10000
$$;

-- name: list_namespaces
-- All namespaces, parents first.
CREATE OR REPLACE FUNCTION list_namespaces()
RETURNS TABLE (path text, created_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT n.path, n.created_at FROM namespaces AS n ORDER BY n.path LIMIT 10000
$$;

-- name: set_retention
-- States how long events of a topic are kept and in how many verified copies they must exist before they go.
CREATE OR REPLACE FUNCTION set_retention(topic text, minimum_age_seconds bigint, copies integer DEFAULT 1)
RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner_id bigint := require_topic(topic);
    stored integer;
BEGIN
    IF minimum_age_seconds IS NULL OR minimum_age_seconds < 0 OR copies IS NULL OR copies < 1 THEN
        PERFORM refuse('PS006', format('retention of %s seconds and %s copies', minimum_age_seconds, copies),
                       'The age is 0 or more seconds, the copies are 1 or more.');
    END IF;
    INSERT INTO retention_policies AS r (topic_id, minimum_age_seconds, copies, version)
    VALUES (owner_id, set_retention.minimum_age_seconds, set_retention.copies, 1)
    ON CONFLICT (topic_id) DO UPDATE
    SET minimum_age_seconds = EXCLUDED.minimum_age_seconds, copies = EXCLUDED.copies, version = r.version + 1,
        updated_at = clock_timestamp(), updated_by = session_user
    WHERE (r.minimum_age_seconds, r.copies) IS DISTINCT FROM (EXCLUDED.minimum_age_seconds, EXCLUDED.copies);
    SELECT r.version INTO stored FROM retention_policies AS r WHERE r.topic_id = owner_id;
    RETURN stored;
END
$$;

-- name: retention_of
-- The retention policies that are in force.
CREATE OR REPLACE FUNCTION retention_of()
RETURNS TABLE (topic text, minimum_age_seconds bigint, copies integer, version integer, updated_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT t.address, r.minimum_age_seconds, r.copies, r.version, r.updated_at
    FROM retention_policies AS r JOIN topics AS t ON t.id = r.topic_id
    ORDER BY t.address
$$;

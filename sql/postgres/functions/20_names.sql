-- name: require_name
-- Checks one name, of a path or of anything else; raises PS030, PS031, PS033, PS034. The blanks and control
-- characters of Unicode are listed one by one, so that every engine and Python refuse the same ones.
CREATE OR REPLACE FUNCTION require_name(name text, what text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF name ~ $p$[\u0001-\u001f\u007f-\u009f]$p$ THEN
        PERFORM refuse('PS033', format('the name of a %s holds a control character', what),
                       'Use printable characters only.');
    ELSIF name IS NULL OR name ~ $p$^[ \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]*\Z$p$ THEN
        PERFORM refuse('PS030', format('the name of a %s is empty', what), 'Give a name of 1 to 500 characters.');
    ELSIF char_length(name) > 500 THEN
        PERFORM refuse('PS031', format('the name of a %s has %s characters', what, char_length(name)),
                       'Use at most 500 characters.');
    ELSIF strpos(name, '/') > 0 THEN
        PERFORM refuse('PS034', format('the name of a %s holds "/"', what), '"/" separates the names of a path.');
    END IF;
END
$$;

-- name: require_path
-- Checks the path of a namespace or of a topic (what says which); raises PS030 to PS034.
CREATE OR REPLACE FUNCTION require_path(path text, what text, longest integer) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    parts text[] := string_to_array(path, '/');
BEGIN
    IF path IS NULL OR path = '' THEN
        PERFORM refuse('PS030', format('the path of a %s is empty', what), 'Give its path, name/name/...');
    ELSIF char_length(path) > longest THEN
        PERFORM refuse('PS032', format('the path of a %s has %s characters', what, char_length(path)),
                       format('Use at most %s characters.', longest));
    END IF;
    FOR place IN 1 .. cardinality(parts) LOOP
        IF parts[place] = '' THEN
            PERFORM refuse('PS034', format('the %s "%s" has an empty name in its path', what, left(path, 80)),
                           'Write names with one / between them, none at the start or the end.');
        END IF;
        PERFORM require_name(parts[place], CASE WHEN place = cardinality(parts) THEN what ELSE 'namespace' END);
    END LOOP;
END
$$;

-- name: require_address
-- Checks the address of a topic; raises PS003 and PS030 to PS034.
CREATE OR REPLACE FUNCTION require_address(topic text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM require_path(topic, 'topic', 4000);
    IF strpos(topic, '/') = 0 THEN
        PERFORM refuse('PS003', format('the topic "%s" has no namespace', left(topic, 200)), 'Write namespace/topic.');
    END IF;
END
$$;

-- name: lock_names
-- Opens a change of names, which needs READ COMMITTED (PS018). A change that rewrites paths or removes names locks
-- the tree alone; a change that only adds a name shares it. This lock is taken before the locks of topics, and those
-- before the sequencer's lock, so that no two changes deadlock.
CREATE OR REPLACE FUNCTION lock_names(what text, alone boolean) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM require_read_committed(what);
    IF alone THEN
        PERFORM FROM name_tree FOR UPDATE;
    ELSE
        PERFORM FROM name_tree FOR SHARE;
    END IF;
END
$$;

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

-- name: lock_topic
-- A topic in which the login holds a right, locked against deletion, resize and subscribe to the end of the
-- transaction; publishers are not affected. Raises PS002.
CREATE OR REPLACE FUNCTION lock_topic(topic text, verb text) RETURNS topics
LANGUAGE plpgsql AS $$
DECLARE
    found_row topics%ROWTYPE;
BEGIN
    SELECT t.* INTO found_row FROM topics AS t
    WHERE t.address = lock_topic.topic AND (NOT t.restricted OR has_right(t.namespace_id, verb))
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        PERFORM refuse_topic(topic);
    END IF;
    RETURN found_row;
END
$$;

-- name: namespace_exists
-- Whether there is a namespace that the login may see.
CREATE OR REPLACE FUNCTION namespace_exists(path text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT EXISTS (SELECT FROM namespaces AS n WHERE n.path = namespace_exists.path AND has_right(n.id, 'any'))
$$;

-- name: list_namespaces
-- All namespaces that the login may see, parents first.
CREATE OR REPLACE FUNCTION list_namespaces()
RETURNS TABLE (path text, created_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT n.path, n.created_at
    FROM namespaces AS n
    WHERE NOT EXISTS (SELECT FROM namespace_grants) OR has_right(n.id, 'any')
    ORDER BY n.path
$$;

-- name: list_topics
-- The topics at or below a namespace that the login may see; all such topics when the namespace is ''.
CREATE OR REPLACE FUNCTION list_topics(namespace text DEFAULT '')
RETURNS TABLE (topic text, partitions integer, created_at timestamptz, strategy text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT t.address, t.partitions, t.created_at, t.strategy
    FROM topics AS t
    WHERE (list_topics.namespace = '' OR starts_with(t.address, list_topics.namespace || '/'))
      AND (NOT t.restricted OR has_right(t.namespace_id, 'any'))
    ORDER BY t.address
$$;

-- name: describe_topic
-- What is set for a topic, and how many subscriptions that the login may see read it. known_as is the name by which
-- sinks and archives know the topic: it stays when the address changes, and is never given to a second topic. Raises
-- PS002.
CREATE OR REPLACE FUNCTION describe_topic(topic text)
RETURNS TABLE (
    partitions integer, strategy text, max_payload_bytes integer, max_unsequenced_events bigint,
    max_unsequenced_bytes bigint, restricted boolean, subscriptions bigint, created_at timestamptz, topic_id bigint,
    known_as text
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    own_id bigint := require_topic(topic);
BEGIN
    RETURN QUERY
    SELECT t.partitions, t.strategy, t.max_payload_bytes, t.max_unsequenced_events, t.max_unsequenced_bytes,
           t.restricted, (
               SELECT count(*) FROM subscription_topics AS s
               WHERE s.topic_id = t.id
                 AND (NOT EXISTS (SELECT FROM namespace_grants) OR NOT reads_hidden(s.subscription_id))),
           t.created_at, t.id, t.known_as
    FROM topics AS t
    WHERE t.id = own_id;
END
$$;

-- name: set_retention
-- States how long events of a topic are kept and in how many verified copies they must exist before they go, and on
-- which archive targets copies count: NULL leaves the targets as they are, and where none is named nothing goes. With 0
-- copies and no target, events go without a copy. max_bytes is how many bytes of sealed events stay at most, NULL: as
-- many as there are; above it the oldest log epochs go before their age and before they were read, but not without the
-- copies. origin says who sets it: 'hand', or 'file ' and the name of the policy file, which owns it from then on.
-- Returns the policy's version.
CREATE OR REPLACE FUNCTION set_retention(
    topic text, minimum_age_seconds bigint, copies integer DEFAULT 1, origin text DEFAULT 'hand',
    targets text[] DEFAULT NULL, max_bytes bigint DEFAULT NULL
) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner_id bigint := (lock_topic(topic, 'operate')).id;
    stored integer;
BEGIN
    PERFORM commit_durably();
    IF minimum_age_seconds IS NULL OR minimum_age_seconds < 0 OR copies IS NULL OR copies < 0 THEN
        PERFORM refuse('PS006', format('retention cannot be %s seconds and %s copies', minimum_age_seconds, copies),
                       'The age is 0 or more seconds; 0 copies: events go without one.');
    ELSIF max_bytes < 1 THEN
        PERFORM refuse('PS006', format('max_bytes cannot be %s', max_bytes),
                       'Use 1 or more bytes, or NULL for no limit.');
    ELSIF copies = 0 AND cardinality(targets) > 0 THEN
        PERFORM refuse('PS006', 'a retention policy of no copies names archive targets',
                       'Name no target, or ask for 1 copy or more.');
    ELSIF EXISTS (SELECT FROM unnest(targets) AS t (name) WHERE t.name !~ '^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$')
            OR array_position(targets, NULL) IS NOT NULL THEN
        PERFORM refuse('PS006', 'a target of the retention policy has a name that is not allowed',
                       'Use up to 63 letters, digits, dots, dashes and underscores.');
    END IF;
    PERFORM require_origin(origin);
    targets := ARRAY(SELECT DISTINCT t.name COLLATE "C" FROM unnest(COALESCE(
        CASE WHEN copies = 0 THEN '{}' ELSE set_retention.targets END, (
        SELECT r.targets FROM retention_policies AS r WHERE r.topic_id = owner_id))) AS t (name) ORDER BY 1);
    IF cardinality(targets) BETWEEN 1 AND copies - 1 THEN
        PERFORM refuse('PS006', format('%s copies cannot lie on %s targets', copies, cardinality(targets)),
                       'Name more targets, or ask for fewer copies: nothing could ever be removed.');
    END IF;
    INSERT INTO retention_policies AS r (topic_id, minimum_age_seconds, copies, version, origin, targets, max_bytes)
    VALUES (owner_id, set_retention.minimum_age_seconds, set_retention.copies, 1, set_retention.origin,
            set_retention.targets, set_retention.max_bytes)
    ON CONFLICT (topic_id) DO UPDATE
    SET minimum_age_seconds = EXCLUDED.minimum_age_seconds, copies = EXCLUDED.copies, version = r.version + 1,
        origin = EXCLUDED.origin, targets = EXCLUDED.targets, max_bytes = EXCLUDED.max_bytes,
        updated_at = clock_timestamp(), updated_by = session_user
    WHERE (r.minimum_age_seconds, r.copies, r.targets, r.max_bytes)
        IS DISTINCT FROM (EXCLUDED.minimum_age_seconds, EXCLUDED.copies, EXCLUDED.targets, EXCLUDED.max_bytes)
        OR is_taken_over(r.origin, EXCLUDED.origin);
    SELECT r.version INTO stored FROM retention_policies AS r WHERE r.topic_id = owner_id;
    RETURN stored;
END
$$;

-- name: retention_of
-- The retention policies in force.
CREATE OR REPLACE FUNCTION retention_of()
RETURNS TABLE (
    topic text, minimum_age_seconds bigint, copies integer, version integer, updated_at timestamptz, origin text,
    targets text[], max_bytes bigint
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT t.address, r.minimum_age_seconds, r.copies, r.version, r.updated_at, r.origin, r.targets, r.max_bytes
    FROM retention_policies AS r JOIN topics AS t ON t.id = r.topic_id
    WHERE NOT t.restricted OR has_right(t.namespace_id, 'any')
    ORDER BY t.address
$$;

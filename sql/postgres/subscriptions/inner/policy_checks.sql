-- name: refuse_scope
-- Raises the error that no scope with this name can have a policy (PS006).
CREATE OR REPLACE FUNCTION refuse_scope(scope text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM refuse('PS006', format('a policy cannot be for a "%s"', left(scope, 200)),
                   'Its scope is global, namespace, topic or subscription.');
END
$$;

-- name: lock_policy_scope
-- The id of the scope for which a policy is set, locked so that nothing that inherits from it is added or moved
-- meanwhile. The locks are in the order of every change of names: the tree, the topics by address, then the
-- subscription. Raises PS001, PS002, PS006, PS013.
CREATE OR REPLACE FUNCTION lock_policy_scope(scope text, name text) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    found_id bigint;
BEGIN
    IF scope = 'topic' THEN
        RETURN (lock_topic(name, 'operate')).id;
    ELSIF scope = 'subscription' THEN
        found_id := (require_subscription(name)).id;
        PERFORM FROM subscriptions AS s WHERE s.id = found_id FOR NO KEY UPDATE;
        IF NOT FOUND THEN  -- It was deleted while this waited for it.
            RETURN lock_policy_scope(scope, name);
        END IF;
        RETURN found_id;
    ELSIF scope = 'namespace' THEN
        PERFORM lock_names('set_policy()', true);
        found_id := (require_namespace(name, 'operate')).id;
    ELSIF scope = 'global' THEN
        IF NOT passes_walls('operate') THEN
            PERFORM refuse('PS006', 'only a login that may operate all namespaces sets the global policy',
                           'Set one for a namespace, a topic or a subscription of yours.');
        END IF;
        PERFORM lock_names('set_policy()', true);
        found_id := 0;
    ELSE
        PERFORM refuse_scope(scope);
    END IF;
    PERFORM FROM topics AS t
    WHERE found_id = 0 OR t.namespace_id = ANY (namespaces_below(found_id))
    ORDER BY t.address
    FOR NO KEY UPDATE;
    RETURN found_id;
END
$$;

-- name: find_policy_scope
-- The id of the scope whose policy is read. Raises PS001, PS002, PS006, PS013.
CREATE OR REPLACE FUNCTION find_policy_scope(scope text, name text) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF scope = 'global' THEN
        RETURN 0;
    ELSIF scope = 'namespace' THEN
        RETURN (require_namespace(name, 'read')).id;
    ELSIF scope = 'topic' THEN
        RETURN require_topic(name);
    ELSIF scope = 'subscription' THEN
        RETURN (require_subscription(name)).id;
    END IF;
    PERFORM refuse_scope(scope);
END
$$;

-- name: policy_scope_name
-- The name of the scope for which a policy was set; empty for everything.
CREATE OR REPLACE FUNCTION policy_scope_name(scope text, scope_id bigint) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT CASE policy_scope_name.scope
        WHEN 'namespace' THEN (SELECT n.path FROM namespaces AS n WHERE n.id = policy_scope_name.scope_id)
        WHEN 'topic' THEN (SELECT t.address FROM topics AS t WHERE t.id = policy_scope_name.scope_id)
        WHEN 'subscription' THEN (SELECT s.name FROM subscriptions AS s WHERE s.id = policy_scope_name.scope_id)
        ELSE ''
    END
$$;

-- name: require_policy_kind
-- Checks the kind of a policy; raises PS006.
CREATE OR REPLACE FUNCTION require_policy_kind(kind text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM policy_settings AS k WHERE k.kind = require_policy_kind.kind) THEN
        PERFORM refuse('PS006', format('there is no policy "%s"', left(kind, 200)),
                       'The policies are heartbeat, keep, lease, metrics and retry.');
    END IF;
END
$$;

-- name: require_origin
-- Checks the origin of a policy: 'hand', 'file', or 'file ' and the name of the file (1 to 500 characters). Raises
-- PS006.
CREATE OR REPLACE FUNCTION require_origin(origin text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF origin IS NULL OR NOT (origin IN ('file', 'hand') OR starts_with(origin, 'file ')
                              AND length(origin) BETWEEN 6 AND 505) THEN
        PERFORM refuse('PS006', format('origin cannot be "%s"', left(origin, 200)),
                       'Use hand, or file and the name of the file, of up to 500 characters.');
    END IF;
END
$$;

-- name: require_policy_settings
-- Checks what a policy sets: known settings, each of its type and within its bounds; raises PS006. Settings that
-- depend on each other must be set together, so that they are also valid where they are inherited.
CREATE OR REPLACE FUNCTION require_policy_settings(kind text, settings jsonb) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    wrong record;
BEGIN
    IF jsonb_typeof(settings) IS DISTINCT FROM 'object' THEN
        PERFORM refuse('PS006', 'the settings of a policy are not a JSON object', 'Give {"setting": value}.');
    END IF;
    SELECT g.key, g.value, k.setting, k.lowest, k.highest, k.words INTO wrong
    FROM jsonb_each(settings) AS g
    LEFT JOIN policy_settings AS k ON k.kind = require_policy_settings.kind AND k.setting = g.key
    WHERE CASE
        WHEN k.type = 'word' THEN jsonb_typeof(g.value) <> 'string' OR g.value #>> '{}' <> ALL (k.words)
        WHEN jsonb_typeof(g.value) <> 'number' THEN true
        WHEN k.type = 'count' AND g.value::text !~ '^-?[0-9]+$' THEN true
        ELSE (g.value::numeric BETWEEN k.lowest::numeric AND k.highest::numeric) IS NOT TRUE
    END
    ORDER BY g.key
    LIMIT 1;
    IF FOUND AND wrong.setting IS NULL THEN
        PERFORM refuse('PS006', format('the policy %s has no setting "%s"', kind, left(wrong.key, 200)),
                       'policy_of() lists what can be set.');
    ELSIF FOUND THEN
        PERFORM refuse('PS006', format('%s cannot be %s', wrong.key, left(wrong.value::text, 200)),
                       COALESCE('Use one of ' || array_to_string(wrong.words, ', ') || '.',
                                format('Use %s to %s.', wrong.lowest, wrong.highest)));
    END IF;
    IF (settings ? 'heartbeat_seconds') <> (settings ? 'lease_seconds')
       OR (settings ->> 'lease_seconds')::float8 < 3 * (settings ->> 'heartbeat_seconds')::float8 THEN
        PERFORM refuse('PS006', format('heartbeat_seconds %s does not fit lease_seconds %s',
                                       COALESCE(settings ->> 'heartbeat_seconds', 'unset'),
                                       COALESCE(settings ->> 'lease_seconds', 'unset')),
                       'Give both; a lease lasts at least three heartbeats.');
    ELSIF (settings ? 'first_backoff_seconds') <> (settings ? 'longest_backoff_seconds')
          OR (settings ->> 'longest_backoff_seconds')::float8 < (settings ->> 'first_backoff_seconds')::float8 THEN
        PERFORM refuse('PS006', format('first_backoff_seconds %s does not fit longest_backoff_seconds %s',
                                       COALESCE(settings ->> 'first_backoff_seconds', 'unset'),
                                       COALESCE(settings ->> 'longest_backoff_seconds', 'unset')),
                       'Give both; the longest is not below the first.');
    END IF;
END
$$;

-- name: policy_sources
-- The sources of a scope's policies, the nearest first: the scope itself, the topics that it reads, their namespaces,
-- the policy for everything. Of several topics the one that the subscription has read for longest comes first.
CREATE OR REPLACE FUNCTION policy_sources(scope text, scope_id bigint)
RETURNS TABLE (scope text, scope_id bigint, place bigint)
LANGUAGE sql STABLE AS $$
    WITH RECURSIVE topics_read AS (
        SELECT r.topic_id AS id, r.created_at AS since
        FROM subscription_topics AS r
        WHERE policy_sources.scope = 'subscription' AND r.subscription_id = policy_sources.scope_id
        UNION ALL
        SELECT policy_sources.scope_id, NULL WHERE policy_sources.scope = 'topic'
    ), above AS (
        SELECT t.namespace_id AS id, 1 AS distance, r.since
        FROM topics_read AS r JOIN topics AS t ON t.id = r.id
        UNION ALL
        SELECT policy_sources.scope_id, 1, NULL WHERE policy_sources.scope = 'namespace'
        UNION ALL
        SELECT n.parent_id, a.distance + 1, a.since
        FROM above AS a JOIN namespaces AS n ON n.id = a.id
        WHERE n.parent_id > 0
    )
    SELECT s.scope, s.scope_id, row_number() OVER (ORDER BY s.nearness, s.distance, s.since, s.scope_id)
    FROM (
        SELECT policy_sources.scope, policy_sources.scope_id, 1, 0, NULL::timestamptz
        WHERE policy_sources.scope = 'subscription'
        UNION ALL SELECT 'topic', r.id, 2, 0, r.since FROM topics_read AS r
        UNION ALL SELECT 'namespace', a.id, 3, a.distance, a.since FROM above AS a
        UNION ALL SELECT 'global', 0, 4, 0, NULL
    ) AS s (scope, scope_id, nearness, distance, since)
$$;

-- name: policies_in_force
-- Every setting as it is in force for a scope, and where it comes from; 'preset' when it was never set.
CREATE OR REPLACE FUNCTION policies_in_force(scope text, scope_id bigint)
RETURNS TABLE (kind text, setting text, value jsonb, source text, source_id bigint, version integer, origin text)
LANGUAGE sql STABLE AS $$
    SELECT DISTINCT ON (k.kind, k.setting)
           k.kind, k.setting, COALESCE(p.settings -> k.setting, k.preset), COALESCE(p.scope, 'preset'), p.scope_id,
           COALESCE(p.version, 0), p.origin
    FROM policy_settings AS k
    LEFT JOIN (
        policy_sources(policies_in_force.scope, policies_in_force.scope_id) AS s
        JOIN policies AS p ON p.scope = s.scope AND p.scope_id = s.scope_id
    ) ON p.kind = k.kind AND p.settings ? k.setting
    ORDER BY k.kind, k.setting, s.place
$$;

-- name: refresh_policy
-- Writes what is in force for a subscription into its row. It takes the lock first and then reads in a separate
-- query, so that it sees what an earlier holder of the lock has written. policy_version grows only when something has
-- changed.
CREATE OR REPLACE FUNCTION refresh_policy(subscription_id bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM subscriptions AS s WHERE s.id = refresh_policy.subscription_id FOR NO KEY UPDATE;
    UPDATE subscriptions AS s
    SET policy_version = s.policy_version + 1, heartbeat_seconds = n.heartbeat_seconds, lease_seconds = n.lease_seconds,
        release_seconds = n.release_seconds, target_qps = n.target_qps, max_consumers = n.max_consumers,
        refresh_seconds = n.refresh_seconds, max_attempts = n.max_attempts,
        first_backoff_seconds = n.first_backoff_seconds, longest_backoff_seconds = n.longest_backoff_seconds,
        jitter = n.jitter, exhausted = n.exhausted, max_lag_seconds = n.max_lag_seconds,
        dead_letter_seconds = n.dead_letter_seconds
    FROM subscriptions AS o
    CROSS JOIN LATERAL (
        SELECT (jsonb_populate_record(o, jsonb_object_agg(f.setting, f.value))).*
        FROM policies_in_force('subscription', o.id) AS f
    ) AS n
    WHERE s.id = refresh_policy.subscription_id AND o.id = s.id AND n IS DISTINCT FROM o;
END
$$;

-- name: refresh_policies
-- Does what refresh_policy does for all subscriptions that inherit from a scope, in the order in which every
-- call locks subscriptions.
CREATE OR REPLACE FUNCTION refresh_policies(scope text, scope_id bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    reader bigint;
BEGIN
    FOR reader IN
        SELECT s.id
        FROM subscriptions AS s
        WHERE scope = 'global' OR (scope = 'subscription' AND s.id = refresh_policies.scope_id) OR s.id IN (
            SELECT r.subscription_id
            FROM subscription_topics AS r JOIN topics AS t ON t.id = r.topic_id
            WHERE (scope = 'topic' AND t.id = refresh_policies.scope_id)
               OR (scope = 'namespace' AND t.namespace_id = ANY (namespaces_below(refresh_policies.scope_id))))
        ORDER BY s.id
    LOOP
        PERFORM refresh_policy(reader);
    END LOOP;
END
$$;

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

-- name: is_taken_over
-- Whether a file that says its name now owns a policy that a hand or another file has set.
CREATE OR REPLACE FUNCTION is_taken_over(present_origin text, new_origin text) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT starts_with(is_taken_over.new_origin, 'file ') AND is_taken_over.new_origin <> is_taken_over.present_origin
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

-- name: store_policy
-- Writes the next version of a policy, and updates what is in force where it is inherited. Returns the version. If
-- the policy is already the same and no file takes it over, it writes nothing. The caller has locked the scope.
CREATE OR REPLACE FUNCTION store_policy(
    scope text, scope_id bigint, kind text, settings jsonb, origin text
) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    present policies%ROWTYPE;
BEGIN
    SELECT p.* INTO present FROM policies AS p
    WHERE p.scope = store_policy.scope AND p.scope_id = store_policy.scope_id AND p.kind = store_policy.kind;
    IF COALESCE(present.settings, '{}') = store_policy.settings
       AND (is_taken_over(present.origin, store_policy.origin) AND settings <> '{}') IS NOT TRUE THEN
        RETURN COALESCE(present.version, 0);
    END IF;
    INSERT INTO policies AS p (scope, scope_id, kind, settings, version, origin)
    VALUES (store_policy.scope, store_policy.scope_id, store_policy.kind, store_policy.settings, 1, store_policy.origin)
    ON CONFLICT ON CONSTRAINT policies_pkey DO UPDATE
    SET settings = EXCLUDED.settings, version = p.version + 1, origin = EXCLUDED.origin, updated_at = clock_timestamp(),
        updated_by = session_user
    RETURNING p.* INTO present;
    INSERT INTO policy_versions (scope, scope_id, kind, settings, version, origin, updated_at, updated_by)
    VALUES (present.scope, present.scope_id, present.kind, present.settings, present.version, present.origin,
            present.updated_at, present.updated_by);
    PERFORM refresh_policies(present.scope, present.scope_id);
    RETURN present.version;
END
$$;

-- name: forget_policies
-- Removes the policies of deleted scopes, with their history.
CREATE OR REPLACE FUNCTION forget_policies(scope text, scope_ids bigint[]) RETURNS void
LANGUAGE sql AS $$
    DELETE FROM policies AS p WHERE p.scope = forget_policies.scope AND p.scope_id = ANY (scope_ids);
    DELETE FROM policy_versions AS v WHERE v.scope = forget_policies.scope AND v.scope_id = ANY (scope_ids)
$$;

-- name: set_policy
-- Sets a policy (heartbeat, keep, lease, metrics or retry) for everything ('global', ''), a namespace, a topic or a
-- subscription, as a whole. A setting that it does not name is inherited: a subscription's policy comes before its
-- topic's, then the namespace's, then that for everything. origin says who sets it: 'hand', or 'file ' and the name of
-- the policy file, which owns it from then on. Returns its version, which grows with each change. Raises PS001, PS002,
-- PS006, PS013, PS018.
CREATE OR REPLACE FUNCTION set_policy(kind text, scope text, name text, settings jsonb, origin text DEFAULT 'hand')
RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM commit_durably();
    PERFORM require_policy_kind(kind);
    PERFORM require_policy_settings(kind, settings);
    PERFORM require_origin(origin);
    PERFORM require_read_committed('set_policy()');
    RETURN store_policy(scope, lock_policy_scope(scope, name), kind, settings, origin);
END
$$;

-- name: clear_policy
-- Removes all that a policy sets, so that everything is inherited again. Returns the policy's version. Raises PS001,
-- PS002, PS006, PS013, PS018.
CREATE OR REPLACE FUNCTION clear_policy(kind text, scope text, name text, origin text DEFAULT 'hand') RETURNS integer
LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT set_policy(clear_policy.kind, clear_policy.scope, clear_policy.name, '{}', clear_policy.origin)
$$;

-- name: policy_of
-- What is in force for everything ('global', ''), a namespace, a topic or a subscription: each setting with its
-- source ('preset' when it was never set) and the version of that policy. Raises PS001, PS002, PS006, PS013.
CREATE OR REPLACE FUNCTION policy_of(scope text, name text)
RETURNS TABLE (kind text, setting text, value text, source text, source_name text, version integer, origin text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    own_id bigint := find_policy_scope(scope, name);
BEGIN
    RETURN QUERY
    SELECT f.kind, f.setting, f.value #>> '{}', f.source, policy_scope_name(f.source, f.source_id), f.version, f.origin
    FROM policies_in_force(policy_of.scope, own_id) AS f
    ORDER BY f.kind, f.setting;
END
$$;

-- name: policy_history
-- Every version of a scope's policy, the oldest first. Raises PS001, PS002, PS006, PS013.
CREATE OR REPLACE FUNCTION policy_history(kind text, scope text, name text)
RETURNS TABLE (version integer, settings jsonb, origin text, updated_at timestamptz, updated_by text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    own_id bigint := find_policy_scope(scope, name);
BEGIN
    PERFORM require_policy_kind(kind);
    RETURN QUERY
    SELECT v.version, v.settings, v.origin, v.updated_at, v.updated_by
    FROM policy_versions AS v
    WHERE v.scope = policy_history.scope AND v.scope_id = own_id AND v.kind = policy_history.kind
    ORDER BY v.version;
END
$$;

-- name: list_policies
-- Every policy that sets something, for scopes that the login may see.
CREATE OR REPLACE FUNCTION list_policies()
RETURNS TABLE (
    kind text, scope text, name text, settings jsonb, version integer, origin text, updated_at timestamptz,
    updated_by text
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT p.kind, p.scope, policy_scope_name(p.scope, p.scope_id), p.settings, p.version, p.origin, p.updated_at,
           p.updated_by
    FROM policies AS p
    WHERE p.settings <> '{}' AND CASE p.scope
        WHEN 'namespace' THEN has_right(p.scope_id, 'any')
        WHEN 'topic'
            THEN (SELECT NOT t.restricted OR has_right(t.namespace_id, 'any') FROM topics AS t WHERE t.id = p.scope_id)
        WHEN 'subscription' THEN NOT reads_hidden(p.scope_id)
        ELSE true
    END
    ORDER BY p.scope, 3, p.kind
$$;

-- name: subscription_policy
-- The settings in force for a subscription, read from its row: cheap enough for every check-in. policy_version grows
-- with each change of any policy that applies; a batch runs under one version. Raises PS013.
CREATE OR REPLACE FUNCTION subscription_policy(subscription text)
RETURNS TABLE (
    policy_version integer, heartbeat_seconds double precision, lease_seconds double precision,
    release_seconds double precision, target_qps double precision, max_consumers integer,
    refresh_seconds double precision, max_attempts integer, first_backoff_seconds double precision,
    longest_backoff_seconds double precision, jitter double precision, exhausted text
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT s.policy_version, s.heartbeat_seconds, s.lease_seconds, s.release_seconds, s.target_qps, s.max_consumers,
           s.refresh_seconds, s.max_attempts, s.first_backoff_seconds, s.longest_backoff_seconds, s.jitter, s.exhausted
    FROM require_subscription(subscription_policy.subscription) AS s
$$;

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
            THEN (SELECT NOT t.restricted AND (SELECT as_login()) OR has_right(t.namespace_id, 'any')
                  FROM topics AS t WHERE t.id = p.scope_id)
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

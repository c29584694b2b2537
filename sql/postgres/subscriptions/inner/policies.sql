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

-- name: is_taken_over
-- Whether a file that says its name now owns a policy that a hand or another file has set.
CREATE OR REPLACE FUNCTION is_taken_over(present_origin text, new_origin text) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT starts_with(is_taken_over.new_origin, 'file ') AND is_taken_over.new_origin <> is_taken_over.present_origin
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
    INSERT INTO policies AS p (scope, scope_id, kind, settings, version, origin, updated_by)
    VALUES (store_policy.scope, store_policy.scope_id, store_policy.kind, store_policy.settings, 1, store_policy.origin,
            principal())
    ON CONFLICT ON CONSTRAINT policies_pkey DO UPDATE
    SET settings = EXCLUDED.settings, version = p.version + 1, origin = EXCLUDED.origin, updated_at = clock_timestamp(),
        updated_by = EXCLUDED.updated_by
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

-- name: set_policy
-- Sets a policy (heartbeat, keep, lease, metrics or retry) for everything ('global', ''), a namespace, a topic or a
-- subscription, as a whole. A setting that it does not name is inherited: a subscription's policy comes before its
-- topic's, then the namespace's, then that for everything. origin says who sets it: 'hand', or 'file ' and the name of
-- the policy file, which owns it from then on. Returns its version, which grows with each change. Raises PS001, PS002,
-- PS006, PS013, PS018.
CREATE PROCEDURE set_policy(kind LONGTEXT, scope LONGTEXT, name LONGTEXT, settings LONGTEXT, origin LONGTEXT)
BEGIN
    DECLARE of_id BIGINT;
    DECLARE new_version INT;
    {{on error: CALL undo_call()}}
    CALL begin_call('set_policy()');
    CALL require_policy_kind(kind);
    CALL require_policy_settings(kind, settings);
    CALL require_origin(origin);
    CALL require_read_committed('set_policy()');
    CALL lock_policy_scope(scope, name, of_id);
    CALL store_policy(scope, of_id, kind, settings, origin, new_version);
    SELECT new_version AS version;
    CALL end_call();
END;

-- name: clear_policy
-- Removes all that a policy sets, so that everything is inherited again. Returns the policy's version. Raises PS001,
-- PS002, PS006, PS013, PS018.
CREATE PROCEDURE clear_policy(kind LONGTEXT, scope LONGTEXT, name LONGTEXT, origin LONGTEXT)
BEGIN
    CALL set_policy(kind, scope, name, '{}', origin);
END;

-- name: policy_of
-- What is in force for everything ('global', ''), a namespace, a topic or a subscription: each setting with its
-- source ('preset' when it was never set) and the version of that policy. Raises PS001, PS002, PS006, PS013.
CREATE PROCEDURE policy_of(scope LONGTEXT, name LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE of_id BIGINT;
    DECLARE found LONGTEXT;
    CALL refuse_serializable('policy_of()');
    CALL find_policy_scope(scope, name, of_id);
    CALL policies_in_force(scope, of_id, found);
    SELECT f.kind, f.setting, f.value, f.source, policy_scope_name(f.source, f.source_id) AS source_name, f.version,
           f.origin
    FROM JSON_TABLE(found, '$[*]' COLUMNS (
        kind VARCHAR(20) PATH '$.kind', setting VARCHAR(40) PATH '$.setting', value VARCHAR(40) PATH '$.value',
        source VARCHAR(20) PATH '$.source', source_id BIGINT PATH '$.source_id', version INT PATH '$.version',
        origin VARCHAR(600) PATH '$.origin'
    )) AS f
    ORDER BY f.kind, f.setting;
END;

-- name: policy_history
-- Every version of a scope's policy, the oldest first. Raises PS001, PS002, PS006, PS013.
CREATE PROCEDURE policy_history(kind LONGTEXT, scope LONGTEXT, name LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE of_id BIGINT;
    CALL refuse_serializable('policy_history()');
    CALL find_policy_scope(scope, name, of_id);
    CALL require_policy_kind(kind);
    SELECT v.version, v.settings, v.origin, v.updated_at, v.updated_by
    FROM policy_versions AS v
    WHERE v.scope = scope AND v.scope_id = of_id AND v.kind = kind
    ORDER BY v.version;
END;

-- name: list_policies
-- Every policy that sets something, for scopes that the login may see.
CREATE PROCEDURE list_policies()
READS SQL DATA
BEGIN
    CALL refuse_serializable('list_policies()');
    SELECT p.kind, p.scope, policy_scope_name(p.scope, p.scope_id) AS name, p.settings, p.version, p.origin,
           p.updated_at, p.updated_by
    FROM policies AS p LEFT JOIN topics AS t ON p.scope = 'topic' AND t.id = p.scope_id
    WHERE JSON_LENGTH(p.settings) > 0 AND CASE p.scope
        WHEN 'namespace' THEN has_right(p.scope_id, 'any')
        WHEN 'topic' THEN NOT t.restricted AND @penstock_acting IS NULL OR has_right(t.namespace_id, 'any')
        WHEN 'subscription' THEN NOT reads_hidden(p.scope_id)
        ELSE TRUE
    END
    ORDER BY p.scope, CAST(policy_scope_name(p.scope, p.scope_id) AS BINARY), p.kind;
END;

-- name: subscription_policy
-- The settings in force for a subscription, read from its row: cheap enough for every check-in. policy_version grows
-- with each change of any policy that applies; a batch runs under one version. Raises PS013.
CREATE PROCEDURE subscription_policy(subscription LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE owner_id BIGINT;
    CALL refuse_serializable('subscription_policy()');
    CALL require_subscription(subscription, owner_id);
    SELECT s.policy_version, s.heartbeat_seconds, s.lease_seconds, s.release_seconds, s.target_qps, s.max_consumers,
           s.refresh_seconds, s.max_attempts, s.first_backoff_seconds, s.longest_backoff_seconds, s.jitter, s.exhausted
    FROM subscriptions AS s
    WHERE s.id = owner_id;
END;

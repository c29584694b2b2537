-- name: act_as
-- Names the account for which this transaction acts, by its id, and the keys that callers have shown. From then on to
-- the end of the transaction all rights are those of the account. It must be a gateway's login, every key must be good
-- now, and there is one account a transaction. Raises PS050 (no such account, or a key is not good), PS051.
CREATE OR REPLACE FUNCTION act_as(account text, key_ids text[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    -- One statement, because a gateway pays for it in each transaction. What was wrong is looked for after it.
    PERFORM set_config(
        'penstock.acting', a.id || CASE WHEN EXISTS (
            SELECT FROM account_quotas AS q
            WHERE q.account_id = a.id AND COALESCE(q.max_events, q.max_bytes, q.max_waiting) IS NOT NULL
        ) THEN '+' ELSE '-' END || acting_mark(), true)
    FROM accounts AS a
    WHERE a.id = act_as.account AND own_gateway_problem() IS NULL AND NOT acts_for_another(a.id)
      AND cardinality(key_ids) > 0
      AND (SELECT count(*) FROM good_keys(a.id, key_ids)) = cardinality(key_ids);
    IF NOT FOUND THEN
        PERFORM refuse_act_as(account, key_ids);
    END IF;
END
$$;

-- name: check_gateway
-- Refuses a login that may not be a gateway's. A gateway calls it when it starts. Raises PS051.
CREATE OR REPLACE FUNCTION check_gateway() RETURNS void
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    problem text := own_gateway_problem();
BEGIN
    IF problem IS NOT NULL THEN
        PERFORM refuse('PS051', format('login "%s" cannot be a gateway''s: it %s', session_user, problem),
                       'Make a login for the gateway alone: penstock rights grant LOGIN gateway.');
    END IF;
END
$$;

-- name: record_gateway
-- Records a login as a gateway's: from then on it does nothing without naming an account. It must be neither a
-- superuser nor in the role of the schema's owner nor in another role of Penstock. Only a login that may give rights
-- everywhere records it. Raises PS006.
CREATE OR REPLACE FUNCTION record_gateway(login text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    problem text := gateway_problem(login);
BEGIN
    PERFORM commit_durably();
    IF NOT passes_walls('grant') THEN
        problem := 'is to be recorded by a login that may give rights everywhere';
    END IF;
    IF problem IS NOT NULL THEN
        PERFORM refuse('PS006', format('login "%s" cannot be a gateway''s: it %s', left(login, 200), problem),
                       'Make a login for the gateway alone.');
    END IF;
    INSERT INTO installed_gateways (login, installed_by) VALUES (record_gateway.login, principal())
    ON CONFLICT DO NOTHING;
END
$$;

-- name: forget_gateway
-- The reverse. Returns whether the login was recorded. Raises PS006.
CREATE OR REPLACE FUNCTION forget_gateway(login text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM commit_durably();
    IF NOT passes_walls('grant') THEN
        PERFORM refuse('PS006', 'only a login that may give rights everywhere changes who is a gateway',
                       'Ask a member of the operator or installer role.');
    END IF;
    DELETE FROM installed_gateways AS g WHERE g.login = forget_gateway.login;
    RETURN FOUND;
END
$$;

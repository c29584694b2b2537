-- name: set_account_quota
-- How much an account may publish: events and bytes of payload a second, on average over ten seconds, and how many
-- events may wait in its namespace for its subscriptions; and how many requests, polls and streams it may have at a
-- time at one process of a gateway, which counts them. NULL: no limit. Raises PS006, PS050.
CREATE OR REPLACE FUNCTION set_account_quota(
    account text, max_events bigint, max_bytes bigint, max_waiting bigint, max_requests integer
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    own_id text := require_account(account);
BEGIN
    PERFORM commit_durably();
    IF LEAST(max_events, max_bytes, max_waiting, max_requests) < 1
       OR GREATEST(max_events, max_bytes) > 10::bigint ^ 15
    THEN
        PERFORM refuse('PS006', format('a quota of %s events and %s bytes a second, of %s events that wait and %s '
                                       'requests', max_events, max_bytes, max_waiting, max_requests),
                       'Use 1 or more, or NULL for no limit.');
    END IF;
    INSERT INTO account_quotas (account_id, max_events, max_bytes, max_waiting, max_requests, set_by)
    VALUES (own_id, set_account_quota.max_events, set_account_quota.max_bytes, set_account_quota.max_waiting,
            set_account_quota.max_requests, principal())
    ON CONFLICT (account_id) DO UPDATE
    SET max_events = EXCLUDED.max_events, max_bytes = EXCLUDED.max_bytes, max_waiting = EXCLUDED.max_waiting,
        max_requests = EXCLUDED.max_requests, set_at = EXCLUDED.set_at, set_by = EXCLUDED.set_by;
    DELETE FROM account_quotas AS q
    WHERE q.account_id = own_id 
      AND COALESCE(q.max_events, q.max_bytes, q.max_waiting, q.max_requests) IS NULL;
    PERFORM record_audit(own_id, account, 'quota', format(
        '%s events and %s bytes a second, %s events that wait, %s requests', COALESCE(max_events::text, 'any'),
        COALESCE(max_bytes::text, 'any'), COALESCE(max_waiting::text, 'any'), COALESCE(max_requests::text, 'any')));
END
$$;

-- name: account_quota
-- The quota of an account, and what it has published in the last ten seconds; waiting is how many events waited when
-- that was measured last, if they were too many. No row without a quota. Raises PS050.
CREATE OR REPLACE FUNCTION account_quota(account text)
RETURNS TABLE (
    max_events bigint, max_bytes bigint, max_waiting bigint, max_requests integer, set_at timestamptz, set_by text,
    events bigint, bytes bigint, waiting bigint
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    own_id text := require_account(account);
BEGIN
    RETURN QUERY
    SELECT q.max_events, q.max_bytes, q.max_waiting, q.max_requests, q.set_at, q.set_by, u.events, u.bytes,
           (SELECT w.events FROM account_waiting AS w WHERE w.account_id = own_id)
    FROM account_quotas AS q CROSS JOIN LATERAL account_use(own_id) AS u
    WHERE q.account_id = own_id;
END
$$;

-- name: measure_accounts
-- Measures how many events wait in the namespaces of accounts that have a quota for that, records those at their limit,
-- and forgets what was published more than a minute ago. Returns how many are at their limit. The sequencer's worker
-- calls it once a second; where no account has a quota it does nothing.
CREATE OR REPLACE FUNCTION measure_accounts() RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    pressed integer;
BEGIN
    IF NOT EXISTS (SELECT FROM account_quotas) THEN
        RETURN 0;
    END IF;
    PERFORM FROM pressure_measured FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;  -- somebody measures
    END IF;
    DELETE FROM account_published AS p
    WHERE p.second < extract(epoch FROM clock_timestamp())::bigint - 60;
    WITH present AS MATERIALIZED (
        SELECT q.account_id, n.events
        FROM account_quotas AS q CROSS JOIN LATERAL (SELECT events_waiting_for(q.account_id) AS events) AS n
        WHERE q.max_waiting IS NOT NULL AND n.events >= q.max_waiting
    ), relieved AS (
        DELETE FROM account_waiting AS w WHERE NOT EXISTS (SELECT FROM present AS n WHERE n.account_id = w.account_id)
    ), kept AS (
        INSERT INTO account_waiting (account_id, events, measured_at)
        SELECT n.account_id, n.events, clock_timestamp() FROM present AS n
        ON CONFLICT (account_id) DO UPDATE SET events = EXCLUDED.events, measured_at = EXCLUDED.measured_at
    )
    SELECT count(*) INTO pressed FROM present;
    RETURN pressed;
END
$$;

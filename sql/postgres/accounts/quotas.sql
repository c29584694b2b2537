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
-- Counts how many events wait in the namespaces of accounts that have a quota for that, notes those at their limit, and
-- forgets what was published more than a minute ago. One call looks at max_readers subscriptions at most, each with one
-- topic; more says whether the round goes on, and the next call, of whatever session, does. Returns how many accounts
-- are at their limit. Where no account has a quota it does nothing.
CREATE OR REPLACE FUNCTION measure_accounts(max_readers integer, OUT pressed integer, OUT more boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    place accounts_counted%ROWTYPE;
    quota record;
    readers_left integer := GREATEST(LEAST(max_readers, 10000), 1);
    counted record;
BEGIN
    pressed := 0;
    more := false;
    IF NOT EXISTS (SELECT FROM account_quotas) THEN
        RETURN;
    END IF;
    SELECT c.* INTO place FROM accounts_counted AS c FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;  -- somebody counts
    END IF;
    DELETE FROM account_published AS p
    WHERE p.second < extract(epoch FROM clock_timestamp())::bigint - 60;
    FOR quota IN
        SELECT q.account_id, q.max_waiting
        FROM account_quotas AS q
        WHERE q.max_waiting IS NOT NULL AND q.account_id >= place.account_id
        ORDER BY q.account_id
    LOOP
        IF quota.account_id <> place.account_id THEN
            place := (true, quota.account_id, 0, 0, 0);
        END IF;
        SELECT c.* INTO counted FROM count_for_account(place, quota.max_waiting, readers_left) AS c;
        place := counted.place;
        readers_left := counted.readers_left;
        more := NOT counted.all_counted;
        EXIT WHEN more;
        PERFORM note_waiting(quota.account_id, place.events, quota.max_waiting);
        -- An account without a subscription is looked at too.
        readers_left := readers_left - 1;
    END LOOP;
    IF NOT more THEN
        place := (true, '', 0, 0, 0);
    END IF;
    UPDATE accounts_counted AS c
    SET account_id = place.account_id, topic_id = place.topic_id, subscription_id = place.subscription_id,
        events = place.events;
    DELETE FROM account_waiting AS w
    WHERE NOT EXISTS (
        SELECT FROM account_quotas AS q WHERE q.account_id = w.account_id AND q.max_waiting IS NOT NULL);
    SELECT count(*) INTO pressed FROM account_waiting AS w;
END
$$;

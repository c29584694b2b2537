-- name: acts_within_quota
-- Whether this transaction acts for an account that had a quota when act_as was called: then what it publishes is
-- counted. Only this is asked in a publish, so that nobody else pays for quotas.
CREATE OR REPLACE FUNCTION acts_within_quota() RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT COALESCE(substr(current_setting('penstock.acting', true), 33, 1) = '+', false)
$$;

-- name: account_use
-- What an account with a quota has published in the last ten seconds, and in which second that begins. What other
-- transactions have not committed yet does not count.
CREATE OR REPLACE FUNCTION account_use(account text, OUT events bigint, OUT bytes bigint, OUT first bigint)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    SELECT COALESCE(sum(p.events), 0), COALESCE(sum(p.bytes), 0), min(p.second) INTO events, bytes, first
    FROM account_published AS p
    WHERE p.account_id = account AND p.second > floor(extract(epoch FROM clock_timestamp()))::bigint - 10;
END
$$;

-- name: events_waiting_for
-- How many events wait in an account's namespace and below it: of each subscription that reads a topic there, those
-- that it has not finished.
CREATE OR REPLACE FUNCTION events_waiting_for(account text) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (
        SELECT COALESCE(sum(CASE WHEN s.mode = 'queue' THEN (
                   SELECT c.ready + c.in_flight + c.delayed FROM queue_counts(s.id) AS c
               ) ELSE (
                   SELECT sum(high_watermark(l.partition_id) - current_position(s.id, l.partition_id))
                   FROM leases AS l WHERE l.subscription_id = s.id
               ) END), 0)
        FROM subscriptions AS s
        WHERE s.id IN (
            SELECT r.subscription_id
            FROM accounts AS a
            CROSS JOIN LATERAL unnest(namespaces_below(a.namespace_id)) AS b (id)
            JOIN topics AS t ON t.namespace_id = b.id
            JOIN subscription_topics AS r ON r.topic_id = t.id
            WHERE a.id = account));
END
$$;

-- name: charge_account
-- Counts what this transaction has published for the account that it acts for, and refuses it (PS052) if the account
-- has used its quota. Called after the events were written, so it knows them to be good, and the account to be the
-- true one. What was used before counts, not what comes now: one call may go over the quota, and the next ones wait.
CREATE OR REPLACE FUNCTION charge_account(events bigint, bytes bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    account text := left(current_setting('penstock.acting', true), 32);
    present bigint := floor(extract(epoch FROM clock_timestamp()));
    quota account_quotas%ROWTYPE;
    used record;
BEGIN
    SELECT q.* INTO quota FROM account_quotas AS q WHERE q.account_id = account;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT u.* INTO used FROM account_use(account) AS u;
    IF used.events >= 10 * quota.max_events OR used.bytes >= 10 * quota.max_bytes THEN
        PERFORM refuse('PS052', format('the account has published %s events of %s bytes in ten seconds, which is its '
                                       'quota: again in %s seconds', used.events, used.bytes,
                                       GREATEST(used.first + 10 - present, 1)),
                       'Nothing was published.');
    ELSIF quota.max_waiting IS NOT NULL AND EXISTS (
        SELECT FROM account_waiting AS w
        WHERE w.account_id = account AND w.measured_at > clock_timestamp() - interval '5 seconds')
    THEN
        PERFORM refuse('PS052', 'so many events of the account wait as its quota allows: again in 5 seconds',
                       'Nothing was published.');
    END IF;
    INSERT INTO account_published AS p (account_id, second, session, events, bytes)
    VALUES (account, present, pg_backend_pid(), charge_account.events, COALESCE(charge_account.bytes, 0))
    ON CONFLICT ON CONSTRAINT account_published_pkey DO UPDATE
    SET events = p.events + EXCLUDED.events, bytes = p.bytes + EXCLUDED.bytes;
END
$$;

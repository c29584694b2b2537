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

-- name: waiting_for
-- How many events of a topic a subscription has not finished. Of what a queue keeps row by row it looks at no more than
-- so many rows in each place.
CREATE OR REPLACE FUNCTION waiting_for(owner_id bigint, source_id bigint, reads_as text, most bigint) RETURNS bigint
LANGUAGE plpgsql STABLE SET enable_seqscan = off AS $$
DECLARE
    first_id bigint := source_id << 16;
    last_id bigint := first_id + 65535;
BEGIN
    IF reads_as <> 'queue' THEN
        RETURN (
            SELECT COALESCE(sum(high_watermark(l.partition_id) - current_position(owner_id, l.partition_id)), 0)
            FROM leases AS l
            WHERE l.subscription_id = owner_id AND l.partition_id BETWEEN first_id AND last_id);
    END IF;
    RETURN (
        SELECT COALESCE(sum(
            high_watermark(l.partition_id) - GREATEST(stands.reached, p.low_sequence - 1) + behind.events
            + waiting.events), 0)
        FROM leases AS l
        JOIN partitions AS p ON p.id = l.partition_id
        CROSS JOIN LATERAL (
            SELECT COALESCE(o.reached, o.position) AS reached
            FROM positions AS o
            WHERE o.subscription_id = owner_id AND o.partition_id = l.partition_id
            ORDER BY o.id DESC
            LIMIT 1
        ) AS stands
        CROSS JOIN LATERAL (
            SELECT count(*) AS events FROM (
                SELECT FROM queue_keys AS k
                WHERE k.subscription_id = owner_id AND k.partition_id = l.partition_id AND k.state <> 'first'
                LIMIT most) AS found
        ) AS behind
        CROSS JOIN LATERAL (
            SELECT count(*) AS events FROM (
                SELECT FROM queue_waiting AS w
                WHERE w.subscription_id = owner_id AND w.partition_id = l.partition_id AND w.due_at IS NOT NULL
                LIMIT most) AS found
        ) AS waiting
        WHERE l.subscription_id = owner_id AND l.partition_id BETWEEN first_id AND last_id
    ) + (
        SELECT COALESCE(sum(found.events), 0)
        FROM (
            SELECT r.last_sequence - r.first_sequence + 1 - COALESCE(bit_count(r.finished), 0) AS events
            FROM queue_ranges AS r
            WHERE r.subscription_id = owner_id AND r.id >= (newest_turn(owner_id)).floor_id
              AND r.partition_id BETWEEN first_id AND last_id
            LIMIT most
        ) AS found);
END
$$;

-- name: count_for_account
-- Goes on counting how many events of an account's topics wait, from a place on: topic after topic, subscription after
-- subscription, at most so many of these pairs. It counts no further than most. Afterwards all_counted says whether the
-- account is done.
CREATE OR REPLACE FUNCTION count_for_account(
    INOUT place accounts_counted, most bigint, INOUT readers_left integer, OUT all_counted boolean
)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    reader record;
BEGIN
    FOR reader IN
        SELECT r.subscription_id, r.topic_id, s.mode
        FROM accounts AS a
        CROSS JOIN LATERAL unnest(namespaces_below(a.namespace_id)) AS b (id)
        JOIN topics AS t ON t.namespace_id = b.id
        JOIN subscription_topics AS r ON r.topic_id = t.id
        JOIN subscriptions AS s ON s.id = r.subscription_id
        WHERE a.id = place.account_id AND (r.topic_id, r.subscription_id) > (place.topic_id, place.subscription_id)
        ORDER BY r.topic_id, r.subscription_id
    LOOP
        EXIT WHEN place.events >= most;
        IF readers_left <= 0 THEN
            all_counted := false;
            RETURN;
        END IF;
        place.events := place.events + waiting_for(reader.subscription_id, reader.topic_id, reader.mode, most);
        place.topic_id := reader.topic_id;
        place.subscription_id := reader.subscription_id;
        readers_left := readers_left - 1;
    END LOOP;
    all_counted := true;
END
$$;

-- name: note_waiting
-- Notes that an account is at its limit, or that it is not any more.
CREATE OR REPLACE FUNCTION note_waiting(account text, events bigint, most bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF note_waiting.events >= most THEN
        INSERT INTO account_waiting (account_id, events, measured_at)
        VALUES (account, note_waiting.events, clock_timestamp())
        ON CONFLICT (account_id) DO UPDATE SET events = EXCLUDED.events, measured_at = EXCLUDED.measured_at;
    ELSE
        DELETE FROM account_waiting AS w WHERE w.account_id = account;
    END IF;
END
$$;

-- name: quota_problem
-- Why an account may not publish now by its quota; NULL when it may. What was used before counts, not what comes now:
-- one call may go over the quota, and the next ones wait.
CREATE OR REPLACE FUNCTION quota_problem(account text) RETURNS text
LANGUAGE plpgsql STABLE AS $$
DECLARE
    present bigint := floor(extract(epoch FROM clock_timestamp()));
    quota account_quotas%ROWTYPE;
    used record;
BEGIN
    SELECT q.* INTO quota FROM account_quotas AS q WHERE q.account_id = account;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    SELECT u.* INTO used FROM account_use(account) AS u;
    IF used.events >= 10 * quota.max_events OR used.bytes >= 10 * quota.max_bytes THEN
        RETURN format('the account has published %s events of %s bytes in ten seconds, which is its quota: again in %s '
                      'seconds', used.events, used.bytes, GREATEST(used.first + 10 - present, 1));
    ELSIF quota.max_waiting IS NOT NULL AND EXISTS (
        SELECT FROM account_waiting AS w
        WHERE w.account_id = account AND w.measured_at > clock_timestamp() - interval '5 seconds')
    THEN
        RETURN 'so many events of the account wait as its quota allows: again in 5 seconds';
    END IF;
    RETURN NULL;
END
$$;

-- name: count_published
-- Counts what this transaction has published for an account with a quota.
CREATE OR REPLACE FUNCTION count_published(account text, events bigint, bytes bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO account_published AS p (account_id, second, session, events, bytes)
    VALUES (account, floor(extract(epoch FROM clock_timestamp())), pg_backend_pid(), count_published.events,
            COALESCE(count_published.bytes, 0))
    ON CONFLICT ON CONSTRAINT account_published_pkey DO UPDATE
    SET events = p.events + EXCLUDED.events, bytes = p.bytes + EXCLUDED.bytes;
END
$$;

-- name: charge_account
-- Counts what this transaction has published for the account that it acts for, and refuses it (PS052) if the account
-- has used its quota. Called after the events were written, so it knows them to be good, and the account to be the
-- true one.
CREATE OR REPLACE FUNCTION charge_account(events bigint, bytes bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    account text := left(current_setting('penstock.acting', true), 32);
    problem text := quota_problem(account);
BEGIN
    IF problem IS NOT NULL THEN
        PERFORM refuse('PS052', problem, 'Nothing was published.');
    END IF;
    PERFORM count_published(account, events, bytes);
END
$$;

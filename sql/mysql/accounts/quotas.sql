-- name: set_account_quota
-- How much an account may publish: events and bytes of payload a second, on average over ten seconds, and how many
-- events may wait in its namespace for its subscriptions; and how many requests, polls and streams it may have at a
-- time at one process of a gateway, which counts them. NULL: no limit. Raises PS006, PS018, PS050.
CREATE PROCEDURE set_account_quota(
    account LONGTEXT, max_events BIGINT, max_bytes BIGINT, max_waiting BIGINT, max_requests INT)
BEGIN
    DECLARE own_id VARCHAR(32);
    {{on error: CALL undo_call()}}
    CALL begin_call('set_account_quota()');
    CALL require_account(account, own_id);
    IF COALESCE(max_events < 1, FALSE) OR COALESCE(max_bytes < 1, FALSE) OR COALESCE(max_waiting < 1, FALSE)
        OR COALESCE(max_requests < 1, FALSE)
        OR GREATEST(COALESCE(max_events, 0), COALESCE(max_bytes, 0)) > 1000000000000000 THEN
        CALL refuse('PS006', CONCAT('a quota of ', COALESCE(max_events, 'NULL'), ' events and ',
                                    COALESCE(max_bytes, 'NULL'), ' bytes a second, of ',
                                    COALESCE(max_waiting, 'NULL'), ' events that wait and ',
                                    COALESCE(max_requests, 'NULL'), ' requests'));
    END IF;
    IF COALESCE(max_events, max_bytes, max_waiting, max_requests) IS NULL THEN
        DELETE q FROM account_quotas AS q WHERE q.account_id = own_id;
    ELSE
        REPLACE INTO account_quotas (account_id, max_events, max_bytes, max_waiting, max_requests, set_by)
        VALUES (own_id, max_events, max_bytes, max_waiting, max_requests, principal());
    END IF;
    CALL record_audit(own_id, account, 'quota', CONCAT(
        COALESCE(max_events, 'any'), ' events and ', COALESCE(max_bytes, 'any'), ' bytes a second, ',
        COALESCE(max_waiting, 'any'), ' events that wait, ', COALESCE(max_requests, 'any'), ' requests'));
    CALL end_call();
END;

-- name: account_quota
-- The quota of an account, and what it has published in the last ten seconds; waiting is how many events waited when
-- that was measured last, if they were too many. No row without a quota. Raises PS050.
CREATE PROCEDURE account_quota(account LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE own_id VARCHAR(32);
    DECLARE used_events, used_bytes, first BIGINT;
    CALL refuse_serializable('account_quota()');
    CALL require_account(account, own_id);
    CALL account_use(own_id, used_events, used_bytes, first);
    SELECT q.max_events, q.max_bytes, q.max_waiting, q.max_requests, q.set_at, q.set_by, used_events AS events,
           used_bytes AS bytes, w.events AS waiting
    FROM account_quotas AS q LEFT JOIN account_waiting AS w ON w.account_id = q.account_id
    WHERE q.account_id = own_id;
END;

-- name: measure_accounts
-- Counts how many events wait in the namespaces of accounts that have a quota for that, notes those at their limit, and
-- forgets what was published more than a minute ago. One call looks at max_readers subscriptions at most, each with one
-- topic; more says whether the round goes on, and the next call, of whatever session, does. Returns how many accounts
-- are at their limit. Where no account has a quota it does nothing.
CREATE PROCEDURE measure_accounts(max_readers INT)
measure: BEGIN
    DECLARE given, is_mine, pressed INT DEFAULT 0;
    DECLARE asked, last_account VARCHAR(32);
    DECLARE allowed, after_topic, after_reader, found BIGINT;
    DECLARE readers_left INT DEFAULT GREATEST(LEAST(max_readers, 10000), 1);
    DECLARE all_counted BOOLEAN DEFAULT TRUE;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE limited CURSOR FOR
        SELECT q.account_id, q.max_waiting
        FROM account_quotas AS q
        WHERE q.max_waiting IS NOT NULL AND q.account_id >= last_account
        ORDER BY q.account_id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    {{on error: CALL undo_call()}}
    CALL begin_call('measure_accounts()');
    SELECT COUNT(q.account_id) INTO given FROM account_quotas AS q;
    IF given > 0 THEN
        -- A session that cannot lock the row leaves the work to the one that is counting.
        SELECT c.singleton, c.account_id, c.topic_id, c.subscription_id, c.events
        INTO is_mine, last_account, after_topic, after_reader, found
        FROM accounts_counted AS c FOR UPDATE SKIP LOCKED;
    END IF;
    IF NOT is_mine THEN
        SELECT 0 AS pressed, FALSE AS more;
        CALL end_call();
        LEAVE measure;
    END IF;
    DELETE p FROM account_published AS p WHERE p.second < UNIX_TIMESTAMP() - 60;
    OPEN limited;
    each_account: LOOP
        SET done = FALSE;
        FETCH limited INTO asked, allowed;
        IF done THEN
            LEAVE each_account;
        ELSEIF asked <> last_account THEN
            SET last_account = asked, after_topic = 0, after_reader = 0, found = 0;
        END IF;
        CALL count_for_account(asked, allowed, after_topic, after_reader, found, readers_left, all_counted);
        IF NOT all_counted THEN
            LEAVE each_account;
        END IF;
        CALL note_waiting(asked, found, allowed);
        -- An account without a subscription is looked at too.
        SET readers_left = readers_left - 1;
    END LOOP;
    CLOSE limited;
    IF all_counted THEN
        SET last_account = '', after_topic = 0, after_reader = 0, found = 0;
    END IF;
    UPDATE accounts_counted AS c
    SET c.account_id = last_account, c.topic_id = after_topic, c.subscription_id = after_reader, c.events = found
    WHERE c.singleton;
    DELETE w
    FROM account_waiting AS w
    LEFT JOIN account_quotas AS q ON q.account_id = w.account_id AND q.max_waiting IS NOT NULL
    WHERE q.account_id IS NULL;
    SELECT COUNT(w.account_id) INTO pressed FROM account_waiting AS w;
    SELECT pressed AS pressed, NOT all_counted AS more;
    CALL end_call();
END;

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
-- Measures how many events wait in the namespaces of accounts that have a quota for that, records those at their limit,
-- and forgets what was published more than a minute ago. Returns how many are at their limit. The sequencer's worker
-- calls it once a second; where no account has a quota it does nothing.
CREATE PROCEDURE measure_accounts()
measure: BEGIN
    DECLARE given, is_mine, pressed INT DEFAULT 0;
    DECLARE present DATETIME(6) DEFAULT UTC_TIMESTAMP(6);
    DECLARE asked VARCHAR(32);
    DECLARE allowed, waiting BIGINT;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE limited CURSOR FOR
        SELECT q.account_id, q.max_waiting FROM account_quotas AS q WHERE q.max_waiting IS NOT NULL;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    {{on error: CALL undo_call()}}
    CALL begin_call('measure_accounts()');
    SELECT COUNT(q.account_id) INTO given FROM account_quotas AS q;
    IF given > 0 THEN
        -- A session that cannot lock the row leaves the work to the one that is measuring.
        SELECT m.singleton INTO is_mine FROM pressure_measured AS m FOR UPDATE SKIP LOCKED;
    END IF;
    IF NOT is_mine THEN
        SELECT 0 AS pressed;
        CALL end_call();
        LEAVE measure;
    END IF;
    DELETE p FROM account_published AS p WHERE p.second < UNIX_TIMESTAMP() - 60;
    SET done = FALSE;
    OPEN limited;
    each_account: LOOP
        FETCH limited INTO asked, allowed;
        IF done THEN
            LEAVE each_account;
        END IF;
        CALL events_waiting_for(asked, waiting);
        IF waiting >= allowed THEN
            REPLACE INTO account_waiting (account_id, events, measured_at) VALUES (asked, waiting, present);
            SET pressed = pressed + 1;
        END IF;
        SET done = FALSE;
    END LOOP;
    CLOSE limited;
    DELETE w FROM account_waiting AS w WHERE w.measured_at <> present;
    SELECT pressed AS pressed;
    CALL end_call();
END;

-- name: acts_within_quota
-- Whether this transaction acts for an account that had a quota when act_as was called: then what it publishes is
-- counted. Only this is asked in a publish, so that nobody else pays for quotas.
CREATE FUNCTION acts_within_quota() RETURNS BOOLEAN
NO SQL
RETURN COALESCE(SUBSTR(@penstock_acting, 33, 1) = '+', FALSE);

-- name: account_use
-- What an account with a quota has published in the last ten seconds, and in which second that begins. What other
-- transactions have not committed yet does not count.
CREATE PROCEDURE account_use(account VARCHAR(32), OUT events BIGINT, OUT bytes BIGINT, OUT first BIGINT)
READS SQL DATA
BEGIN
    SELECT COALESCE(SUM(p.events), 0), COALESCE(SUM(p.bytes), 0), MIN(p.second) INTO events, bytes, first
    FROM account_published AS p
    WHERE p.account_id = account AND p.second > FLOOR(UNIX_TIMESTAMP(SYSDATE(6))) - 10;
END;

-- name: events_waiting_for
-- How many events wait in an account's namespace and below it: of each subscription that reads a topic there, those
-- that it has not finished.
CREATE PROCEDURE events_waiting_for(account VARCHAR(32), OUT waiting BIGINT)
READS SQL DATA
BEGIN
    DECLARE root LONGTEXT;
    DECLARE reader BIGINT;
    DECLARE reads_as VARCHAR(20);
    DECLARE ready, in_flight, waits, dead, behind BIGINT;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE readers CURSOR FOR
        SELECT DISTINCT s.id, s.mode
        FROM topics AS t
        JOIN subscription_topics AS r ON r.topic_id = t.id
        JOIN subscriptions AS s ON s.id = r.subscription_id
        WHERE LEFT(t.address, CHAR_LENGTH(root)) = root;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    SELECT CONCAT(MAX(n.path), '/') INTO root
    FROM accounts AS a JOIN namespaces AS n ON n.id = a.namespace_id
    WHERE a.id = account;
    SET waiting = 0;
    OPEN readers;
    each_reader: LOOP
        FETCH readers INTO reader, reads_as;
        IF done THEN
            LEAVE each_reader;
        END IF;
        IF reads_as = 'queue' THEN
            CALL queue_counts(reader, ready, in_flight, waits, dead);
            SET waiting = waiting + ready + in_flight + waits;
        ELSE
            SELECT COALESCE(SUM(high_watermark(l.partition_id) - current_position(reader, l.partition_id)), 0)
            INTO behind
            FROM leases AS l WHERE l.subscription_id = reader;
            SET waiting = waiting + behind;
        END IF;
        SET done = FALSE;
    END LOOP;
    CLOSE readers;
END;

-- name: charge_account
-- Counts what this transaction has published for the account that it acts for, and refuses it (PS052) if the account
-- has used its quota. Called after the events were written, so it knows them to be good. What was used before counts,
-- not what comes now: one call may go over the quota, and the next ones wait. The row is looked for without a lock and
-- then changed by its key: no lock on a gap makes another session wait.
CREATE PROCEDURE charge_account(events BIGINT, bytes BIGINT)
charge: BEGIN
    DECLARE account VARCHAR(32) DEFAULT acting_account();
    DECLARE present BIGINT DEFAULT FLOOR(UNIX_TIMESTAMP(SYSDATE(6)));
    DECLARE most_events, most_bytes, most_waiting, used_events, used_bytes, first BIGINT;
    DECLARE given, found INT;
    SELECT COUNT(q.account_id), MAX(q.max_events), MAX(q.max_bytes), MAX(q.max_waiting)
    INTO given, most_events, most_bytes, most_waiting
    FROM account_quotas AS q WHERE q.account_id = account;
    IF given = 0 THEN
        LEAVE charge;
    END IF;
    CALL account_use(account, used_events, used_bytes, first);
    IF COALESCE(used_events >= 10 * most_events, FALSE) OR COALESCE(used_bytes >= 10 * most_bytes, FALSE) THEN
        CALL refuse('PS052', CONCAT('the account has used its quota of ten seconds: again in ',
                                    GREATEST(first + 10 - present, 1), ' seconds'));
    END IF;
    IF most_waiting IS NOT NULL THEN
        SELECT COUNT(w.account_id) INTO found
        FROM account_waiting AS w
        WHERE w.account_id = account AND w.measured_at > UTC_TIMESTAMP(6) - INTERVAL 5 SECOND;
        IF found > 0 THEN
            CALL refuse('PS052', 'so many events of the account wait as its quota allows: again in 5 seconds');
        END IF;
    END IF;
    SELECT COUNT(p.session) INTO found
    FROM account_published AS p
    WHERE p.account_id = account AND p.second = present AND p.session = CONNECTION_ID();
    IF found > 0 THEN
        UPDATE account_published AS p SET p.events = p.events + events, p.bytes = p.bytes + COALESCE(bytes, 0)
        WHERE p.account_id = account AND p.second = present AND p.session = CONNECTION_ID();
    ELSE
        INSERT INTO account_published (account_id, second, session, events, bytes)
        VALUES (account, present, CONNECTION_ID(), events, COALESCE(bytes, 0));
    END IF;
END;

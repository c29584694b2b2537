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

-- name: kept_by_queue
-- How many events of a partition a queue keeps row by row: those behind an event of their key, and those that wait for
-- a retry. It counts no further than most in each place.
CREATE FUNCTION kept_by_queue(owner_id BIGINT, part_id BIGINT, most BIGINT) RETURNS BIGINT
READS SQL DATA
BEGIN
    DECLARE behind, waits BIGINT DEFAULT 0;
    SELECT COUNT(*) INTO behind
    FROM (
        SELECT k.sequence
        FROM queue_keys AS k FORCE INDEX (queue_keys_state)
        WHERE k.subscription_id = owner_id AND k.state IN ('behind', 'unsure') AND k.partition_id = part_id
        LIMIT most
    ) AS found;
    SELECT COUNT(*) INTO waits
    FROM (
        SELECT w.id
        FROM queue_waiting AS w FORCE INDEX (queue_waiting_place)
        WHERE w.subscription_id = owner_id AND w.partition_id = part_id AND w.due_at IS NOT NULL
        LIMIT most
    ) AS found;
    RETURN behind + waits;
END;

-- name: waiting_for
-- How many events of a topic a subscription has not finished. Of what a queue keeps row by row it looks at no more than
-- so many rows in each place.
CREATE FUNCTION waiting_for(owner_id BIGINT, source_id BIGINT, reads_as VARCHAR(20), most BIGINT) RETURNS BIGINT
READS SQL DATA
BEGIN
    DECLARE undealt, dealt BIGINT DEFAULT 0;
    DECLARE first_id BIGINT DEFAULT source_id << 16;
    DECLARE last_id BIGINT DEFAULT first_id + 65535;
    IF reads_as <> 'queue' THEN
        SELECT COALESCE(SUM(high_watermark(l.partition_id) - current_position(owner_id, l.partition_id)), 0)
        INTO undealt
        FROM leases AS l
        WHERE l.subscription_id = owner_id AND l.partition_id BETWEEN first_id AND last_id;
        RETURN undealt;
    END IF;
    SELECT COALESCE(SUM(high_watermark(l.partition_id) - current_undealt(owner_id, l.partition_id) + 1
                        + kept_by_queue(owner_id, l.partition_id, most)), 0)
    INTO undealt
    FROM leases AS l
    WHERE l.subscription_id = owner_id AND l.partition_id BETWEEN first_id AND last_id;
    SELECT COALESCE(SUM(found.events), 0) INTO dealt
    FROM (
        SELECT r.last_sequence - r.first_sequence + 1 AS events
        FROM queue_turns AS t
        JOIN queue_ranges AS r FORCE INDEX (PRIMARY) ON r.subscription_id = t.subscription_id AND r.id >= t.floor_id
        WHERE t.subscription_id = owner_id AND r.partition_id BETWEEN first_id AND last_id
        LIMIT most
    ) AS found;
    RETURN undealt + dealt;
END;

-- name: count_for_account
-- Goes on counting how many events of an account's topics wait, from a place on: topic after topic, subscription after
-- subscription, at most so many of these pairs. It counts no further than most. Afterwards all_counted says whether the
-- account is done.
CREATE PROCEDURE count_for_account(
    account VARCHAR(32), most BIGINT, INOUT after_topic BIGINT, INOUT after_reader BIGINT, INOUT found BIGINT,
    INOUT readers_left INT, OUT all_counted BOOLEAN)
READS SQL DATA
BEGIN
    DECLARE source, reader BIGINT;
    DECLARE reads_as VARCHAR(20);
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE readers CURSOR FOR
        WITH RECURSIVE below AS (
            SELECT a.namespace_id AS id FROM accounts AS a WHERE a.id = account
            UNION
            SELECT c.id FROM below AS b JOIN namespaces AS c ON c.parent_id = b.id
        )
        SELECT r.topic_id, r.subscription_id, s.mode
        FROM below AS b
        JOIN topics AS t ON t.namespace_id = b.id
        JOIN subscription_topics AS r ON r.topic_id = t.id
        JOIN subscriptions AS s ON s.id = r.subscription_id
        WHERE r.topic_id > after_topic OR (r.topic_id = after_topic AND r.subscription_id > after_reader)
        ORDER BY r.topic_id, r.subscription_id
        LIMIT 10001;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    SET all_counted = TRUE;
    OPEN readers;
    each_reader: LOOP
        SET done = FALSE;
        FETCH readers INTO source, reader, reads_as;
        IF done OR found >= most THEN
            LEAVE each_reader;
        ELSEIF readers_left <= 0 THEN
            SET all_counted = FALSE;
            LEAVE each_reader;
        END IF;
        SET found = found + waiting_for(reader, source, reads_as, most);
        SET after_topic = source, after_reader = reader, readers_left = readers_left - 1;
    END LOOP;
    CLOSE readers;
END;

-- name: note_waiting
-- Notes that an account is at its limit, or that it is not any more.
CREATE PROCEDURE note_waiting(account VARCHAR(32), events BIGINT, most BIGINT)
BEGIN
    IF events >= most THEN
        REPLACE INTO account_waiting (account_id, events, measured_at) VALUES (account, events, UTC_TIMESTAMP(6));
    ELSE
        DELETE w FROM account_waiting AS w WHERE w.account_id = account;
    END IF;
END;

-- name: quota_problem
-- Why an account may not publish now by its quota; NULL when it may. What was used before counts, not what comes now:
-- one call may go over the quota, and the next ones wait.
CREATE PROCEDURE quota_problem(account VARCHAR(32), OUT problem VARCHAR(200))
READS SQL DATA
BEGIN
    DECLARE present BIGINT DEFAULT FLOOR(UNIX_TIMESTAMP(SYSDATE(6)));
    DECLARE most_events, most_bytes, most_waiting, used_events, used_bytes, first BIGINT;
    DECLARE given, found INT;
    SET problem = NULL;
    SELECT COUNT(q.account_id), MAX(q.max_events), MAX(q.max_bytes), MAX(q.max_waiting)
    INTO given, most_events, most_bytes, most_waiting
    FROM account_quotas AS q WHERE q.account_id = account;
    IF given > 0 THEN
        CALL account_use(account, used_events, used_bytes, first);
        IF COALESCE(used_events >= 10 * most_events, FALSE) OR COALESCE(used_bytes >= 10 * most_bytes, FALSE) THEN
            SET problem = CONCAT('the account has used its quota of ten seconds: again in ',
                                 GREATEST(first + 10 - present, 1), ' seconds');
        ELSEIF most_waiting IS NOT NULL THEN
            SELECT COUNT(w.account_id) INTO found
            FROM account_waiting AS w
            WHERE w.account_id = account AND w.measured_at > UTC_TIMESTAMP(6) - INTERVAL 5 SECOND;
            IF found > 0 THEN
                SET problem = 'so many events of the account wait as its quota allows: again in 5 seconds';
            END IF;
        END IF;
    END IF;
END;

-- name: count_published
-- Counts what this transaction has published for an account with a quota. The row is looked for without a lock and then
-- changed by its key: no lock on a gap makes another session wait.
CREATE PROCEDURE count_published(account VARCHAR(32), events BIGINT, bytes BIGINT)
BEGIN
    DECLARE present BIGINT DEFAULT FLOOR(UNIX_TIMESTAMP(SYSDATE(6)));
    DECLARE found INT;
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

-- name: charge_account
-- Counts what this transaction has published for the account that it acts for, and refuses it (PS052) if the account
-- has used its quota. Called after the events were written, so it knows them to be good.
CREATE PROCEDURE charge_account(events BIGINT, bytes BIGINT)
BEGIN
    DECLARE account VARCHAR(32) DEFAULT acting_account();
    DECLARE problem VARCHAR(200);
    CALL quota_problem(account, problem);
    IF problem IS NOT NULL THEN
        CALL refuse('PS052', problem);
    END IF;
    CALL count_published(account, events, bytes);
END;

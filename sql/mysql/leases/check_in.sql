-- name: check_in
-- Sends a heartbeat, removes dead consumers, computes the fair share, releases and acquires leases, all in one
-- transaction. One check-in of a subscription runs at a time; it reads the clock after it has the lock. The check-in
-- surveys which partitions have unread events and what each consumer holds, when fresh is true or a consumer has
-- died, else at most once in refresh_seconds for the whole subscription. After a survey it calls the consumers that
-- hold too few or too many. Returns the leases that the consumer now holds. While the subscription is paused, it asks
-- the consumer to give back all of them. Raises PS013, PS014, PS018.
CREATE PROCEDURE check_in(subscription LONGTEXT, consumer VARCHAR(255), session CHAR(36), fresh BOOLEAN)
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE asked BIGINT;
    DECLARE expired, locked, listed INT;
    DECLARE paused, looked BOOLEAN;
    DECLARE is_known BOOLEAN DEFAULT FALSE;
    DECLARE release_time, refresh_time, pause DOUBLE;
    DECLARE present, deadline DATETIME(6);
    DECLARE asked_at DATETIME(6) DEFAULT UTC_TIMESTAMP(6);
    {{on error: CALL undo_call()}}
    CALL begin_call('check_in()');
    CALL require_read_committed('check_in()');
    CALL lock_subscription(subscription, owner_id);
    SET present = UTC_TIMESTAMP(6);
    SELECT s.release_seconds, s.refresh_seconds, GREATEST(s.heartbeat_seconds, COALESCE(v.pace_seconds, 0))
    INTO release_time, refresh_time, pause
    FROM subscriptions AS s LEFT JOIN surveys AS v ON v.subscription_id = s.id
    WHERE s.id = owner_id;
    CALL extend_deadline(owner_id, consumer, session, present,
                         present + INTERVAL pause * (0.9 + 0.2 * RAND()) * 1000000 MICROSECOND);
    CALL collect_dead(owner_id, present, expired, locked);
    SET deadline = present + INTERVAL release_time * 1000000 MICROSECOND;
    CALL is_paused(owner_id, paused);
    IF paused THEN
        CALL read_board(owner_id, NULL);
        CALL release_surplus(owner_id, consumer, 1000000000, present, deadline, asked);
    ELSE
        CALL survey(
            owner_id,
            IF(fresh, asked_at, IF(expired > 0, present, present - INTERVAL refresh_time * 1000000 MICROSECOND)), fresh,
            present, looked);
        SELECT COUNT(f.topic_id) INTO listed
        FROM (SELECT t.topic_id FROM consumer_topics AS t WHERE t.subscription_id = owner_id LIMIT 1) AS f;
        IF listed > 0 THEN
            CALL share_out_groups(owner_id, consumer, present, deadline);
        ELSE
            IF NOT looked THEN
                CALL follow_share(owner_id, consumer, present, deadline, is_known);
            END IF;
            IF NOT is_known THEN
                CALL share_out(owner_id, consumer, NULL, NULL, present, deadline);
            END IF;
        END IF;
    END IF;
    CALL show_leases(subscription, consumer);
    CALL end_call();
END;

-- name: heartbeat
-- Keeps a consumer and all its leases alive. Raises PS013, PS014.
CREATE PROCEDURE heartbeat(subscription LONGTEXT, consumer VARCHAR(255), session CHAR(36))
BEGIN
    DECLARE owner_id BIGINT;
    {{on error: CALL undo_call()}}
    CALL begin_call('heartbeat()');
    CALL require_subscription(subscription, owner_id);
    CALL extend_deadline(owner_id, consumer, session, UTC_TIMESTAMP(6), NULL);
    CALL end_call();
END;

-- name: heartbeats
-- The heartbeat of all consumers of a process at once. Returns for each, by its place in the arrays, its standing,
-- the seconds until its next check-in, and the seconds between two check-ins of one consumer. The standing is member,
-- gone, or locked: then another session has locked its row, so call again. It waits for no lock, and a consumer that
-- is gone does not affect the others. While consumers are being called to check in early, the others postpone their
-- check-ins. Raises PS006.
CREATE PROCEDURE heartbeats(subscription_names JSON, consumer_ids JSON, sessions JSON)
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE given_rights INT;
    DECLARE given_id, member VARCHAR(255);
    DECLARE run BINARY(16);
    DECLARE lease_time, pause DOUBLE;
    DECLARE turns_until DATETIME(6);
    DECLARE present DATETIME(6) DEFAULT UTC_TIMESTAMP(6);
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE given CURSOR FOR
        SELECT STRAIGHT_JOIN s.id, c.id, UNHEX(REPLACE(r.id, '-', '')), s.lease_seconds,
               GREATEST(s.heartbeat_seconds, COALESCE(v.pace_seconds, 0)), v.called_until
        FROM JSON_TABLE(subscription_names, '$[*]' COLUMNS (place FOR ORDINALITY, name VARCHAR(500) PATH '$')) AS n
        JOIN (
            SELECT j.place, j.id
            FROM JSON_TABLE(consumer_ids, '$[*]' COLUMNS (place FOR ORDINALITY, id VARCHAR(255) PATH '$')) AS j
            LIMIT 1000000
        ) AS c ON c.place = n.place
        JOIN (
            SELECT j.place, j.id
            FROM JSON_TABLE(sessions, '$[*]' COLUMNS (place FOR ORDINALITY, id CHAR(36) PATH '$')) AS j
            LIMIT 1000000
        ) AS r ON r.place = n.place
        JOIN subscriptions AS s FORCE INDEX (subscriptions_name) ON s.name_hash = UNHEX(SHA2(n.name, 256))
        LEFT JOIN surveys AS v FORCE INDEX (PRIMARY) ON v.subscription_id = s.id
        WHERE given_rights = 0 AND @penstock_acting IS NULL OR NOT reads_hidden(s.id)
        ORDER BY s.id, c.id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    {{on error: CALL undo_call()}}
    CALL begin_call('heartbeats()');
    IF NOT COALESCE(JSON_LENGTH(consumer_ids) = JSON_LENGTH(subscription_names)
        AND JSON_LENGTH(sessions) = JSON_LENGTH(subscription_names), FALSE) THEN
        CALL refuse('PS006', 'a heartbeat needs a subscription and a session for each of its consumers');
    END IF;
    SELECT COUNT(g.verb) INTO given_rights FROM (SELECT n.verb FROM namespace_grants AS n LIMIT 1) AS g;
    OPEN given;
    consumer: LOOP
        FETCH given INTO owner_id, given_id, run, lease_time, pause, turns_until;
        IF done THEN
            LEAVE consumer;
        END IF;
        SET member = (
            SELECT c.id FROM consumers AS c
            WHERE c.subscription_id = owner_id AND c.id = given_id AND c.session = run
            FOR UPDATE SKIP LOCKED);
        IF member IS NOT NULL THEN
            UPDATE consumers AS c
            SET c.heartbeat_at = present, c.deadline = present + INTERVAL lease_time * 1000000 MICROSECOND,
                c.check_in_at = IF(
                    -- Of before the clock was set back.
                    c.check_in_at > present + INTERVAL (3 * pause + 60) * 1000000 MICROSECOND, present, IF(
                        c.check_in_at <= present AND NOT c.called AND turns_until BETWEEN present + INTERVAL 1 SECOND
                            AND present + INTERVAL (pause + 60) * 1000000 MICROSECOND,
                        turns_until + INTERVAL pause * RAND() * 1000000 MICROSECOND, c.check_in_at))
            WHERE c.subscription_id = owner_id AND c.id = given_id;
        END IF;
    END LOOP;
    CLOSE given;
    SELECT r.place, IF(c.id IS NULL, 'gone', IF(c.heartbeat_at >= present, 'member', 'locked')) AS standing,
           COALESCE(GREATEST(TIMESTAMPDIFF(MICROSECOND, present, c.check_in_at), 0) / 1e6, 0) AS check_in_seconds,
           COALESCE(v.pace_seconds, 0) AS pace_seconds
    FROM JSON_TABLE(sessions, '$[*]' COLUMNS (place FOR ORDINALITY, id CHAR(36) PATH '$')) AS r
    LEFT JOIN (
        SELECT j.place, j.name
        FROM JSON_TABLE(subscription_names, '$[*]' COLUMNS (place FOR ORDINALITY, name VARCHAR(500) PATH '$')) AS j
        LIMIT 1000000
    ) AS n ON n.place = r.place
    LEFT JOIN (
        SELECT j.place, j.id
        FROM JSON_TABLE(consumer_ids, '$[*]' COLUMNS (place FOR ORDINALITY, id VARCHAR(255) PATH '$')) AS j
        LIMIT 1000000
    ) AS g ON g.place = r.place
    LEFT JOIN subscriptions AS s FORCE INDEX (subscriptions_name)
        ON s.name_hash = UNHEX(SHA2(n.name, 256)) AND (given_rights = 0 OR NOT reads_hidden(s.id))
    LEFT JOIN consumers AS c FORCE INDEX (PRIMARY)
        ON c.subscription_id = s.id AND c.id = g.id AND c.session = UNHEX(REPLACE(r.id, '-', ''))
    LEFT JOIN surveys AS v FORCE INDEX (PRIMARY) ON v.subscription_id = s.id
    ORDER BY r.place;
    CALL end_call();
END;

-- name: report_error
-- Records a consumer's last error. The next one replaces it, it is cut at 2,000 characters, and it is removed with
-- the consumer. The caller must not put payloads or passwords into it. Raises PS006, PS013, PS014.
CREATE PROCEDURE report_error(subscription LONGTEXT, consumer VARCHAR(255), session CHAR(36), error LONGTEXT)
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE member VARCHAR(255);
    {{on error: CALL undo_call()}}
    CALL begin_call('report_error()');
    CALL require_subscription(subscription, owner_id);
    IF error IS NULL THEN
        CALL refuse('PS006', 'the reported error has no text');
    END IF;
    -- Locked, or the consumer could be collected before the row is written.
    SET member = (
        SELECT c.id FROM consumers AS c
        WHERE c.subscription_id = owner_id AND c.id = consumer AND c.session = UNHEX(REPLACE(session, '-', ''))
        FOR UPDATE);
    IF member IS NULL THEN
        CALL refuse('PS014', CONCAT('consumer "', COALESCE(consumer, ''), '" is not a member, or not any more'));
    END IF;
    REPLACE INTO consumer_errors (subscription_id, consumer, error, at)
    VALUES (owner_id, consumer, LEFT(error, 2000), UTC_TIMESTAMP(6));
    CALL end_call();
END;

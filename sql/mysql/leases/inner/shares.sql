-- name: find_share
-- What a consumer holds, compared with its fair share. shortage: how many active partitions it holds too few (below
-- 0: too many). cold: how many partitions that are held are not active. uncovered: how many of the partitions that
-- the others lack are not free. It also returns how many partitions are free, and how many of the others hold too few
-- or too many (concerned).
CREATE PROCEDURE find_share(
    owner_id BIGINT, me VARCHAR(255), of_topic BIGINT, OUT shortage BIGINT, OUT cold BIGINT, OUT uncovered BIGINT,
    OUT available BIGINT, OUT concerned BIGINT
)
BEGIN
    DECLARE active, unheld BIGINT;
    SELECT COALESCE(SUM(b.is_active), 0), COALESCE(SUM(b.is_active AND b.state <> 'ACTIVE'), 0),
           COALESCE(SUM(b.is_active AND b.state = 'AVAILABLE'), 0),
           COALESCE(SUM(NOT b.is_active AND b.state = 'ACTIVE'), 0)
    INTO active, unheld, available, cold
    FROM board AS b;
    CALL find_standings(owner_id, of_topic, active);
    SELECT MAX(IF(s.consumer = me, s.shortage, NULL)), SUM(GREATEST(s.shortage, 0)) - unheld,
           SUM(s.shortage <> 0 AND s.consumer <> me)
    INTO shortage, uncovered, concerned
    FROM stands AS s;
END;

-- name: write_shares
-- Stores the quotas of the consumers that hold too few or too many, and no others.
CREATE PROCEDURE write_shares(owner_id BIGINT)
BEGIN
    DELETE h FROM shares AS h LEFT JOIN stands AS s ON s.consumer = h.consumer AND s.shortage <> 0
    WHERE h.subscription_id = owner_id AND s.consumer IS NULL;
    INSERT INTO shares (subscription_id, consumer, quota)
    SELECT owner_id, s.consumer, s.shortage + s.held FROM stands AS s WHERE s.shortage <> 0
    ON DUPLICATE KEY UPDATE quota = VALUES(quota);
END;

-- name: follow_share
-- What a check-in does until the next survey: it applies what the last survey found for this consumer. Returns false
-- for a consumer that has joined since that survey.
CREATE PROCEDURE follow_share(
    owner_id BIGINT, me VARCHAR(255), present DATETIME(6), deadline DATETIME(6), OUT is_known BOOLEAN
)
BEGIN
    DECLARE uncovered, quota, warm, cold, asked, taken BIGINT;
    DECLARE is_balanced BOOLEAN;
    SELECT v.balanced, v.uncovered, c.joined_at <= v.made_at, (
               SELECT h.quota FROM shares AS h WHERE h.subscription_id = owner_id AND h.consumer = me)
    INTO is_balanced, uncovered, is_known, quota
    FROM surveys AS v JOIN consumers AS c ON c.subscription_id = v.subscription_id
    WHERE v.subscription_id = owner_id AND c.id = me;
    IF is_known AND NOT is_balanced THEN
        SELECT COUNT(a.partition_id), COUNT(l.partition_id) - COUNT(a.partition_id) INTO warm, cold
        FROM leases AS l FORCE INDEX (PRIMARY)
        LEFT JOIN active_partitions AS a ON a.subscription_id = owner_id AND a.partition_id = l.partition_id
        WHERE l.subscription_id = owner_id AND l.holder = me AND l.state = 'ACTIVE';
        IF cold > 0 OR quota <> warm THEN
            CALL read_board(owner_id, NULL);
            CALL give_and_take(
                owner_id, me, COALESCE(quota - warm, 0), cold, uncovered, present, deadline, asked, taken);
            UPDATE surveys AS v SET v.uncovered = v.uncovered - asked WHERE v.subscription_id = owner_id;
        END IF;
    END IF;
END;

-- name: share_out
-- What a check-in does after a survey, for topics that the same consumers take (a JSON array of ids, and one of them;
-- NULL: all topics). It compares what each consumer holds with its fair share, makes this consumer give back and take
-- what it should, and calls the others that hold too few or too many. For all topics together it records the result,
-- for follow_share.
CREATE PROCEDURE share_out(
    owner_id BIGINT, consumer VARCHAR(255), topic_ids JSON, of_topic BIGINT, present DATETIME(6), deadline DATETIME(6)
)
BEGIN
    DECLARE shortage, cold, uncovered, available, concerned, asked, taken BIGINT;
    CALL read_board(owner_id, topic_ids);
    CALL find_share(owner_id, consumer, of_topic, shortage, cold, uncovered, available, concerned);
    CALL give_and_take(owner_id, consumer, shortage, cold, uncovered, present, deadline, asked, taken);
    IF concerned > 0 THEN
        CALL call_consumers(owner_id, consumer, available - taken, uncovered - asked, present);
    END IF;
    IF topic_ids IS NULL THEN
        CALL write_shares(owner_id);
        UPDATE surveys AS v
        SET v.balanced = (shortage = 0 AND cold = 0 AND concerned = 0), v.uncovered = uncovered - asked
        WHERE v.subscription_id = owner_id;
    END IF;
END;

-- name: share_out_groups
-- Shares out the topics of a subscription in which a consumer has named topics: in groups that the same
-- consumers take, each group by itself.
CREATE PROCEDURE share_out_groups(owner_id BIGINT, consumer VARCHAR(255), present DATETIME(6), deadline DATETIME(6))
BEGIN
    DECLARE topic_ids LONGTEXT;
    DECLARE of_topic BIGINT;
    DECLARE how_many INT;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE limit_before BIGINT UNSIGNED DEFAULT @@SESSION.group_concat_max_len;
    DECLARE taken CURSOR FOR
        SELECT JSON_ARRAYAGG(e.topic_id), MIN(e.topic_id), COUNT(e.topic_id)
        FROM (
            SELECT r.topic_id, BIT_XOR(CAST(CONV(LEFT(SHA2(c.id, 256), 16), 16, 10) AS UNSIGNED)) AS takers
            FROM subscription_topics AS r JOIN consumers AS c ON c.subscription_id = r.subscription_id
            WHERE r.subscription_id = owner_id AND may_hold(owner_id, c.id, r.topic_id)
            GROUP BY r.topic_id
            HAVING SUM(c.id = consumer) > 0
        ) AS e
        GROUP BY e.takers
        ORDER BY MIN(e.topic_id);
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    {{on error: SET SESSION group_concat_max_len = limit_before}}
    SET SESSION group_concat_max_len = 4294967295;
    OPEN taken;
    topics: LOOP
        FETCH taken INTO topic_ids, of_topic, how_many;
        IF done THEN
            LEAVE topics;
        ELSEIF NOT COALESCE(JSON_LENGTH(topic_ids) = how_many, FALSE) THEN
            CALL refuse('PS019', 'not all topics of the subscription were found');
        END IF;
        CALL share_out(owner_id, consumer, topic_ids, of_topic, present, deadline);
    END LOOP;
    CLOSE taken;
    SET SESSION group_concat_max_len = limit_before;
END;

-- name: list_subscriptions
-- The subscriptions that the login may see: which topics they read, their times in seconds, and, for one that
-- is paused, since when, by whom and why. dead_letters_to is the topic that its dead letters are published to, if the
-- login may see that, and dead_letters_origin who has set it: 'hand', or 'file ' and the name of the policy file.
-- dead_letters_problem says why nothing goes there: who has set it lost a right. In the order of their names: those of
-- a mode and below a namespace ('': of all), that come after one, and at most max_rows of them (NULL: all).
CREATE PROCEDURE list_subscriptions(of_mode LONGTEXT, namespace LONGTEXT, after LONGTEXT, max_rows BIGINT)
READS SQL DATA
BEGIN
    CALL refuse_serializable('list_subscriptions()');
    CALL show_subscriptions(NULL, of_mode, namespace, after, max_rows);
END;

-- name: describe_subscription
-- The row of list_subscriptions for one subscription. Raises PS013.
CREATE PROCEDURE describe_subscription(subscription LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE owner_id BIGINT;
    CALL refuse_serializable('describe_subscription()');
    CALL require_subscription(subscription, owner_id);
    CALL show_subscriptions(owner_id, '', '', '', 1);
END;

-- name: subscription_lag
-- Position, high watermark, lag and holder of every partition of one subscription, or of all (NULL). lag_seconds is the
-- time since the first unread event was sequenced.
CREATE PROCEDURE subscription_lag(subscription LONGTEXT)
READS SQL DATA
BEGIN
    CALL refuse_serializable('subscription_lag()');
    CALL show_cursors(subscription, FALSE);
END;

-- name: subscription_consumers
-- The members of one subscription, or of all (NULL): until which deadline each counts as alive, what it holds, the
-- topics that it has named (NULL: all topics) and the last error that it has reported.
CREATE PROCEDURE subscription_consumers(subscription LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE limit_before BIGINT UNSIGNED DEFAULT @@SESSION.group_concat_max_len;
    {{on error: SET SESSION group_concat_max_len = limit_before}}
    CALL refuse_serializable('subscription_consumers()');
    SET SESSION group_concat_max_len = 4294967295;
    SELECT s.name AS subscription, c.id AS consumer, c.weight, (
               SELECT JSON_ARRAYAGG(a.address)
               FROM consumer_topics AS t JOIN topics AS a ON a.id = t.topic_id
               WHERE t.subscription_id = s.id AND t.consumer = c.id) AS topics,
           c.joined_at, c.heartbeat_at, c.deadline, c.deadline > UTC_TIMESTAMP(6) AS live,
           COALESCE(h.held, 0) AS leases, e.error AS last_error, e.at AS last_error_at
    FROM subscriptions AS s
    JOIN consumers AS c ON c.subscription_id = s.id
    LEFT JOIN (
        SELECT l.subscription_id, l.holder, COUNT(*) AS held FROM leases AS l GROUP BY l.subscription_id, l.holder
    ) AS h ON h.subscription_id = s.id AND h.holder = c.id
    LEFT JOIN consumer_errors AS e ON e.subscription_id = s.id AND e.consumer = c.id
    WHERE (subscription IS NULL OR s.name_hash = UNHEX(SHA2(subscription, 256))) AND NOT reads_hidden(s.id)
    ORDER BY s.name, c.id;
    SET SESSION group_concat_max_len = limit_before;
END;

-- name: unleased_cursors
-- The partitions that can be leased, of one subscription or of all (NULL): they have unread events and no consumer
-- holds them.
CREATE PROCEDURE unleased_cursors(subscription LONGTEXT)
READS SQL DATA
BEGIN
    CALL refuse_serializable('unleased_cursors()');
    CALL show_cursors(subscription, TRUE);
END;

-- name: leased_cursors
-- The leases that are held, of one subscription or of all (NULL): by which consumer, since when, until when the
-- holder counts as alive, and, for a lease that is to be given back, until when.
CREATE PROCEDURE leased_cursors(subscription LONGTEXT)
READS SQL DATA
BEGIN
    CALL refuse_serializable('leased_cursors()');
    SELECT n.name AS subscription, n.address AS topic, n.number AS `partition`, n.holder, n.state, n.lease_epoch,
           n.position, n.watermark AS high_watermark, n.watermark - n.position AS lag_events, n.acquired_at,
           n.deadline, n.release_deadline
    FROM (
        SELECT s.name, t.address, p.number, l.holder, l.state, l.lease_epoch, l.acquired_at, l.release_deadline,
               c.deadline, current_position(s.id, p.id) AS position, high_watermark(p.id) AS watermark
        FROM subscriptions AS s
        JOIN leases AS l ON l.subscription_id = s.id AND l.state <> 'AVAILABLE'
        JOIN partitions AS p ON p.id = l.partition_id
        JOIN topics AS t ON t.id = p.topic_id
        LEFT JOIN consumers AS c ON c.subscription_id = s.id AND c.id = l.holder
        WHERE (subscription IS NULL OR s.name_hash = UNHEX(SHA2(subscription, 256)))
         
            AND (NOT t.restricted AND @penstock_acting IS NULL OR has_right(t.namespace_id, 'read'))
          AND NOT reads_unseen(s.id)
        LIMIT 100000000  -- Keeps it from being merged into the query, which would call the functions for each mention.
    ) AS n
    ORDER BY n.name, n.address, n.number;
END;

-- name: subscription_statistics
-- One row for a subscription, or for each (NULL): its heartbeat, how many partitions have unread events, how many
-- consumers are alive and the sum of their weights. moves and take_overs count how often in the last hour a partition
-- went to another consumer, because it was given back or because its holder's time ran out. It also says when a lease
-- changed last.
CREATE PROCEDURE subscription_statistics(subscription LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE present DATETIME(6) DEFAULT UTC_TIMESTAMP(6);
    CALL refuse_serializable('subscription_statistics()');
    SELECT s.name AS subscription, s.heartbeat_seconds, (
               SELECT COUNT(*) FROM leases AS l
               WHERE l.subscription_id = s.id
                 AND high_watermark(l.partition_id) > current_position(s.id, l.partition_id)
           ) AS active_partitions, (
               SELECT COUNT(*) FROM consumers AS c WHERE c.subscription_id = s.id AND c.deadline > present
           ) AS active_consumers, (
               SELECT COALESCE(SUM(c.weight), 0)
               FROM consumers AS c
               WHERE c.subscription_id = s.id AND c.deadline > present
           ) AS active_weight,
           COALESCE(h.moves, 0) AS moves, COALESCE(h.take_overs, 0) AS take_overs, (
               SELECT MAX(a.at) FROM lease_history AS a WHERE a.subscription_id = s.id
           ) AS changed_at,
           s.paused_at
    FROM subscriptions AS s
    LEFT JOIN (
        SELECT taken.subscription_id, SUM(lost.`change` = 'released') AS moves,
               SUM(lost.`change` = 'expired') AS take_overs
        FROM lease_history AS taken
        JOIN lease_history AS lost
            ON lost.subscription_id = taken.subscription_id AND lost.partition_id = taken.partition_id
            AND lost.lease_epoch = taken.lease_epoch - 1 AND lost.holder <> taken.holder
            AND lost.at > present - INTERVAL 1 HOUR
        WHERE taken.`change` = 'acquired' AND taken.at > present - INTERVAL 1 HOUR
          AND (subscription IS NULL OR taken.subscription_id = (
                  SELECT n.id FROM subscriptions AS n WHERE n.name_hash = UNHEX(SHA2(subscription, 256))))
        GROUP BY taken.subscription_id
    ) AS h ON h.subscription_id = s.id
    WHERE (subscription IS NULL OR s.name_hash = UNHEX(SHA2(subscription, 256))) AND NOT reads_hidden(s.id)
    ORDER BY s.name;
END;

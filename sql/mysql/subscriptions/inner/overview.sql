-- name: show_subscriptions
-- The rows of list_subscriptions, for one subscription or for all (NULL). '0' comes next to '/'.
CREATE PROCEDURE show_subscriptions(
    only_id BIGINT, of_mode LONGTEXT, namespace LONGTEXT, after LONGTEXT, max_rows BIGINT)
READS SQL DATA
BEGIN
    DECLARE limit_before BIGINT UNSIGNED DEFAULT @@SESSION.group_concat_max_len;
    DECLARE most BIGINT DEFAULT COALESCE(max_rows, 9223372036854775807);
    DECLARE first, last LONGTEXT;
    {{on error: SET SESSION group_concat_max_len = limit_before}}
    SET SESSION group_concat_max_len = 4294967295;
    SELECT IF(CHAR_LENGTH(namespace) = 0, '', CONCAT(namespace, '/')),
           IF(CHAR_LENGTH(namespace) = 0, MAX(s.name), CONCAT(namespace, '0'))
    INTO first, last
    FROM subscriptions AS s;
    SELECT s.name, s.mode, COALESCE((
               SELECT JSON_ARRAYAGG(t.address)
               FROM subscription_topics AS r JOIN topics AS t ON t.id = r.topic_id
               WHERE r.subscription_id = s.id), '[]') AS topics,
           s.heartbeat_seconds, s.lease_seconds, s.release_seconds, s.max_consumers, s.created_at, s.paused_at,
           s.paused_by, s.paused_reason, (
               SELECT f.address FROM topics AS f
               WHERE f.id = s.dead_letters_to AND (
                   NOT f.restricted AND @penstock_acting IS NULL OR has_right(f.namespace_id, 'any')))
               AS dead_letters_to,
           s.dead_letters_origin, forwarding_problem(s.id) AS dead_letters_problem
    FROM subscriptions AS s
    WHERE (only_id IS NULL OR s.id = only_id) AND s.name > after AND s.name BETWEEN first AND last
      AND LEFT(s.name, CHAR_LENGTH(first)) = first AND of_mode IN (s.mode, '') AND NOT reads_hidden(s.id)
    ORDER BY s.name
    LIMIT most;
    SET SESSION group_concat_max_len = limit_before;
END;

-- name: show_cursors
-- The rows of subscription_lag, or only those of partitions that can be leased.
CREATE PROCEDURE show_cursors(subscription LONGTEXT, only_unleased BOOLEAN)
READS SQL DATA
BEGIN
    DECLARE present DATETIME(6) DEFAULT UTC_TIMESTAMP(6);
    WITH standing AS (
        SELECT s.name, t.address, p.number, p.id, l.state, l.holder, l.lease_epoch,
               current_position(s.id, p.id) AS position, high_watermark(p.id) AS watermark
        FROM subscriptions AS s
        JOIN leases AS l ON l.subscription_id = s.id
        JOIN partitions AS p ON p.id = l.partition_id
        JOIN topics AS t ON t.id = p.topic_id
        WHERE (subscription IS NULL OR s.name_hash = UNHEX(SHA2(subscription, 256)))
         
            AND (NOT t.restricted AND @penstock_acting IS NULL OR has_right(t.namespace_id, 'read'))
          AND NOT reads_unseen(s.id)
        LIMIT 100000000  -- Keeps it from being merged into the query, which would call the functions for each mention.
    )
    SELECT a.name AS subscription, a.address AS topic, a.number AS `partition`, a.position,
           a.watermark AS high_watermark, a.watermark - a.position AS lag_events,
           IF(a.watermark > a.position, COALESCE(TIMESTAMPDIFF(MICROSECOND, (
               SELECT IF(c.sequenced_ats IS NULL, c.sequenced_at,
                         TIMESTAMP'1970-01-01 00:00:00' + INTERVAL CAST(CONV(HEX(
                             SUBSTR(c.sequenced_ats, 8 * (a.position + 1 - c.first_sequence) + 1, 8)
                         ), 16, 10) AS SIGNED) MICROSECOND)
               FROM chunks AS c
               WHERE c.partition_id = a.id AND c.first_sequence <= a.position + 1
               ORDER BY c.partition_id DESC, c.first_sequence DESC
               LIMIT 1), present), 0), 0) / 1e6 AS lag_seconds,
           a.state, a.holder, a.lease_epoch
    FROM standing AS a
    WHERE NOT only_unleased OR (a.state = 'AVAILABLE' AND a.watermark > a.position)
    ORDER BY a.name, a.address, a.number;
END;

-- name: show_leases
-- The leases that a consumer holds, each with the position after which to read.
CREATE PROCEDURE show_leases(subscription LONGTEXT, consumer VARCHAR(255))
READS SQL DATA
BEGIN
    DECLARE history INT;
    SELECT MAX(h.history) INTO history FROM histories AS h;
    SELECT t.address AS topic, p.number AS `partition`, p.id AS partition_id, l.lease_epoch, l.state,
           current_position(s.id, p.id) AS position, history AS history
    FROM subscriptions AS s
    JOIN leases AS l ON l.subscription_id = s.id
    JOIN partitions AS p ON p.id = l.partition_id
    JOIN topics AS t ON t.id = p.topic_id
    WHERE s.name_hash = UNHEX(SHA2(subscription, 256)) AND l.holder = consumer
      AND (NOT t.restricted AND @penstock_acting IS NULL OR has_right(t.namespace_id, 'consume'))
    ORDER BY p.id;
END;

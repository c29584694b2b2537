-- name: position
-- The positions of a subscription on a topic.
CREATE PROCEDURE `position`(subscription LONGTEXT, topic LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE owner_id, source_id BIGINT;
    DECLARE history INT;
    CALL refuse_serializable('position()');
    SELECT MAX(h.history) INTO history FROM histories AS h;
    CALL require_subscription(subscription, owner_id);
    CALL require_topic(topic, source_id);
    SELECT p.number AS `partition`, current_position(owner_id, p.id) AS position, history AS history
    FROM partitions AS p
    WHERE p.topic_id = source_id
    ORDER BY p.number;
END;

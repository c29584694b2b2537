-- name: sees_all
-- Whether the login may see figures over the whole log: it passes the walls, or there are no walls.
CREATE FUNCTION sees_all() RETURNS BOOLEAN
READS SQL DATA
BEGIN
    DECLARE given INT DEFAULT 0;
    SELECT COUNT(g.login) INTO given FROM namespace_grants AS g;
    RETURN given = 0 OR passes_walls('read', roles_of_caller());
END;

-- name: reads_unseen
-- Whether a subscription reads a topic that the login may not read: then the login sees neither the
-- subscription's name nor its consumers.
CREATE FUNCTION reads_unseen(of_subscription BIGINT) RETURNS BOOLEAN
READS SQL DATA
BEGIN
    DECLARE unseen INT DEFAULT 0;
    SELECT COUNT(t.id) INTO unseen
    FROM subscription_topics AS s JOIN topics AS t ON t.id = s.topic_id
    WHERE s.subscription_id = of_subscription AND t.restricted AND NOT has_right(t.namespace_id, 'read');
    RETURN unseen > 0;
END;

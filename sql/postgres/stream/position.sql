-- name: position
-- The positions of a subscription on a topic.
CREATE OR REPLACE FUNCTION "position"(subscription text, topic text)
RETURNS TABLE (partition integer, "position" bigint, history integer)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner subscriptions%ROWTYPE := require_subscription(subscription);
    source_id bigint := require_topic(topic);
BEGIN
    RETURN QUERY
    SELECT p.number, current_position(owner.id, p.id), current_history()
    FROM partitions AS p
    WHERE p.topic_id = source_id
    ORDER BY p.number;
END
$$;

-- name: copies_of
-- Every copy of a topic's log epochs that was ever recorded: verified, or missing
-- since changed_at for the reason in detail.
CREATE OR REPLACE FUNCTION copies_of(topic text)
RETURNS TABLE (
    partition integer, log_epoch integer, target text, state text, detail text, changed_at timestamptz
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    RETURN QUERY
    SELECT p.number, c.log_epoch, c.target, c.state, c.detail, c.changed_at
    FROM partitions AS p JOIN epoch_copies AS c ON c.partition_id = p.id
    WHERE p.topic_id = require_topic(copies_of.topic)
    ORDER BY p.number, c.log_epoch, c.target;
END
$$;

-- name: copies_of
-- Every copy of a topic's log epochs that was ever recorded: verified, or missing since changed_at
-- for the reason in detail. Raises PS002.
CREATE PROCEDURE copies_of(topic LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE source_id BIGINT;
    CALL refuse_serializable('copies_of()');
    CALL find_topic(topic, source_id);
    SELECT p.number AS `partition`, c.log_epoch, c.target, c.state, c.detail, c.changed_at
    FROM partitions AS p JOIN epoch_copies AS c ON c.partition_id = p.id
    WHERE p.topic_id = source_id
    ORDER BY p.number, c.log_epoch, c.target;
END;

-- name: seek
-- Sets the position of one partition ('earliest', 'latest', the sequence to read next, a time, 'bookmark:NAME' or
-- 'subscription:NAME'), raises lease_epoch and takes the lease from its holder, whose later commits are refused as
-- stale. Returns the new position. Raises PS002, PS005, PS006, PS012, PS013, PS016, PS018, PS019, PS021, PS029.
CREATE PROCEDURE seek(subscription LONGTEXT, topic LONGTEXT, `partition` INT, start LONGTEXT)
BEGIN
    DECLARE owner_id, topic_id, source_id, wanted BIGINT;
    DECLARE partitions INT;
    {{on error: CALL undo_call()}}
    CALL begin_call('seek()');
    CALL require_read_committed('seek()');
    CALL require_subscription(subscription, owner_id);
    CALL require_stream(owner_id);
    CALL lock_topic(topic, 'read', topic_id, partitions);
    CALL require_partition(topic, `partition`, source_id);
    CALL require_reader(owner_id, topic_id, subscription, topic);
    CALL move_position(owner_id, source_id, start, wanted);
    SELECT wanted AS position;
    CALL end_call();
END;

-- name: reset_subscription
-- Does what seek does for every partition of a subscription, or of one of its topics (NULL: all topics), in one
-- transaction: all or none. Returns the new positions. Raises PS002, PS006, PS012, PS013, PS016, PS018, PS019, PS021,
-- PS029.
CREATE PROCEDURE reset_subscription(subscription LONGTEXT, start LONGTEXT, of_topic LONGTEXT)
BEGIN
    DECLARE owner_id, only_id, source_id, wanted BIGINT;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE sources CURSOR FOR
        SELECT l.partition_id
        FROM leases AS l JOIN partitions AS p ON p.id = l.partition_id
        WHERE l.subscription_id = owner_id AND (only_id IS NULL OR p.topic_id = only_id)
        ORDER BY l.partition_id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    {{on error: CALL undo_call()}}
    CALL begin_call('reset_subscription()');
    CALL require_read_committed('reset_subscription()');
    CALL require_subscription(subscription, owner_id);
    CALL require_stream(owner_id);
    IF of_topic IS NOT NULL THEN
        CALL require_topic_for(of_topic, 'consume', only_id);
        CALL require_reader(owner_id, only_id, subscription, of_topic);
    END IF;
    CALL lock_topics_read(owner_id, only_id);
    OPEN sources;
    source: LOOP
        FETCH sources INTO source_id;
        IF done THEN
            LEAVE source;
        END IF;
        CALL move_position(owner_id, source_id, start, wanted);
    END LOOP;
    CLOSE sources;
    SELECT t.address AS topic, p.number AS `partition`, current_position(owner_id, p.id) AS position
    FROM leases AS l
    JOIN partitions AS p ON p.id = l.partition_id
    JOIN topics AS t ON t.id = p.topic_id
    WHERE l.subscription_id = owner_id AND (only_id IS NULL OR t.id = only_id)
    ORDER BY p.id;
    CALL end_call();
END;

-- name: seek
-- Sets the position of one partition ('earliest', 'latest', the sequence to read next, a time, 'bookmark:NAME' or
-- 'subscription:NAME'), raises lease_epoch and takes the lease from its holder, whose later commits are refused as
-- stale. Raises PS002, PS005, PS006, PS012, PS013, PS016, PS019, PS021, PS029.
CREATE OR REPLACE FUNCTION seek(subscription text, topic text, partition integer, start text) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner subscriptions%ROWTYPE := require_subscription(subscription);
    source_id bigint := require_partition(topic, partition);
    present leases%ROWTYPE;
BEGIN
    PERFORM commit_durably();
    PERFORM require_stream(owner);
    PERFORM require_read_committed('seek()');
    PERFORM FROM topics AS t WHERE t.address = seek.topic FOR NO KEY UPDATE;
    SELECT * INTO present FROM leases AS l
    WHERE l.subscription_id = owner.id AND l.partition_id = source_id
    FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM refuse_unread(subscription, topic);
    END IF;
    RETURN move_position(present, start);
END
$$;

-- name: reset_subscription
-- Does what seek does for every partition of a subscription, or of one of its topics (NULL: all topics), in one
-- transaction: all or none. Returns the new positions. Raises PS002, PS006, PS012, PS013, PS016, PS018, PS019, PS021,
-- PS029.
CREATE OR REPLACE FUNCTION reset_subscription(subscription text, start text, of_topic text DEFAULT NULL)
RETURNS TABLE (topic text, partition integer, "position" bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner subscriptions%ROWTYPE := require_subscription(subscription);
    only_id bigint;
    present leases%ROWTYPE;
BEGIN
    PERFORM commit_durably();
    PERFORM require_stream(owner);
    PERFORM require_read_committed('reset_subscription()');
    IF of_topic IS NOT NULL THEN
        only_id := require_topic_for(of_topic, 'consume');
        IF NOT EXISTS (
                SELECT FROM subscription_topics AS r WHERE r.subscription_id = owner.id AND r.topic_id = only_id) THEN
            PERFORM refuse_unread(subscription, of_topic);
        END IF;
    END IF;
    PERFORM FROM topics AS t
    WHERE t.id IN (SELECT r.topic_id FROM subscription_topics AS r WHERE r.subscription_id = owner.id)
      AND (only_id IS NULL OR t.id = only_id)
    ORDER BY t.address
    FOR NO KEY UPDATE;
    FOR present IN
        SELECT l.*
        FROM leases AS l JOIN partitions AS p ON p.id = l.partition_id
        WHERE l.subscription_id = owner.id AND (only_id IS NULL OR p.topic_id = only_id)
        ORDER BY l.partition_id
        FOR UPDATE OF l
    LOOP
        RETURN QUERY
        SELECT t.address, p.number, move_position(present, start)
        FROM partitions AS p JOIN topics AS t ON t.id = p.topic_id
        WHERE p.id = present.partition_id;
    END LOOP;
END
$$;

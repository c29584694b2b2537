-- name: require_listed
-- The ids of the topics to which a consumer limits itself; NULL for all topics of the subscription. Raises
-- PS002, PS003, PS006, PS013, PS030 to PS034.
CREATE OR REPLACE FUNCTION require_listed(owner subscriptions, topics text[]) RETURNS bigint[]
LANGUAGE plpgsql STABLE AS $$
DECLARE
    address text;
    source_id bigint;
    found_ids bigint[] := '{}';
BEGIN
    IF topics IS NULL THEN
        RETURN NULL;
    ELSIF cardinality(topics) = 0 THEN
        PERFORM refuse('PS006', 'the list of topics of the consumer is empty',
                       'Name at least one topic, or pass no list for all of them.');
    END IF;
    FOREACH address IN ARRAY topics LOOP
        PERFORM require_address(address);
        source_id := require_topic_for(address, 'consume');
        IF NOT EXISTS (
                SELECT FROM subscription_topics AS r
                WHERE r.subscription_id = owner.id AND r.topic_id = source_id) THEN
            PERFORM refuse_unread(owner.name, address);
        END IF;
        found_ids := found_ids || source_id;
    END LOOP;
    RETURN found_ids;
END
$$;

-- name: limit_consumer
-- Records the topics of a consumer that joins, in place of those of an earlier run.
CREATE OR REPLACE FUNCTION limit_consumer(subscription_id bigint, consumer text, topic_ids bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM consumer_topics AS t
    WHERE t.subscription_id = limit_consumer.subscription_id AND t.consumer = limit_consumer.consumer;
    INSERT INTO consumer_topics (subscription_id, consumer, topic_id)
    SELECT DISTINCT limit_consumer.subscription_id, limit_consumer.consumer, t.id FROM unnest(topic_ids) AS t (id);
END
$$;

-- name: may_hold
-- Whether a consumer takes partitions of a topic: it has named this topic, or no topics at all.
CREATE OR REPLACE FUNCTION may_hold(subscription_id bigint, consumer text, topic_id bigint) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN count(*) = 0 OR bool_or(t.topic_id = may_hold.topic_id)
    FROM consumer_topics AS t
    WHERE t.subscription_id = may_hold.subscription_id AND t.consumer = may_hold.consumer;
END
$$;

-- name: shared_topics
-- The topics of a subscription that a consumer takes, in groups: the topics of one group are taken by the same
-- consumers, and each group is shared out by itself. There is one group of all topics (NULL) when no consumer has
-- named topics.
CREATE OR REPLACE FUNCTION shared_topics(subscription_id bigint, consumer text) RETURNS TABLE (topic_ids bigint[])
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM consumer_topics AS t WHERE t.subscription_id = shared_topics.subscription_id) THEN
        RETURN QUERY SELECT NULL::bigint[];
        RETURN;
    END IF;
    RETURN QUERY
    SELECT array_agg(e.topic_id ORDER BY e.topic_id)
    FROM (
        SELECT r.topic_id, array_agg(c.id ORDER BY c.id) AS takers
        FROM subscription_topics AS r
        JOIN consumers AS c ON c.subscription_id = r.subscription_id AND may_hold(c.subscription_id, c.id, r.topic_id)
        WHERE r.subscription_id = shared_topics.subscription_id
        GROUP BY r.topic_id
    ) AS e
    WHERE shared_topics.consumer = ANY (e.takers)
    GROUP BY e.takers
    ORDER BY 1;
END
$$;

-- name: require_listed
-- Checks the topics to which a consumer limits itself (a JSON array; NULL for all topics of the subscription). Raises
-- PS002, PS003, PS006, PS013, PS030 to PS034.
CREATE PROCEDURE require_listed(owner_id BIGINT, subscription LONGTEXT, topics JSON)
READS SQL DATA
BEGIN
    DECLARE address VARCHAR(5000);
    DECLARE topic_id BIGINT;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE given CURSOR FOR
        SELECT g.address FROM JSON_TABLE(topics, '$[*]' COLUMNS (address VARCHAR(5000) PATH '$')) AS g;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    IF topics IS NOT NULL THEN
        IF COALESCE(JSON_TYPE(topics), '') <> 'ARRAY' OR JSON_LENGTH(topics) = 0 THEN
            CALL refuse('PS006', 'the topics of the consumer are not a list of at least one topic');
        END IF;
        OPEN given;
        topic: LOOP
            FETCH given INTO address;
            IF done THEN
                LEAVE topic;
            END IF;
            CALL require_address(address);
            CALL require_topic_for(address, 'consume', topic_id);
            CALL require_reader(owner_id, topic_id, subscription, address);
        END LOOP;
        CLOSE given;
    END IF;
END;

-- name: limit_consumer
-- Records the topics of a consumer that joins, in place of those of an earlier run.
CREATE PROCEDURE limit_consumer(owner_id BIGINT, consumer VARCHAR(255), topics JSON)
BEGIN
    DELETE t FROM consumer_topics AS t WHERE t.subscription_id = owner_id AND t.consumer = consumer;
    IF topics IS NOT NULL THEN
        INSERT INTO consumer_topics (subscription_id, consumer, topic_id)
        SELECT DISTINCT owner_id, consumer, t.id
        FROM JSON_TABLE(topics, '$[*]' COLUMNS (address VARCHAR(4000) PATH '$')) AS g
        JOIN topics AS t ON t.address_hash = UNHEX(SHA2(g.address, 256));
    END IF;
END;

-- name: may_hold
-- Whether a consumer takes partitions of a topic: it has named this topic, or no topics at all.
CREATE FUNCTION may_hold(owner_id BIGINT, consumer VARCHAR(255), of_topic BIGINT) RETURNS BOOLEAN
READS SQL DATA
BEGIN
    DECLARE takes BOOLEAN;
    SELECT COUNT(t.topic_id) = 0 OR SUM(t.topic_id = of_topic) > 0 INTO takes
    FROM consumer_topics AS t WHERE t.subscription_id = owner_id AND t.consumer = consumer;
    RETURN takes;
END;

-- name: note_breaker
-- Records that a process of a relay has opened its breaker, or half opened it; 'closed' forgets it, and the processes
-- that are gone. consumer: '' for all processes of a queue's relay. Raises PS013, PS018.
CREATE PROCEDURE note_breaker(subscription LONGTEXT, consumer VARCHAR(255), state VARCHAR(10), error TEXT)
BEGIN
    DECLARE owner_id BIGINT;
    {{on error: CALL undo_call()}}
    CALL begin_call('note_breaker()');
    CALL require_subscription(subscription, owner_id);
    DELETE b
    FROM relay_breakers AS b LEFT JOIN consumers AS c ON c.subscription_id = b.subscription_id AND c.id = b.consumer
    WHERE b.subscription_id = owner_id
      AND ((c.id IS NULL AND b.consumer <> '') OR (state = 'closed' AND b.consumer = consumer));
    IF state <> 'closed' THEN
        INSERT INTO relay_breakers (subscription_id, consumer, state, error, changed_at)
        VALUES (owner_id, consumer, state, LEFT(error, 2000), UTC_TIMESTAMP(6))
        ON DUPLICATE KEY UPDATE state = VALUES(state), error = VALUES(error), changed_at = VALUES(changed_at);
    END IF;
    CALL end_call();
END;

-- name: relay_status
-- What a relay does in each partition, beside its lag: how many events a second it has passed in the last minute (from
-- its last 1,000 commits), the attempts of its open block with the last error, what its rules have left out, and
-- whether its holder's breaker is open (NULL: closed).
CREATE PROCEDURE relay_status(subscription LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE owner_id BIGINT;
    CALL refuse_serializable('relay_status()');
    SELECT MAX(s.id) INTO owner_id
    FROM subscriptions AS s
    WHERE s.name_hash = UNHEX(SHA2(subscription, 256)) AND NOT reads_unseen(s.id);
    SELECT o.topic, o.`partition`, o.passed AS events_per_second, COALESCE(f.attempt, 0) AS attempts,
           COALESCE(f.error, b.error) AS last_error, f.failed_at, COALESCE(w.left_out, 0) AS left_out,
           b.state AS breaker, b.changed_at AS breaker_at
    FROM (
        SELECT t.address AS topic, p.number AS `partition`, p.id AS part_id, l.holder,
               passed_a_second(owner_id, p.id) AS passed, failed_block(owner_id, p.id) AS block_id
        FROM leases AS l
        JOIN partitions AS p ON p.id = l.partition_id
        JOIN topics AS t ON t.id = p.topic_id
        WHERE l.subscription_id = owner_id 
          AND (NOT t.restricted AND @penstock_acting IS NULL OR has_right(t.namespace_id, 'read'))
    ) AS o
    LEFT JOIN consumers AS c ON c.subscription_id = owner_id AND c.id = o.holder AND c.deadline > UTC_TIMESTAMP(6)
    LEFT JOIN relay_breakers AS b ON b.subscription_id = owner_id AND b.consumer = c.id
    LEFT JOIN relay_places AS w ON w.subscription_id = owner_id AND w.partition_id = o.part_id AND w.place = ''
    LEFT JOIN relay_failures AS f
        ON f.block_id = o.block_id
        AND f.attempt = (SELECT MAX(g.attempt) FROM relay_failures AS g WHERE g.block_id = o.block_id)
    ORDER BY o.topic, o.`partition`;
END;

-- name: hold_sequencer
-- Waits for the pass of the sequencer that is under way and keeps the next one from
-- beginning until the transaction ends.
CREATE PROCEDURE hold_sequencer()
BEGIN
    DECLARE locked BOOLEAN;
    SELECT s.singleton INTO locked FROM sequencer AS s FOR UPDATE;
END;

-- name: lock_readers
-- The subscriptions (a JSON array of ids) that read one of the topics, locked so that none of them is deleted
-- meanwhile: an unsubscribe that is under way has to end first. The caller has locked the topics, so no subscription
-- is added.
CREATE PROCEDURE lock_readers(topic_ids JSON, OUT readers JSON)
BEGIN
    DECLARE how_many INT;
    DECLARE limit_before BIGINT UNSIGNED DEFAULT @@SESSION.group_concat_max_len;
    {{on error: SET SESSION group_concat_max_len = limit_before}}
    SET SESSION group_concat_max_len = 4294967295;
    SELECT COALESCE(JSON_ARRAYAGG(l.id), JSON_ARRAY()), COUNT(l.id) INTO readers, how_many
    FROM (
        SELECT s.id
        FROM subscriptions AS s
        WHERE s.id IN (
            SELECT r.subscription_id
            FROM subscription_topics AS r
            WHERE r.topic_id IN (SELECT j.id FROM JSON_TABLE(topic_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS j))
        ORDER BY s.id
        -- The limit keeps MariaDB from merging the two queries.
        LIMIT 1000000
        FOR UPDATE
    ) AS l;
    SET SESSION group_concat_max_len = limit_before;
    IF JSON_LENGTH(readers) <> how_many THEN
        CALL refuse('PS019', 'not all subscriptions of the topics were found');
    END IF;
END;

-- name: drop_topics
-- Deletes topics (a JSON array of ids) that the caller has locked. Their subscriptions continue without them. Their
-- events are logically gone at once, and the sequencer discards what transactions that still saw the topics publish
-- to them. The sequencer is held last, so that the log never waits for a consumer. Refused for a topic under a legal
-- hold, and for one that a subscription publishes its dead letters to. Raises PS020.
CREATE PROCEDURE drop_topics(topic_ids JSON, with_subscriptions BOOLEAN)
BEGIN
    DECLARE readers JSON;
    DECLARE held_by VARCHAR(500);
    SELECT MIN(h.name) INTO held_by
    FROM JSON_TABLE(topic_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS j
    JOIN legal_holds AS h ON h.topic_id = j.id AND h.released_at IS NULL;
    IF held_by IS NOT NULL THEN
        CALL refuse('PS020', CONCAT('the legal hold "', LEFT(held_by, 60), '" is on the topic'));
    END IF;
    CALL lock_readers(topic_ids, readers);
    CALL refuse_forwarding(topic_ids);
    IF JSON_LENGTH(readers) > 0 AND with_subscriptions IS NOT TRUE THEN
        CALL refuse('PS020', CONCAT(told_subscription(JSON_EXTRACT(readers, '$[0]')), ' reads the topic'));
    END IF;
    CALL find_doomed(topic_ids);
    -- DELETE and UPDATE lock all that they read. So they use ids that were selected before, and find the rows that
    -- they change by a key: a scan would wait for transactions that change other topics, and reading here what is
    -- changed below could deadlock with a merge.
    DELETE l
    FROM doomed_partitions AS p
    STRAIGHT_JOIN JSON_TABLE(readers, '$[*]' COLUMNS (id BIGINT PATH '$')) AS r
    STRAIGHT_JOIN leases AS l FORCE INDEX (PRIMARY) ON l.subscription_id = r.id AND l.partition_id = p.id;
    DELETE a
    FROM doomed_partitions AS p
    STRAIGHT_JOIN JSON_TABLE(readers, '$[*]' COLUMNS (id BIGINT PATH '$')) AS r
    STRAIGHT_JOIN archive_readers AS a FORCE INDEX (PRIMARY) ON a.subscription_id = r.id AND a.partition_id = p.id;
    DELETE a
    FROM doomed_partitions AS p
    STRAIGHT_JOIN JSON_TABLE(readers, '$[*]' COLUMNS (id BIGINT PATH '$')) AS r
    STRAIGHT_JOIN attempts AS a FORCE INDEX (PRIMARY) ON a.subscription_id = r.id AND a.partition_id = p.id;
    DELETE k
    FROM doomed_partitions AS p
    STRAIGHT_JOIN JSON_TABLE(readers, '$[*]' COLUMNS (id BIGINT PATH '$')) AS r
    STRAIGHT_JOIN relay_marks AS k FORCE INDEX (PRIMARY) ON k.subscription_id = r.id AND k.partition_id = p.id;
    DELETE f
    FROM doomed_partitions AS p
    STRAIGHT_JOIN relay_floors AS f FORCE INDEX (PRIMARY) ON f.partition_id = p.id;
    DELETE o
    FROM doomed_partitions AS p
    STRAIGHT_JOIN JSON_TABLE(readers, '$[*]' COLUMNS (id BIGINT PATH '$')) AS r
    STRAIGHT_JOIN left_out AS o FORCE INDEX (PRIMARY) ON o.subscription_id = r.id AND o.partition_id = p.id;
    CALL forget_queue(readers);
    -- After what the workers of queues have rejected until now.
    -- In the order of lock_letters.
    DELETE d
    FROM JSON_TABLE(readers, '$[*]' COLUMNS (id BIGINT PATH '$')) AS r
    STRAIGHT_JOIN doomed_partitions AS p
    STRAIGHT_JOIN dead_letters AS d FORCE INDEX (PRIMARY) ON d.subscription_id = r.id AND d.partition_id = p.id;
    DELETE c
    FROM JSON_TABLE(topic_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS j
    STRAIGHT_JOIN letter_copies AS c FORCE INDEX (letter_copies_topic) ON c.topic_id = j.id;
    DELETE c
    FROM doomed_partitions AS p
    STRAIGHT_JOIN letter_copies AS c FORCE INDEX (letter_copies_origin) ON c.partition_id = p.id;
    DELETE a
    FROM JSON_TABLE(topic_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS j
    STRAIGHT_JOIN relay_arrivals AS a FORCE INDEX (PRIMARY) ON a.topic_id = j.id;
    DELETE s
    FROM JSON_TABLE(topic_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS j
    STRAIGHT_JOIN subscription_topics AS s FORCE INDEX (subscription_topics_topic) ON s.topic_id = j.id;
    DELETE r
    FROM JSON_TABLE(topic_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS j
    STRAIGHT_JOIN retention_policies AS r FORCE INDEX (PRIMARY) ON r.topic_id = j.id;
    DELETE b
    FROM JSON_TABLE(topic_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS j
    STRAIGHT_JOIN bookmarks AS b FORCE INDEX (PRIMARY) ON b.topic_id = j.id;
    DELETE s
    FROM JSON_TABLE(topic_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS j
    STRAIGHT_JOIN topic_schemas AS s FORCE INDEX (PRIMARY) ON s.topic_id = j.id;
    DELETE s
    FROM doomed_partitions AS p
    STRAIGHT_JOIN history_starts AS s FORCE INDEX (PRIMARY) ON s.partition_id = p.id;
    DELETE s
    FROM doomed_partitions AS p
    STRAIGHT_JOIN suspected_copies AS s FORCE INDEX (PRIMARY) ON s.partition_id = p.id;
    -- The requests first: when they are gone, nothing is rehydrated any more.
    DELETE b, u
    FROM JSON_TABLE(topic_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS j
    STRAIGHT_JOIN backfill_requests AS b FORCE INDEX (backfill_requests_topic) ON b.topic_id = j.id
    LEFT JOIN backfill_units AS u FORCE INDEX (PRIMARY) ON u.request = b.id;
    DELETE e
    FROM doomed_partitions AS p
    STRAIGHT_JOIN rehydrated_epochs AS e FORCE INDEX (PRIMARY) ON e.partition_id = p.id;
    DELETE e
    FROM doomed_partitions AS p
    STRAIGHT_JOIN rehydrated_events AS e FORCE INDEX (PRIMARY) ON e.partition_id = p.id;
    CALL forget_policies('topic', topic_ids);
    CALL refresh_readers(readers);
    CALL hold_sequencer();
    INSERT INTO deleted_topics (topic_id, address, deleted_by)
    SELECT t.id, t.address, principal()
    FROM topics AS t JOIN JSON_TABLE(topic_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS j ON j.id = t.id;
    -- Read again, now that no pass is under way: where the log of each partition ends.
    CALL find_doomed(topic_ids);
    UPDATE doomed_partitions AS n
    STRAIGHT_JOIN partitions AS p FORCE INDEX (PRIMARY) ON p.id = n.id
    SET p.low_sequence = n.low;
    DELETE FROM doomed_partitions;
    DELETE t
    FROM JSON_TABLE(topic_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS j
    STRAIGHT_JOIN topics AS t FORCE INDEX (PRIMARY) ON t.id = j.id;
END;

-- name: find_doomed
-- Puts the partitions of topics (a JSON array of ids) into the session's table doomed_partitions, with what
-- their low sequence will be. There may be millions of them, and the session's settings or max_allowed_packet
-- may leave no room for an array of them.
CREATE PROCEDURE find_doomed(topic_ids JSON)
BEGIN
    CREATE TEMPORARY TABLE IF NOT EXISTS doomed_partitions (
        id BIGINT NOT NULL PRIMARY KEY, low BIGINT NOT NULL
    ) ENGINE = InnoDB;
    DELETE FROM doomed_partitions;
    INSERT INTO doomed_partitions (id, low)
    SELECT STRAIGHT_JOIN p.id, COALESCE((
            SELECT c.first_sequence + c.event_count
            FROM chunks AS c
            WHERE c.partition_id = p.id
            ORDER BY c.partition_id DESC, c.first_sequence DESC
            LIMIT 1), 1)
    FROM JSON_TABLE(topic_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS j JOIN partitions AS p ON p.topic_id = j.id;
END;

-- name: find_bookmarked
-- The position of a bookmark in a partition; 0 in a partition that was added after it was placed. Raises PS021, PS029.
CREATE PROCEDURE find_bookmarked(of_partition BIGINT, name LONGTEXT, OUT wanted BIGINT)
READS SQL DATA
BEGIN
    DECLARE source_id, watermark BIGINT;
    DECLARE placed_in, present, lost, others INT;
    SELECT MAX(p.topic_id) INTO source_id FROM partitions AS p WHERE p.id = of_partition;
    SELECT MAX(h.history) INTO present FROM histories AS h;
    SELECT MAX(b.position), MAX(b.history), MAX(b.lost_in) INTO wanted, placed_in, lost
    FROM bookmarks AS b
    WHERE b.topic_id = source_id AND b.name = name AND b.partition_id = of_partition;
    IF wanted IS NULL THEN
        SELECT COUNT(*) INTO others FROM bookmarks AS b WHERE b.topic_id = source_id AND b.name = name;
        IF others = 0 THEN
            CALL refuse('PS029', CONCAT('the topic has no bookmark "', LEFT(name, 80), '"'));
        END IF;
        SET wanted = 0;
    ELSE
        SET watermark = high_watermark(of_partition);
        IF lost IS NOT NULL OR placed_in > present OR wanted > watermark THEN
            CALL refuse('PS021', CONCAT('a restore has lost sequence ', wanted, ' of partition ', of_partition & 65535,
                                        ', after which the bookmark "', LEFT(name, 40), '" stands'));
        END IF;
    END IF;
END;

-- name: find_position_in
-- Where a subscription stands in a partition. Raises PS013.
CREATE PROCEDURE find_position_in(subscription LONGTEXT, of_partition BIGINT, OUT stands BIGINT)
READS SQL DATA
BEGIN
    DECLARE owner_id BIGINT;
    CALL find_subscription(subscription, owner_id);
    SET stands = current_position(owner_id, of_partition);
    IF stands IS NULL THEN
        CALL refuse('PS013', CONCAT('subscription "', LEFT(subscription, 60), '" does not read the topic'));
    END IF;
END;

-- name: find_plain_start
-- A start in the words of find_start, for one that is written in another way: a JSON object of starts, by the ids of
-- partitions; 'bookmark:NAME'; or 'subscription:NAME', which is where that one stands. Raises PS006, PS013, PS021,
-- PS029.
CREATE PROCEDURE find_plain_start(of_partition BIGINT, start LONGTEXT, OUT plain LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE stands BIGINT;
    SET plain = start;
    IF start LIKE '{%' THEN
        SET plain = IF(JSON_VALID(start), JSON_UNQUOTE(JSON_EXTRACT(start, CONCAT('$."', of_partition, '"'))), NULL);
        IF plain IS NULL OR plain = 'null' THEN
            CALL refuse('PS006', CONCAT('no start is named for partition ', of_partition & 65535));
        END IF;
    END IF;
    IF plain LIKE 'bookmark:%' THEN
        CALL find_bookmarked(of_partition, SUBSTR(plain, 10), stands);
        SET plain = stands + 1;
    ELSEIF plain LIKE 'subscription:%' THEN
        CALL find_position_in(SUBSTR(plain, 14), of_partition, stands);
        SET plain = stands + 1;
    END IF;
END;

-- name: place_bookmark_in
-- Places a bookmark in each partition of a topic that the caller has locked.
CREATE PROCEDURE place_bookmark_in(source_id BIGINT, name LONGTEXT, start LONGTEXT)
BEGIN
    DECLARE part_id, wanted BIGINT;
    DECLARE present INT;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE parts CURSOR FOR SELECT p.id FROM partitions AS p WHERE p.topic_id = source_id ORDER BY p.id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    SELECT MAX(h.history) INTO present FROM histories AS h;
    OPEN parts;
    part: LOOP
        FETCH parts INTO part_id;
        IF done THEN
            LEAVE part;
        END IF;
        CALL find_start(part_id, start, wanted);
        INSERT INTO bookmarks (topic_id, name, partition_id, position, history, placed_at, placed_by)
        VALUES (source_id, name, part_id, wanted, present, UTC_TIMESTAMP(6), user_part(USER()));
    END LOOP;
    CLOSE parts;
END;

-- name: place_bookmark
-- Gives a position of a topic a name, in all its partitions: a start as in subscribe. A bookmark can be used wherever
-- a start is given, as 'bookmark:NAME'. It keeps no event from being removed. A bookmark is never moved: drop it, and
-- place it again. Returns the last sequence before it. Raises PS002, PS003, PS006, PS007, PS012, PS013, PS016, PS018,
-- PS019, PS021, PS029, PS030, PS031, PS033, PS034.
CREATE PROCEDURE place_bookmark(topic LONGTEXT, name LONGTEXT, start LONGTEXT)
BEGIN
    DECLARE own, known BIGINT;
    DECLARE topic_partitions INT;
    {{on error: CALL undo_call()}}
    CALL begin_call('place_bookmark()');
    CALL require_read_committed('place_bookmark()');
    CALL lock_topic(topic, 'consume', own, topic_partitions);
    CALL require_name(name, 'bookmark');
    SELECT COUNT(*) INTO known FROM bookmarks AS b WHERE b.topic_id = own AND b.name = name;
    IF known > 0 THEN
        CALL refuse('PS007', CONCAT('the topic has a bookmark "', LEFT(name, 80), '"'));
    END IF;
    CALL place_bookmark_in(own, name, start);
    SELECT p.number AS `partition`, b.position, b.history
    FROM bookmarks AS b JOIN partitions AS p ON p.id = b.partition_id
    WHERE b.topic_id = own AND b.name = name
    ORDER BY p.number;
    CALL end_call();
END;

-- name: drop_bookmark
-- Removes a bookmark of a topic. Returns whether there was one of this name. Raises PS002, PS018.
CREATE PROCEDURE drop_bookmark(topic LONGTEXT, name LONGTEXT)
BEGIN
    DECLARE own BIGINT;
    DECLARE topic_partitions INT;
    DECLARE is_dropped BOOLEAN;
    {{on error: CALL undo_call()}}
    CALL begin_call('drop_bookmark()');
    CALL lock_topic(topic, 'consume', own, topic_partitions);
    DELETE b FROM bookmarks AS b FORCE INDEX (PRIMARY) WHERE b.topic_id = own AND b.name = name;
    SET is_dropped = ROW_COUNT() > 0;
    SELECT is_dropped AS dropped;
    CALL end_call();
END;

-- name: list_bookmarks
-- The bookmarks of one topic, or of all (NULL) that the login may see, with the last sequence before each in every
-- partition. is_lost: a restore has lost that event. Raises PS002.
CREATE PROCEDURE list_bookmarks(of_topic LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE only_id BIGINT;
    DECLARE present INT;
    CALL refuse_serializable('list_bookmarks()');
    IF of_topic IS NOT NULL THEN
        CALL find_topic(of_topic, only_id);
    END IF;
    SELECT MAX(h.history) INTO present FROM histories AS h;
    SELECT t.address AS topic, b.name, p.number AS `partition`, b.position, b.history,
           b.lost_in IS NOT NULL OR b.history > present OR b.position > high_watermark(p.id) AS is_lost,
           b.placed_at, b.placed_by
    FROM bookmarks AS b JOIN topics AS t ON t.id = b.topic_id JOIN partitions AS p ON p.id = b.partition_id
    WHERE t.id = COALESCE(only_id, t.id) AND (NOT t.restricted OR has_right(t.namespace_id, 'any'))
    ORDER BY CAST(t.address AS BINARY), b.placed_at, b.name, p.number;
END;

-- name: bookmark_positions
-- The last sequence before a bookmark in each partition of a topic; 0 in a partition that was added later. Raises
-- PS002, PS021, PS029.
CREATE PROCEDURE bookmark_positions(topic LONGTEXT, name LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE source_id, part_id, wanted BIGINT;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE found_positions JSON DEFAULT '{}';
    DECLARE parts CURSOR FOR SELECT p.id FROM partitions AS p WHERE p.topic_id = source_id ORDER BY p.id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    CALL refuse_serializable('bookmark_positions()');
    CALL find_topic(topic, source_id);
    OPEN parts;
    part: LOOP
        FETCH parts INTO part_id;
        IF done THEN
            LEAVE part;
        END IF;
        CALL find_bookmarked(part_id, name, wanted);
        SET found_positions = JSON_SET(found_positions, CONCAT('$."', part_id, '"'), wanted);
    END LOOP;
    CLOSE parts;
    SELECT p.number AS `partition`,
           CAST(JSON_EXTRACT(found_positions, CONCAT('$."', p.id, '"')) AS SIGNED) AS `position`
    FROM partitions AS p
    WHERE p.topic_id = source_id
    ORDER BY p.number;
END;

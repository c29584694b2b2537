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
        CALL require_topic(of_topic, only_id);
    END IF;
    SELECT MAX(h.history) INTO present FROM histories AS h;
    SELECT t.address AS topic, b.name, p.number AS `partition`, b.position, b.history,
           b.lost_in IS NOT NULL OR b.history > present OR b.position > high_watermark(p.id) AS is_lost,
           b.placed_at, b.placed_by
    FROM bookmarks AS b JOIN topics AS t ON t.id = b.topic_id JOIN partitions AS p ON p.id = b.partition_id
    WHERE t.id = COALESCE(only_id, t.id)
      AND (NOT t.restricted AND @penstock_acting IS NULL OR has_right(t.namespace_id, 'any'))
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
    CALL require_topic(topic, source_id);
    OPEN parts;
    part: LOOP
        FETCH parts INTO part_id;
        IF done THEN
            LEAVE part;
        END IF;
        CALL bookmarked(part_id, name, wanted);
        SET found_positions = JSON_SET(found_positions, CONCAT('$."', part_id, '"'), wanted);
    END LOOP;
    CLOSE parts;
    SELECT p.number AS `partition`,
           CAST(JSON_EXTRACT(found_positions, CONCAT('$."', p.id, '"')) AS SIGNED) AS `position`
    FROM partitions AS p
    WHERE p.topic_id = source_id
    ORDER BY p.number;
END;

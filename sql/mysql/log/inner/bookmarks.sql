-- name: bookmarked
-- The position of a bookmark in a partition; 0 in a partition that was added after it was placed. Raises PS021, PS029.
CREATE PROCEDURE bookmarked(of_partition BIGINT, name LONGTEXT, OUT wanted BIGINT)
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
        CALL start_position(part_id, start, wanted);
        INSERT INTO bookmarks (topic_id, name, partition_id, position, history, placed_at, placed_by)
        VALUES (source_id, name, part_id, wanted, present, UTC_TIMESTAMP(6), principal());
    END LOOP;
    CLOSE parts;
END;

-- name: bookmarked
-- The position of a bookmark in a partition; 0 in a partition that was added after it was placed. Raises PS021, PS029.
CREATE OR REPLACE FUNCTION bookmarked(partition_id bigint, name text) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    source_id bigint := (SELECT p.topic_id FROM partitions AS p WHERE p.id = bookmarked.partition_id);
    placed bookmarks%ROWTYPE;
BEGIN
    SELECT b.* INTO placed
    FROM bookmarks AS b
    WHERE b.topic_id = source_id AND b.name = bookmarked.name AND b.partition_id = bookmarked.partition_id;
    IF FOUND THEN
        IF placed.lost_in IS NOT NULL OR placed.history > current_history()
                OR placed.position > high_watermark(placed.partition_id) THEN
            PERFORM refuse('PS021', format('the bookmark "%s" stands after sequence %s of partition %s in history %s, '
                                           'and a restore has lost that event', left(name, 200), placed.position,
                                           placed.partition_id & 65535, placed.history),
                           'Drop the bookmark, and place it where the log has that event now, if it was published '
                           'again.');
        END IF;
        RETURN placed.position;
    ELSIF NOT EXISTS (SELECT FROM bookmarks AS b WHERE b.topic_id = source_id AND b.name = bookmarked.name) THEN
        PERFORM refuse('PS029', format('the topic has no bookmark "%s"', left(name, 200)),
                       'penstock bookmark list shows those that there are.');
    END IF;
    RETURN 0;
END
$$;

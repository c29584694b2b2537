-- name: place_bookmark
-- Gives a position of a topic a name, in all its partitions: a start as in subscribe. A bookmark can be used wherever
-- a start is given, as 'bookmark:NAME'. It keeps no event from being removed. A bookmark is never moved: drop it, and
-- place it again. Returns the last sequence before it. Raises PS002, PS003, PS006, PS007, PS012, PS013, PS016, PS018,
-- PS019, PS021, PS029, PS030, PS031, PS033, PS034.
CREATE OR REPLACE FUNCTION place_bookmark(topic text, name text, start text DEFAULT 'latest')
RETURNS TABLE (partition integer, "position" bigint, history integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    own topics%ROWTYPE;
BEGIN
    PERFORM commit_durably();
    PERFORM require_read_committed('place_bookmark()');
    own := lock_topic(topic, 'consume');
    PERFORM require_name(name, 'bookmark');
    IF EXISTS (SELECT FROM bookmarks AS b WHERE b.topic_id = own.id AND b.name = place_bookmark.name) THEN
        PERFORM refuse('PS007', format('the topic "%s" has a bookmark "%s"', left(topic, 200), left(name, 200)),
                       'Choose another name, or drop that one first.');
    END IF;
    RETURN QUERY
    WITH placed AS (
        INSERT INTO bookmarks AS b (topic_id, name, partition_id, position, history, placed_at, placed_by)
        SELECT own.id, place_bookmark.name, p.id, start_position(p.id, p.low_sequence, start), current_history(),
               clock_timestamp(), principal()
        FROM partitions AS p
        WHERE p.topic_id = own.id
        RETURNING b.partition_id, b.position, b.history
    )
    SELECT p.number, b.position, b.history
    FROM placed AS b JOIN partitions AS p ON p.id = b.partition_id
    ORDER BY p.number;
END
$$;

-- name: drop_bookmark
-- Removes a bookmark of a topic. Returns whether there was one of this name. Raises PS002.
CREATE OR REPLACE FUNCTION drop_bookmark(topic text, name text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    own topics%ROWTYPE := lock_topic(topic, 'consume');
BEGIN
    PERFORM commit_durably();
    DELETE FROM bookmarks AS b WHERE b.topic_id = own.id AND b.name = drop_bookmark.name;
    RETURN FOUND;
END
$$;

-- name: list_bookmarks
-- The bookmarks of one topic, or of all (NULL) that the login may see, with the last sequence before each in every
-- partition. is_lost: a restore has lost that event. Raises PS002.
CREATE OR REPLACE FUNCTION list_bookmarks(of_topic text DEFAULT NULL)
RETURNS TABLE (
    topic text, name text, partition integer, "position" bigint, history integer, is_lost boolean,
    placed_at timestamptz, placed_by text
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    only_id bigint := CASE WHEN of_topic IS NOT NULL THEN require_topic(of_topic) END;
BEGIN
    RETURN QUERY
    SELECT t.address, b.name, p.number, b.position, b.history,
           b.lost_in IS NOT NULL OR b.history > current_history() OR b.position > high_watermark(p.id),
           b.placed_at, b.placed_by
    FROM bookmarks AS b JOIN topics AS t ON t.id = b.topic_id JOIN partitions AS p ON p.id = b.partition_id
    WHERE t.id = COALESCE(only_id, t.id)
      AND (NOT t.restricted AND (SELECT as_login()) OR has_right(t.namespace_id, 'any'))
    ORDER BY t.address, b.placed_at, b.name, p.number;
END
$$;

-- name: bookmark_positions
-- The last sequence before a bookmark in each partition of a topic; 0 in a partition that was added later. Raises
-- PS002, PS021, PS029.
CREATE OR REPLACE FUNCTION bookmark_positions(topic text, name text)
RETURNS TABLE (partition integer, "position" bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    source_id bigint := require_topic(topic);
BEGIN
    RETURN QUERY
    SELECT p.number, bookmarked(p.id, bookmark_positions.name)
    FROM partitions AS p
    WHERE p.topic_id = source_id
    ORDER BY p.number;
END
$$;

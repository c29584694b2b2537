-- name: place_hold
-- Places a legal hold on a topic, on one partition (NULL: all, also those that come later), or on a range of its
-- sequences (NULL: from the first, without an end): until release_hold retention removes nothing of it, and the topic
-- cannot be deleted. The name is unique among the open holds of the topic. Returns how many events of the range the
-- database no longer has: those are in the archive or gone. Raises PS002, PS003, PS005, PS006, PS007, PS030, PS031,
-- PS033, PS034.
CREATE OR REPLACE FUNCTION place_hold(
    topic text, name text, reason text, partition integer DEFAULT NULL, first_sequence bigint DEFAULT NULL,
    last_sequence bigint DEFAULT NULL
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    own topics%ROWTYPE := lock_topic(topic, 'operate');
    lowest bigint := COALESCE(first_sequence, 1);
BEGIN
    PERFORM commit_durably();
    PERFORM require_name(name, 'hold');
    PERFORM require_hold_reason(reason);
    IF partition IS NOT NULL THEN
        PERFORM require_partition(topic, partition);
    ELSIF first_sequence IS NOT NULL OR last_sequence IS NOT NULL THEN
        PERFORM refuse('PS006', 'a legal hold on sequences without a partition',
                       'Each partition counts its own sequences: name the partition.');
    END IF;
    IF lowest < 1 OR last_sequence < lowest THEN
        PERFORM refuse('PS006', format('a legal hold on the sequences %s to %s', lowest, last_sequence),
                       'Sequences start at 1, and the last one is not below the first.');
    END IF;
    IF EXISTS (
        SELECT FROM legal_holds AS h
        WHERE h.topic_id = own.id AND h.name = place_hold.name AND h.released_at IS NULL) THEN
        PERFORM refuse('PS007', format('the topic "%s" has an open legal hold "%s"', left(topic, 200), left(name, 200)),
                       'Choose another name, or release that one first.');
    END IF;
    INSERT INTO legal_holds (topic_id, name, partition, first_sequence, last_sequence, reason, placed_by)
    VALUES (own.id, place_hold.name, place_hold.partition, lowest, place_hold.last_sequence, place_hold.reason,
            principal());
    RETURN (
        SELECT COALESCE(sum(GREATEST(
            LEAST(p.low_sequence - 1, COALESCE(place_hold.last_sequence, p.low_sequence)) - lowest + 1, 0)), 0)
        FROM partitions AS p
        WHERE p.topic_id = own.id AND p.number = COALESCE(place_hold.partition, p.number));
END
$$;

-- name: release_hold
-- Releases a legal hold of a topic; the record of it stays. Returns whether there was one of this name. Raises PS002,
-- PS006.
CREATE OR REPLACE FUNCTION release_hold(topic text, name text, reason text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    own topics%ROWTYPE := lock_topic(topic, 'operate');
BEGIN
    PERFORM commit_durably();
    PERFORM require_hold_reason(reason);
    UPDATE legal_holds AS h
    SET released_at = clock_timestamp(), released_by = principal(), release_reason = release_hold.reason
    WHERE h.topic_id = own.id AND h.name = release_hold.name AND h.released_at IS NULL;
    RETURN FOUND;
END
$$;

-- name: list_holds
-- The legal holds of one topic, or of all (NULL) that the login may see; with_released: also those that are over.
-- Raises PS002.
CREATE OR REPLACE FUNCTION list_holds(of_topic text DEFAULT NULL, with_released boolean DEFAULT false)
RETURNS TABLE (
    topic text, name text, partition integer, first_sequence bigint, last_sequence bigint, reason text,
    placed_at timestamptz, placed_by text, released_at timestamptz, released_by text, release_reason text
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    only_id bigint := CASE WHEN of_topic IS NOT NULL THEN require_topic(of_topic) END;
BEGIN
    RETURN QUERY
    SELECT t.address, h.name, h.partition, h.first_sequence, h.last_sequence, h.reason, h.placed_at, h.placed_by,
           h.released_at, h.released_by, h.release_reason
    FROM legal_holds AS h JOIN topics AS t ON t.id = h.topic_id
    WHERE t.id = COALESCE(only_id, t.id) AND (h.released_at IS NULL OR with_released)
      AND (NOT t.restricted AND (SELECT as_login()) OR has_right(t.namespace_id, 'any'))
    ORDER BY t.address, h.placed_at, h.name;
END
$$;

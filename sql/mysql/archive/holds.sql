-- name: place_hold
-- Places a legal hold on a topic, on one partition (NULL: all, also those that come later), or on a range of its
-- sequences (NULL: from the first, without an end): until release_hold retention removes nothing of it, and the topic
-- cannot be deleted. The name is unique among the open holds of the topic. Returns how many events of the range the
-- database no longer has: those are in the archive or gone. Raises PS002, PS003, PS005, PS006, PS007, PS018, PS030,
-- PS031, PS033, PS034.
CREATE PROCEDURE place_hold(
    topic LONGTEXT, name LONGTEXT, reason LONGTEXT, `partition` INT, first_sequence BIGINT, last_sequence BIGINT
)
BEGIN
    DECLARE own, known BIGINT;
    DECLARE topic_partitions INT;
    {{on error: CALL undo_call()}}
    CALL begin_call('place_hold()');
    CALL lock_topic(topic, 'operate', own, topic_partitions);
    CALL require_name(name, 'hold');
    CALL require_hold_reason(reason);
    CALL require_hold_range(topic, `partition`, first_sequence, last_sequence);
    SELECT COUNT(h.name) INTO known
    FROM legal_holds AS h
    WHERE h.topic_id = own AND h.released_at IS NULL AND h.name = name
    LOCK IN SHARE MODE;
    IF known > 0 THEN
        CALL refuse('PS007', CONCAT('the topic has an open legal hold "', LEFT(name, 80), '"'));
    END IF;
    INSERT INTO legal_holds (
        topic_id, name, number, first_sequence, last_sequence, reason, placed_at, placed_by)
    VALUES (own, name, `partition`, COALESCE(first_sequence, 1), last_sequence, reason, UTC_TIMESTAMP(6),
            principal());
    SELECT CAST(COALESCE(SUM(GREATEST(
        LEAST(p.low_sequence - 1, COALESCE(last_sequence, p.low_sequence)) - COALESCE(first_sequence, 1) + 1, 0)), 0)
        AS SIGNED) AS gone
    FROM partitions AS p
    WHERE p.topic_id = own AND p.number = COALESCE(`partition`, p.number);
    CALL end_call();
END;

-- name: release_hold
-- Releases a legal hold of a topic; the record of it stays. Returns whether there was one of this name. Raises PS002,
-- PS006, PS018.
CREATE PROCEDURE release_hold(topic LONGTEXT, name LONGTEXT, reason LONGTEXT)
BEGIN
    DECLARE own BIGINT;
    DECLARE topic_partitions INT;
    DECLARE is_released BOOLEAN;
    {{on error: CALL undo_call()}}
    CALL begin_call('release_hold()');
    CALL lock_topic(topic, 'operate', own, topic_partitions);
    CALL require_hold_reason(reason);
    UPDATE legal_holds AS h
    SET h.released_at = UTC_TIMESTAMP(6), h.released_by = principal(), h.release_reason = reason
    WHERE h.topic_id = own AND h.released_at IS NULL AND h.name = name;
    SET is_released = ROW_COUNT() > 0;
    SELECT is_released AS released;
    CALL end_call();
END;

-- name: list_holds
-- The legal holds of one topic, or of all (NULL) that the login may see; with_released: also those that are over.
-- Raises PS002.
CREATE PROCEDURE list_holds(of_topic LONGTEXT, with_released BOOLEAN)
READS SQL DATA
BEGIN
    DECLARE only_id BIGINT;
    CALL refuse_serializable('list_holds()');
    IF of_topic IS NOT NULL THEN
        CALL require_topic(of_topic, only_id);
    END IF;
    SELECT t.address AS topic, h.name, h.number AS `partition`, h.first_sequence, h.last_sequence, h.reason,
           h.placed_at, h.placed_by, h.released_at, h.released_by, h.release_reason
    FROM legal_holds AS h JOIN topics AS t ON t.id = h.topic_id
    WHERE t.id = COALESCE(only_id, t.id) AND (h.released_at IS NULL OR with_released)
      AND (NOT t.restricted AND @penstock_acting IS NULL OR has_right(t.namespace_id, 'any'))
    ORDER BY CAST(t.address AS BINARY), h.placed_at, h.name;
END;

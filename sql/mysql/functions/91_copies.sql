-- name: copies_of
-- Every copy of a topic's log epochs that was ever recorded: verified, or missing since changed_at
-- for the reason in detail; location, layout and first_row: see record_copy. Raises PS002.
CREATE PROCEDURE copies_of(topic LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE source_id BIGINT;
    CALL refuse_serializable('copies_of()');
    CALL find_topic(topic, source_id);
    SELECT p.number AS `partition`, c.log_epoch, c.target, c.state, c.detail, c.changed_at, c.location, c.layout,
           c.first_row
    FROM partitions AS p JOIN epoch_copies AS c ON c.partition_id = p.id
    WHERE p.topic_id = source_id
    ORDER BY p.number, c.log_epoch, c.target;
END;

-- name: installation_id
-- Whose the archive targets are that carry this id in their marker: it belongs to the database and goes with its
-- backups.
CREATE PROCEDURE installation_id()
READS SQL DATA
BEGIN
    CALL refuse_serializable('installation_id()');
    SELECT i.id FROM installation AS i;
END;

-- name: target_in_use
-- Whether copies were ever recorded on a target, whatever became of them: then a target that looks empty is not there.
CREATE PROCEDURE target_in_use(target VARCHAR(255))
READS SQL DATA
BEGIN
    CALL refuse_serializable('target_in_use()');
    SELECT EXISTS (SELECT * FROM epoch_copies AS c WHERE c.target = target) AS is_used;
END;

-- name: copies_on
-- The copies on a target that are recorded as verified, of the topics that the login may see: what a target has to hold
-- to be the one that they were written to.
CREATE PROCEDURE copies_on(target VARCHAR(255))
READS SQL DATA
BEGIN
    CALL refuse_serializable('copies_on()');
    SELECT t.known_as, p.number AS `partition`, e.log_epoch, e.event_count, e.last_sequence
    FROM epoch_copies AS c
    JOIN log_epochs AS e ON e.partition_id = c.partition_id AND e.log_epoch = c.log_epoch
    JOIN partitions AS p ON p.id = c.partition_id
    JOIN topics AS t ON t.id = p.topic_id
    WHERE c.target = target AND c.state = 'verified' AND (NOT t.restricted OR has_right(t.namespace_id, 'any'))
    ORDER BY t.known_as, p.number, e.log_epoch;
END;

-- name: current_history
-- The line of history that positions belong to now.
CREATE PROCEDURE current_history()
READS SQL DATA
BEGIN
    CALL refuse_serializable('current_history()');
    SELECT MAX(h.history) AS history FROM histories AS h;
END;

-- name: histories_of
-- The histories of the log, and why each began.
CREATE PROCEDURE histories_of()
READS SQL DATA
BEGIN
    CALL refuse_serializable('histories_of()');
    SELECT h.history, h.reason, h.opened_at FROM histories AS h ORDER BY h.history;
END;

-- name: history_starts_of
-- How far a reader outside the database may keep a position that it has in a history: to the lowest end of the log at
-- which a later history began. What is above is other events now, also when the log has grown beyond the position
-- since. No later history: the end of the log. NULL where a later history began before this was recorded. Raises
-- PS002.
CREATE PROCEDURE history_starts_of(topic VARCHAR(4000), history INT)
READS SQL DATA
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE later, recorded BIGINT;
    CALL refuse_serializable('history_starts_of()');
    CALL require_topic(topic, owner_id);
    SELECT COUNT(*) INTO later FROM histories AS h WHERE h.history > history;
    SELECT COUNT(DISTINCT s.history) INTO recorded FROM history_starts AS s WHERE s.history > history;
    SELECT p.number AS `partition`,
           CASE WHEN later = 0 THEN high_watermark(p.id)
                -- A partition that was not there when a history began held nothing then.
                WHEN recorded = later THEN (
                    SELECT IF(COUNT(*) = later, MIN(s.position), 0)
                    FROM history_starts AS s
                    WHERE s.partition_id = p.id AND s.history > history)
           END AS position
    FROM partitions AS p
    WHERE p.topic_id = owner_id
    ORDER BY p.number;
END;

-- name: reconcile
-- After a restore that lost commits: begins the next history, so that within one history no sequence means two
-- events, and lets stopped partitions continue. Returns the number of the new history. Raises PS006, PS018.
CREATE PROCEDURE reconcile(reason LONGTEXT)
BEGIN
    DECLARE opened INT;
    DECLARE leased BIGINT;
    DECLARE locked BOOLEAN;
    {{on error: CALL undo_call()}}
    CALL begin_call('reconcile()');
    CALL require_read_committed('reconcile()');
    IF COALESCE(reason, '') REGEXP '^[[:space:]]*$' THEN
        CALL refuse('PS006', 'a new history needs a reason: say what was restored, and from when');
    ELSEIF CHAR_LENGTH(reason) > 1000 THEN
        CALL refuse('PS006',
                    CONCAT('the reason of a history has ', CHAR_LENGTH(reason), ' characters, the limit is 1000'));
    END IF;
    -- The sequencer is locked last, as in a deletion, so that the log does not wait for a consumer that is
    -- inside a transaction.
    SELECT COUNT(*) INTO leased
    FROM (SELECT l.partition_id FROM leases AS l ORDER BY l.subscription_id, l.partition_id FOR UPDATE) AS held;
    SELECT s.singleton INTO locked FROM sequencer AS s FOR UPDATE;
    CALL open_history(reason, opened);
    SELECT opened AS reconcile;
    CALL end_call();
END;

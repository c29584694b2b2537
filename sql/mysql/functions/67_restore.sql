-- name: bring_back
-- Takes one lease from its holder when a history begins, and moves its position back to the end of the log if it is
-- beyond. lease_epoch rises above every value that can have been given out in the lost time.
CREATE PROCEDURE bring_back(owner_id BIGINT, part_id BIGINT, opened INT)
BEGIN
    DECLARE held_epoch, watermark, stands_at BIGINT;
    DECLARE held_by VARCHAR(255);
    SELECT GREATEST(l.lease_epoch, opened * 4294967296) + 1, l.holder INTO held_epoch, held_by
    FROM leases AS l WHERE l.subscription_id = owner_id AND l.partition_id = part_id
    FOR UPDATE;
    UPDATE leases AS l
    SET l.state = 'AVAILABLE', l.holder = NULL, l.acquired_at = NULL, l.release_deadline = NULL,
        l.lease_epoch = held_epoch
    WHERE l.subscription_id = owner_id AND l.partition_id = part_id;
    IF held_by IS NOT NULL THEN
        INSERT INTO lease_history (subscription_id, partition_id, lease_epoch, holder, `change`, at)
        VALUES (owner_id, part_id, held_epoch, held_by, 'history', UTC_TIMESTAMP(6));
    END IF;
    SET watermark = high_watermark(part_id), stands_at = current_position(owner_id, part_id);
    IF GREATEST(stands_at, current_reached(owner_id, part_id)) > watermark THEN
        INSERT INTO positions (subscription_id, partition_id, position, lease_epoch, reason, reached)
        VALUES (owner_id, part_id, LEAST(stands_at, watermark), held_epoch, 'history', watermark);
        CALL cut_back(owner_id, part_id, watermark);
    END IF;
END;

-- name: open_history
-- Begins the next history. A sequence that was read in the history before may be another event now. So every holder
-- loses its lease and has to ask for position and history again. Positions beyond the log are moved back to its end,
-- bookmarks beyond it are marked as lost, stopped partitions continue, and no id is given out twice. The caller has
-- locked the sequencer's row.
CREATE PROCEDURE open_history(reason TEXT, OUT opened INT)
BEGIN
    DECLARE owner_id, part_id BIGINT;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE leased CURSOR FOR
        SELECT l.subscription_id, l.partition_id FROM leases AS l ORDER BY l.subscription_id, l.partition_id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    CALL raise_counters();
    SELECT MAX(h.history) + 1 INTO opened FROM histories AS h;
    INSERT INTO histories (history, reason) VALUES (opened, LEFT(reason, 2000));
    INSERT INTO history_starts (partition_id, history, position)
    SELECT p.id, opened, high_watermark(p.id) FROM partitions AS p;
    OPEN leased;
    lease: LOOP
        FETCH leased INTO owner_id, part_id;
        IF done THEN
            LEAVE lease;
        END IF;
        CALL bring_back(owner_id, part_id, opened);
    END LOOP;
    CLOSE leased;
    CALL mark_lost_bookmarks(opened);
    DELETE FROM stops;
END;

-- name: mark_lost_bookmarks
-- Marks the bookmarks that lie beyond the end of the log: other events will get their sequences.
CREATE PROCEDURE mark_lost_bookmarks(opened INT)
BEGIN
    UPDATE bookmarks AS b SET b.lost_in = opened
    WHERE b.lost_in IS NULL AND b.position > high_watermark(b.partition_id);
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

-- name: stop_partition
-- Stops a partition for a subscription, or for all readers (0). Of several reports the one that is furthest
-- counts.
CREATE PROCEDURE stop_partition(part_id BIGINT, owner_id BIGINT, seen BIGINT, seen_history INT, source TEXT)
BEGIN
    DECLARE known_sequence BIGINT;
    DECLARE known_history INT;
    SELECT MAX(s.sequence), MAX(s.history) INTO known_sequence, known_history
    FROM stops AS s WHERE s.partition_id = part_id AND s.subscription_id = owner_id;
    IF known_history IS NULL OR seen_history > known_history
        OR (seen_history = known_history AND seen > known_sequence) THEN
        REPLACE INTO stops (partition_id, subscription_id, sequence, history, source)
        VALUES (part_id, owner_id, seen, seen_history, LEFT(source, 500));
    END IF;
END;

-- name: stop_reported
-- What report_positions does with each partition: a stop is for all readers where the login may operate the topic.
CREATE PROCEDURE stop_reported(
    partition_ids JSON, sequences JSON, seen_histories JSON, owner_id BIGINT, present INT, source TEXT, OUT known JSON
)
BEGIN
    DECLARE part_id, seen, of_namespace BIGINT;
    DECLARE seen_history, leased INT;
    DECLARE is_restricted, may_operate BOOLEAN;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE given CURSOR FOR
        SELECT p.id, g.sequence, h.history, t.restricted, t.namespace_id
        FROM JSON_TABLE(partition_ids, '$[*]' COLUMNS (place FOR ORDINALITY, id BIGINT PATH '$')) AS i
        JOIN JSON_TABLE(sequences, '$[*]' COLUMNS (place FOR ORDINALITY, sequence BIGINT PATH '$')) AS g
            ON g.place = i.place
        JOIN JSON_TABLE(seen_histories, '$[*]' COLUMNS (place FOR ORDINALITY, history INT PATH '$')) AS h
            ON h.place = i.place
        JOIN partitions AS p ON p.id = i.id
        JOIN topics AS t ON t.id = p.topic_id
        ORDER BY p.id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    SET known = JSON_ARRAY();
    OPEN given;
    part: LOOP
        FETCH given INTO part_id, seen, seen_history, is_restricted, of_namespace;
        IF done THEN
            LEAVE part;
        END IF;
        SET may_operate = NOT is_restricted;
        IF is_restricted THEN
            SET may_operate = has_right(of_namespace, 'operate');
        END IF;
        SELECT COUNT(*) INTO leased FROM leases AS l WHERE l.subscription_id = owner_id AND l.partition_id = part_id;
        IF may_operate OR leased > 0 THEN
            SET known = JSON_ARRAY_APPEND(known, '$', part_id);
            IF seen_history > present OR (seen_history = present AND seen > high_watermark(part_id)) THEN
                CALL stop_partition(part_id, IF(may_operate, 0, owner_id), seen, seen_history, source);
            END IF;
        END IF;
    END LOOP;
    CLOSE given;
END;

-- name: report_positions
-- Reports the positions (JSON arrays) that a program outside the database has seen: a sink, an archive, a registry or
-- a client. If a position lies beyond the log of the same history, a restore has lost commits, and the partition is
-- stopped until reconcile is called. It is stopped for all readers if the login may operate the topic, else for the
-- subscription that the caller names (or NULL). Returns for each partition whether it is stopped, where the log ends,
-- and the current history: a caller that has another history has to find out where to continue. There is no row for a
-- partition that is gone, or that the login may not operate and the subscription does not read. Raises PS006, PS013,
-- PS018.
CREATE PROCEDURE report_positions(
    partition_ids JSON, sequences JSON, histories JSON, source TEXT, subscription LONGTEXT
)
BEGIN
    DECLARE owner_id BIGINT DEFAULT 0;
    DECLARE present, given, wrong INT;
    DECLARE known JSON;
    {{on error: CALL undo_call()}}
    CALL begin_call('report_positions()');
    CALL require_read_committed('report_positions()');
    SET given = COALESCE(JSON_LENGTH(partition_ids), 0);
    SELECT COUNT(*) INTO wrong
    FROM JSON_TABLE(JSON_MERGE_PRESERVE(partition_ids, sequences, histories), '$[*]' COLUMNS (
        place FOR ORDINALITY, number BIGINT PATH '$')) AS g
    WHERE g.number IS NULL OR g.number < 0 OR (g.place > 2 * given AND g.number NOT BETWEEN 1 AND 2147483647);
    IF COALESCE(wrong > 0 OR source = '' OR JSON_LENGTH(sequences) <> given
                OR JSON_LENGTH(histories) <> given, TRUE) THEN
        CALL refuse('PS006', CONCAT('cannot record positions ', COALESCE(LEFT(sequences, 30), 'NULL'), ' of histories ',
                                    COALESCE(LEFT(histories, 30), 'NULL'), ', seen by "',
                                    COALESCE(LEFT(source, 30), ''), '"'));
    END IF;
    IF subscription IS NOT NULL THEN
        CALL find_subscription(subscription, owner_id);
    END IF;
    SELECT MAX(h.history) INTO present FROM histories AS h;
    CALL stop_reported(partition_ids, sequences, histories, owner_id, present, source, known);
    SELECT p.id AS partition_id, EXISTS (
               SELECT * FROM stops AS s
               WHERE s.partition_id = p.id AND s.subscription_id IN (0, owner_id) AND s.history >= present) AS stopped,
           high_watermark(p.id) AS high_watermark, present AS present_history
    FROM JSON_TABLE(known, '$[*]' COLUMNS (id BIGINT PATH '$')) AS j JOIN partitions AS p ON p.id = j.id
    ORDER BY p.id;
    CALL end_call();
END;

-- name: restore_status
-- What is beyond the end of the log after a restore: stopped partitions, and positions of subscriptions. Without those
-- of topics and subscriptions that the login may not see.
CREATE PROCEDURE restore_status()
READS SQL DATA
BEGIN
    DECLARE present INT;
    CALL refuse_serializable('restore_status()');
    SELECT MAX(h.history) INTO present FROM histories AS h;
    SELECT t.address AS topic, p.number AS `partition`, b.watermark AS high_watermark, b.sequence, b.history, b.source,
           b.reported_at
    FROM (
        SELECT s.partition_id, s.sequence, s.history,
               CONCAT(s.source, COALESCE(CONCAT(' (stops "', o.name, '" alone)'), '')) AS source, s.reported_at,
               high_watermark(s.partition_id) AS watermark
        FROM stops AS s LEFT JOIN subscriptions AS o ON o.id = s.subscription_id
        WHERE s.history >= present AND (o.id IS NULL OR NOT reads_hidden(o.id))
        UNION ALL
        SELECT l.partition_id, current_position(l.subscription_id, l.partition_id), present,
               CONCAT('subscription "', o.name, '"'), NULL, high_watermark(l.partition_id)
        FROM leases AS l JOIN subscriptions AS o ON o.id = l.subscription_id
        WHERE current_position(l.subscription_id, l.partition_id) > high_watermark(l.partition_id)
          AND NOT reads_hidden(o.id)
    ) AS b
    JOIN partitions AS p ON p.id = b.partition_id
    JOIN topics AS t ON t.id = p.topic_id
    WHERE NOT t.restricted OR has_right(t.namespace_id, 'any')
    ORDER BY t.address, p.number, b.source;
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
    CALL find_topic(topic, owner_id);
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

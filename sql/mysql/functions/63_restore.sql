-- name: bring_back
-- Takes one lease from its holder when a history begins, and brings its position back to the end of the log if it lies beyond.
-- lease_epoch rises above all that the lost time can have given out.
CREATE PROCEDURE bring_back(owner_id BIGINT, part_id BIGINT, opened INT)
BEGIN
    DECLARE held_epoch BIGINT;
    DECLARE held_by VARCHAR(255);
    SELECT GREATEST(l.lease_epoch, opened * 4294967296) + 1, l.holder INTO held_epoch, held_by
    FROM leases AS l WHERE l.subscription_id = owner_id AND l.partition_id = part_id
    FOR UPDATE;
    UPDATE leases AS l
    SET l.state = 'AVAILABLE', l.holder = NULL, l.acquired_at = NULL, l.release_deadline = NULL, l.lease_epoch = held_epoch
    WHERE l.subscription_id = owner_id AND l.partition_id = part_id;
    IF held_by IS NOT NULL THEN
        INSERT INTO lease_history (subscription_id, partition_id, lease_epoch, holder, `change`, at)
        VALUES (owner_id, part_id, held_epoch, held_by, 'history', UTC_TIMESTAMP(6));
    END IF;
    IF current_position(owner_id, part_id) > high_watermark(part_id) THEN
        INSERT INTO positions (subscription_id, partition_id, position, lease_epoch, reason)
        VALUES (owner_id, part_id, high_watermark(part_id), held_epoch, 'history');
    END IF;
END;

-- name: open_history
-- Begins the next line of history. What was read in the one before may be another event now: so everybody who holds a lease loses
-- it, and learns position and history anew; positions beyond the log are brought back to its end; what was stopped goes on; no
-- id is given twice. The caller holds the sequencer's row.
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
    OPEN leased;
    lease: LOOP
        FETCH leased INTO owner_id, part_id;
        IF done THEN
            LEAVE lease;
        END IF;
        CALL bring_back(owner_id, part_id, opened);
    END LOOP;
    CLOSE leased;
    DELETE FROM stops;
END;

-- name: reconcile
-- After a restore that lost commits: opens the next history, so that no sequence stands for two events within one, and lets
-- stopped partitions go on. Answers its number. Raises PS006, PS018.
CREATE PROCEDURE reconcile(reason TEXT)
BEGIN
    DECLARE opened INT;
    DECLARE locked BOOLEAN;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION
    BEGIN
        CALL undo_call();
        RESIGNAL;
    END;
    CALL require_read_committed('reconcile()');
    CALL begin_call('reconcile()');
    IF COALESCE(TRIM(reason), '') = '' THEN
        CALL refuse('PS006', 'a history without a reason: say what was restored, and from when');
    END IF;
    SELECT s.singleton INTO locked FROM sequencer AS s FOR UPDATE;
    CALL open_history(reason, opened);
    SELECT opened AS reconcile;
END;

-- name: report_position
-- What somebody outside of the database has seen of a partition: a sink, an archive, a registry, a client. If that lies beyond the
-- log of the same history, a restore lost commits, and nobody reads the partition until it is reconciled. Answers whether it
-- is stopped, where the log ends, and its present history: who comes with another one has to look where to go on.
-- Raises PS002, PS005, PS006, PS018.
CREATE PROCEDURE report_position(topic VARCHAR(4000), `partition` INT, sequence BIGINT, history INT, source TEXT)
BEGIN
    DECLARE source_id, watermark, known_sequence BIGINT;
    DECLARE present, known_history INT;
    DECLARE stopped BOOLEAN DEFAULT FALSE;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION
    BEGIN
        CALL undo_call();
        RESIGNAL;
    END;
    CALL require_read_committed('report_position()');
    CALL begin_call('report_position()');
    CALL find_partition(topic, `partition`, source_id);
    IF NOT COALESCE(sequence >= 0 AND history >= 1 AND source <> '', FALSE) THEN
        CALL refuse('PS006', CONCAT('position ', COALESCE(sequence, 'NULL'), ' of history ', COALESCE(history, 'NULL'),
                                    ', seen by "', COALESCE(LEFT(source, 50), ''), '"'));
    END IF;
    SET watermark = high_watermark(source_id);
    SELECT MAX(h.history) INTO present FROM histories AS h;
    IF history > present OR (history = present AND sequence > watermark) THEN
        SELECT MAX(s.sequence), MAX(s.history) INTO known_sequence, known_history FROM stops AS s WHERE s.partition_id = source_id;
        IF known_history IS NULL OR history > known_history OR sequence > known_sequence THEN
            REPLACE INTO stops (partition_id, sequence, history, source) VALUES (source_id, sequence, history, LEFT(source, 500));
        END IF;
    END IF;
    SELECT COUNT(*) INTO stopped FROM stops AS s WHERE s.partition_id = source_id AND s.history >= present;
    SELECT stopped AS stopped, watermark AS high_watermark, present AS present_history;
END;

-- name: restore_status
-- What lies beyond the log: partitions that are stopped, and positions of subscriptions.
CREATE PROCEDURE restore_status()
READS SQL DATA
BEGIN
    DECLARE present INT;
    SELECT MAX(h.history) INTO present FROM histories AS h;
    SELECT t.address AS topic, p.number AS `partition`, b.watermark AS high_watermark, b.sequence, b.history, b.source,
           b.reported_at
    FROM (
        SELECT s.partition_id, s.sequence, s.history, s.source, s.reported_at, high_watermark(s.partition_id) AS watermark
        FROM stops AS s
        WHERE s.history >= present
        UNION ALL
        SELECT l.partition_id, current_position(l.subscription_id, l.partition_id), present,
               CONCAT('subscription "', o.name, '"'), NULL, high_watermark(l.partition_id)
        FROM leases AS l JOIN subscriptions AS o ON o.id = l.subscription_id
        WHERE current_position(l.subscription_id, l.partition_id) > high_watermark(l.partition_id)
    ) AS b
    JOIN partitions AS p ON p.id = b.partition_id
    JOIN topics AS t ON t.id = p.topic_id
    ORDER BY t.address, p.number, b.source;
END;

-- name: histories_of
-- The lines of the log's history, and why each began.
CREATE PROCEDURE histories_of()
READS SQL DATA
BEGIN
    SELECT h.history, h.reason, h.opened_at FROM histories AS h ORDER BY h.history;
END;

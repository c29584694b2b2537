-- name: is_rehydrated
-- Whether a sequence lies in a log epoch that was dropped and brought back.
CREATE FUNCTION is_rehydrated(of_partition BIGINT, sequence BIGINT) RETURNS BOOLEAN
READS SQL DATA
BEGIN
    DECLARE last BIGINT;
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    SELECT e.last_sequence INTO last
    FROM rehydrated_epochs AS e
    WHERE e.partition_id = of_partition AND e.first_sequence <= sequence
    ORDER BY e.first_sequence DESC
    LIMIT 1;
    RETURN COALESCE(last >= sequence, FALSE);
END;

-- name: find_rehydrated_end
-- The last sequence up to which everything from a sequence on was rehydrated, at most max_events of them: no gap is
-- ever passed over.
CREATE PROCEDURE find_rehydrated_end(of_partition BIGINT, from_sequence BIGINT, max_events INT, OUT last BIGINT)
READS SQL DATA
BEGIN
    DECLARE epoch_end BIGINT;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    SET last = from_sequence - 1;
    follow: LOOP
        SELECT e.last_sequence INTO epoch_end
        FROM rehydrated_epochs AS e
        WHERE e.partition_id = of_partition AND e.first_sequence <= last + 1
        ORDER BY e.first_sequence DESC
        LIMIT 1;
        IF done OR epoch_end <= last OR last >= from_sequence + max_events - 1 THEN
            LEAVE follow;
        END IF;
        SET last = epoch_end;
    END LOOP;
    SET last = LEAST(last, from_sequence + max_events - 1);
END;

-- name: read_rehydrated
-- The events of a partition from a sequence on that was rehydrated, in order, up to the first one that was not, and how
-- many there are. The columns are those of poll, with the partition, or those of fetch, with the history.
CREATE PROCEDURE read_rehydrated(
    of_partition BIGINT, from_sequence BIGINT, max_events INT, as_poll BOOLEAN, OUT found INT
)
READS SQL DATA
BEGIN
    DECLARE present, last BIGINT;
    CALL find_rehydrated_end(of_partition, from_sequence, max_events, last);
    IF as_poll THEN
        SELECT of_partition AS partition_id, e.sequence,
               LOWER(INSERT(INSERT(INSERT(INSERT(HEX(e.event_id), 21, 0, '-'), 17, 0, '-'), 13, 0, '-'), 9, 0, '-'))
                   AS event_id,
               e.`key`, e.type, e.content_type, e.headers, e.payload, e.created_at, e.sequenced_at
        FROM rehydrated_events AS e
        WHERE e.partition_id = of_partition AND e.sequence BETWEEN from_sequence AND last
        ORDER BY e.sequence;
    ELSE
        SELECT MAX(h.history) INTO present FROM histories AS h;
        SELECT e.sequence,
               LOWER(INSERT(INSERT(INSERT(INSERT(HEX(e.event_id), 21, 0, '-'), 17, 0, '-'), 13, 0, '-'), 9, 0, '-'))
                   AS event_id,
               e.`key`, e.type, e.content_type, e.headers, e.payload, e.created_at, e.sequenced_at, present AS history
        FROM rehydrated_events AS e
        WHERE e.partition_id = of_partition AND e.sequence BETWEEN from_sequence AND last
        ORDER BY e.sequence;
    END IF;
    SET found = FOUND_ROWS();
END;

-- name: hold_rehydration
-- The fence of a rehydration: locks the request and the log epoch to the end of the caller's transaction, so that a log
-- epoch is brought back by one at a time. Returns the log epoch's partition and range. Raises PS018, PS019, PS025.
CREATE PROCEDURE hold_rehydration(
    asked BIGINT, attempt INT, part_number INT, epoch INT, OUT part_id BIGINT, OUT first BIGINT, OUT last BIGINT
)
BEGIN
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    CALL hold_backfill(asked, attempt);
    SET part_id = NULL;
    SELECT u.partition_id, u.first_sequence, u.last_sequence INTO part_id, first, last
    FROM backfill_requests AS r
    JOIN partitions AS p ON p.topic_id = r.topic_id AND p.number = part_number
    JOIN backfill_units AS u ON u.request = r.id AND u.partition_id = p.id AND u.log_epoch = epoch
    WHERE r.id = asked AND r.kind = 'rehydrate';
    IF part_id IS NULL THEN
        CALL refuse('PS019', CONCAT('log epoch ', COALESCE(epoch, 'NULL'), ' of partition ',
                                    COALESCE(part_number, 'NULL'), ' is not one that the request ', asked,
                                    ' brings back'));
    END IF;
    SELECT e.first_sequence INTO first
    FROM log_epochs AS e WHERE e.partition_id = part_id AND e.log_epoch = epoch
    FOR UPDATE;
END;

-- name: begin_rehydration
-- Begins to bring back a log epoch, in the caller's transaction, which ends with finish_rehydration. false: it is there
-- already, so nothing is to be done but finish_rehydration. What an attempt that did not finish has left goes. Raises
-- PS018, PS019, PS025.
CREATE PROCEDURE begin_rehydration(request BIGINT, attempt INT, `partition` INT, log_epoch INT)
BEGIN
    DECLARE part_id, first, last, leftover BIGINT;
    DECLARE is_missing BOOLEAN;
    {{on error: CALL undo_call()}}
    CALL begin_call('begin_rehydration()');
    CALL hold_rehydration(request, attempt, `partition`, log_epoch, part_id, first, last);
    SET is_missing = NOT is_rehydrated(part_id, first);
    -- A DELETE that finds nothing would lock the gap, in which others bring the next log epoch.
    SELECT MIN(r.sequence) INTO leftover
    FROM rehydrated_events AS r WHERE r.partition_id = part_id AND r.sequence BETWEEN first AND last;
    IF is_missing AND leftover IS NOT NULL THEN
        DELETE r FROM rehydrated_events AS r WHERE r.partition_id = part_id AND r.sequence BETWEEN first AND last;
    END IF;
    SELECT is_missing AS is_missing;
    CALL end_call();
END;

-- name: put_rehydrated
-- Brings some events of a log epoch: a JSON array of objects with sequence, event_id, key, type, content_type, headers
-- (the text of a JSON object), payload in base64, and created_at and sequenced_at in microseconds since 1970. Nobody
-- sees them before finish_rehydration has compared all of them with the seal and the transaction has ended. Raises
-- PS018, PS019, PS025.
CREATE PROCEDURE put_rehydrated(request BIGINT, attempt INT, `partition` INT, log_epoch INT, events JSON)
BEGIN
    DECLARE part_id, first, last BIGINT;
    {{on error: CALL undo_call()}}
    CALL begin_call('put_rehydrated()');
    CALL hold_rehydration(request, attempt, `partition`, log_epoch, part_id, first, last);
    INSERT INTO rehydrated_events (
        partition_id, sequence, event_id, `key`, type, content_type, headers, payload, created_at, sequenced_at)
    SELECT part_id, i.sequence, UNHEX(REPLACE(i.event_id, '-', '')), i.`key`, i.type, i.content_type, i.headers,
           FROM_BASE64(i.payload), '1970-01-01' + INTERVAL i.created_at MICROSECOND,
           '1970-01-01' + INTERVAL i.sequenced_at MICROSECOND
    FROM JSON_TABLE(events, '$[*]' COLUMNS (
        sequence BIGINT PATH '$.sequence', event_id VARCHAR(40) PATH '$.event_id', `key` LONGTEXT PATH '$.key',
        type LONGTEXT PATH '$.type', content_type LONGTEXT PATH '$.content_type', headers LONGTEXT PATH '$.headers',
        payload LONGTEXT PATH '$.payload', created_at BIGINT PATH '$.created_at',
        sequenced_at BIGINT PATH '$.sequenced_at'
    )) AS i
    WHERE i.sequence BETWEEN first AND last
    ON DUPLICATE KEY UPDATE partition_id = VALUES(partition_id);
    CALL end_call();
END;

-- name: rehydrated_checksum
-- Count and checksum of what was brought of a range: see range_checksum. Raises PS006, PS019.
CREATE PROCEDURE rehydrated_checksum(
    part_id BIGINT, first BIGINT, last BIGINT, OUT event_count BIGINT, OUT checksum VARCHAR(64)
)
READS SQL DATA
BEGIN
    DECLARE limit_before BIGINT UNSIGNED DEFAULT @@SESSION.group_concat_max_len;
    DECLARE digests LONGBLOB;
    {{on error: SET SESSION group_concat_max_len = limit_before}}
    IF 32 * (last - first + 1) > @@SESSION.max_allowed_packet THEN
        CALL refuse('PS006', CONCAT('a log epoch of ', last - first + 1, ' events needs a max_allowed_packet of ',
                                    32 * (last - first + 1)));
    END IF;
    SET SESSION group_concat_max_len = GREATEST(32 * (last - first + 1), 1024);
    SELECT COUNT(*), COALESCE(GROUP_CONCAT(
        event_digest(e.sequence, e.event_id, e.`key`, e.type, e.content_type, e.headers, e.payload, e.created_at)
        ORDER BY e.sequence SEPARATOR ''), '')
    INTO event_count, digests
    FROM rehydrated_events AS e
    WHERE e.partition_id = part_id AND e.sequence BETWEEN first AND last;
    SET SESSION group_concat_max_len = limit_before;
    IF LENGTH(digests) <> 32 * event_count THEN
        CALL refuse('PS019', 'the checksum was not computed whole');
    END IF;
    SET checksum = SHA2(digests, 256);
END;

-- name: finish_rehydration
-- Lets everybody read a log epoch that was brought back, when its count and checksum equal the seal, and records its
-- range as done, all in the caller's transaction. Returns how many events are done. Raises PS006, PS017, PS018, PS019,
-- PS025.
CREATE PROCEDURE finish_rehydration(
    request BIGINT, attempt INT, `partition` INT, log_epoch INT, lease_seconds DOUBLE
)
BEGIN
    DECLARE part_id, first, last, sealed_count, found_count BIGINT;
    DECLARE sealed_checksum VARCHAR(200);
    DECLARE found_checksum VARCHAR(64);
    {{on error: CALL undo_call()}}
    CALL begin_call('finish_rehydration()');
    CALL require_lease_seconds(lease_seconds);
    CALL hold_rehydration(request, attempt, `partition`, log_epoch, part_id, first, last);
    SELECT e.event_count, e.checksum INTO sealed_count, sealed_checksum
    FROM log_epochs AS e WHERE e.partition_id = part_id AND e.log_epoch = log_epoch;
    CALL rehydrated_checksum(part_id, first, last, found_count, found_checksum);
    IF NOT (sealed_count <=> found_count AND sealed_checksum <=> found_checksum) THEN
        CALL refuse('PS017', CONCAT('what was brought of log epoch ', log_epoch, ' has ', found_count, ' events and ',
                                    LEFT(found_checksum, 12), '.., the seal says ', sealed_count, ' and ',
                                    LEFT(sealed_checksum, 12), '..'));
    END IF;
    INSERT INTO rehydrated_epochs (partition_id, first_sequence, last_sequence, log_epoch, request, rehydrated_at)
    VALUES (part_id, first, last, log_epoch, request, UTC_TIMESTAMP(6))
    ON DUPLICATE KEY UPDATE log_epoch = VALUES(log_epoch);
    CALL record_progress(request, attempt, `partition`, first, lease_seconds);
    SELECT r.done_events FROM backfill_requests AS r WHERE r.id = request;
    CALL end_call();
END;

-- name: rehydrated_of
-- The log epochs of a topic that were dropped and brought back. Raises PS002.
CREATE PROCEDURE rehydrated_of(topic LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE source_id BIGINT;
    CALL refuse_serializable('rehydrated_of()');
    CALL find_topic(topic, source_id);
    SELECT p.number AS `partition`, e.log_epoch, e.first_sequence, e.last_sequence, e.request, e.rehydrated_at
    FROM partitions AS p JOIN rehydrated_epochs AS e ON e.partition_id = p.id
    WHERE p.topic_id = source_id
    ORDER BY p.number, e.first_sequence;
END;

-- name: release_rehydrated
-- Takes log epochs of a topic away again that were brought back so many seconds ago, oldest first, at most max_epochs
-- (1 to 1,000). One that a subscription has not passed stays. Returns how many went. Raises PS002, PS006, PS018.
CREATE PROCEDURE release_rehydrated(topic LONGTEXT, older_than_seconds DOUBLE, max_epochs INT)
BEGIN
    DECLARE source_id, part_id, first, last, lowest BIGINT;
    DECLARE partitions, released INT DEFAULT 0;
    DECLARE slowest VARCHAR(500);
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE old CURSOR FOR
        SELECT e.partition_id, e.first_sequence, e.last_sequence
        FROM partitions AS p JOIN rehydrated_epochs AS e ON e.partition_id = p.id
        WHERE p.topic_id = source_id
          AND TIMESTAMPDIFF(MICROSECOND, e.rehydrated_at, UTC_TIMESTAMP(6)) >= older_than_seconds * 1000000
        ORDER BY e.rehydrated_at, e.partition_id, e.first_sequence;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    {{on error: CALL undo_call()}}
    CALL begin_call('release_rehydrated()');
    CALL require_read_committed('release_rehydrated()');
    IF NOT COALESCE(max_epochs BETWEEN 1 AND 1000 AND older_than_seconds BETWEEN 0 AND 1e9, FALSE) THEN
        CALL refuse('PS006', CONCAT('a release of ', COALESCE(max_epochs, 'NULL'), ' log epochs of ',
                                    COALESCE(older_than_seconds, 'NULL'), ' s ago: use 1 to 1,000, and 0 s or more'));
    END IF;
    -- A seek locks the same row, so no subscription goes back to what is just being taken away.
    CALL lock_topic(topic, 'operate', source_id, partitions);
    SET done = FALSE;
    OPEN old;
    epoch: LOOP
        FETCH old INTO part_id, first, last;
        IF done OR released >= max_epochs THEN
            LEAVE epoch;
        END IF;
        CALL lowest_position(part_id, NULL, slowest, lowest);
        SET done = FALSE;
        IF COALESCE(lowest, last) >= last THEN
            DELETE e FROM rehydrated_epochs AS e WHERE e.partition_id = part_id AND e.first_sequence = first;
            DELETE r FROM rehydrated_events AS r
            WHERE r.partition_id = part_id AND r.sequence BETWEEN first AND last;
            SET released = released + 1;
        END IF;
    END LOOP;
    CLOSE old;
    SELECT released AS released;
    CALL end_call();
END;

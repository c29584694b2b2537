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
    CALL require_topic(topic, source_id);
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

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

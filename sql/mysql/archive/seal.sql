-- name: seal
-- Seals the next log epoch of a partition: max_events of it, or what is there once its first event was sequenced
-- max_age_seconds ago (0: at once; NULL: by size only). No row when there is nothing to seal. The lock on the partition
-- makes seals follow each other, and an erasure come before or after. Raises PS002, PS005, PS006, PS018.
CREATE PROCEDURE seal(topic LONGTEXT, `partition` INT, max_events INT, max_age_seconds DOUBLE)
BEGIN
    DECLARE source_id, locked_id, start, last, content_count, content_bytes BIGINT;
    DECLARE previous INT DEFAULT 0;
    DECLARE content_checksum VARCHAR(64);
    DECLARE until DATETIME(6);
    {{on error: CALL undo_call()}}
    CALL begin_call('seal()');
    CALL require_read_committed('seal()');
    CALL require_partition_for(topic, `partition`, 'operate', source_id);
    IF NOT COALESCE(max_events BETWEEN 1 AND 1000000, FALSE) THEN
        CALL refuse('PS006', CONCAT('max_events cannot be ', COALESCE(max_events, 'NULL'), ': use 1 to 1,000,000'));
    END IF;
    SET locked_id = (SELECT p.id FROM partitions AS p WHERE p.id = source_id FOR UPDATE);
    SELECT COALESCE(MAX(e.log_epoch), 0), COALESCE(MAX(e.last_sequence), 0) + 1 INTO previous, start
    FROM log_epochs AS e WHERE e.partition_id = source_id;
    CALL find_epoch_end(source_id, start, max_events, max_age_seconds, last);
    IF last IS NOT NULL THEN
        CALL range_checksum(source_id, start, last, content_count, content_checksum, content_bytes);
        CALL sequenced_until(source_id, start, last, until);
        INSERT INTO log_epochs (
            partition_id, log_epoch, first_sequence, last_sequence, event_count, checksum, event_bytes,
            sequenced_until)
        VALUES (source_id, previous + 1, start, last, content_count, content_checksum, content_bytes, until);
    END IF;
    SELECT e.log_epoch, e.first_sequence, e.last_sequence, e.event_count, e.checksum
    FROM log_epochs AS e
    WHERE e.partition_id = source_id AND e.log_epoch = previous + 1 AND last IS NOT NULL;
    CALL end_call();
END;

-- name: unsealed_logs
-- The topics with events above their last log epoch: how many there are in the partition that has most of them, and
-- for how long the oldest has been in the log.
CREATE PROCEDURE unsealed_logs()
READS SQL DATA
BEGIN
    CALL refuse_serializable('unsealed_logs()');
    SELECT s.address AS topic, MAX(s.high - s.sealed) AS events,
           TIMESTAMPDIFF(MICROSECOND, MIN(sequenced_at_of(s.id, s.sealed + 1)), UTC_TIMESTAMP(6)) / 1e6 AS seconds
    FROM (
        SELECT t.address, p.id, high_watermark(p.id) AS high, COALESCE((
                   SELECT MAX(e.last_sequence) FROM log_epochs AS e
                   WHERE e.partition_id = p.id AND e.log_epoch = (
                       SELECT MAX(l.log_epoch) FROM log_epochs AS l WHERE l.partition_id = p.id)), 0) AS sealed
        FROM topics AS t JOIN partitions AS p ON p.topic_id = t.id
        WHERE NOT t.restricted AND @penstock_acting IS NULL OR has_right(t.namespace_id, 'any')
    ) AS s
    WHERE s.high > s.sealed
    GROUP BY s.address
    ORDER BY s.address;
END;

-- name: event_digest
-- SHA-256 of everything that an event says, in a form that other languages can repeat byte for byte. headers
-- are the text that the database stores.
CREATE FUNCTION event_digest(
    sequence BIGINT, event_id BINARY(16), `key` LONGBLOB, type LONGBLOB, content_type LONGBLOB, headers LONGBLOB,
    payload LONGBLOB, created_at DATETIME(6)
) RETURNS BINARY(32)
DETERMINISTIC NO SQL
RETURN UNHEX(SHA2(CONCAT(
    UNHEX(LPAD(HEX(sequence), 16, '0')), event_id, framed(`key`), framed(type), framed(content_type), framed(headers),
    framed(payload), UNHEX(LPAD(HEX(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', created_at)), 16, '0'))), 256));

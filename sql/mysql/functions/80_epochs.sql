-- name: framed
-- Bytes with their length before them, so that no two different rows give the same digest input; NULL has length -1.
CREATE FUNCTION framed(part LONGBLOB) RETURNS LONGBLOB
DETERMINISTIC NO SQL
RETURN COALESCE(CONCAT(UNHEX(LPAD(HEX(LENGTH(part)), 8, '0')), part), UNHEX('FFFFFFFF'));

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

-- name: range_checksum
-- The checksum of a range of a partition: SHA-256 over the digests of its events in order, as lower-case hex; and how
-- many bytes they say. All digests are one value for a moment, 32 bytes for each event, and no value may be longer than
-- max_allowed_packet. Raises PS006.
CREATE PROCEDURE range_checksum(
    part_id BIGINT, first_sequence BIGINT, last_sequence BIGINT, OUT event_count BIGINT, OUT checksum VARCHAR(64),
    OUT event_bytes BIGINT
)
READS SQL DATA
BEGIN
    DECLARE limit_before BIGINT UNSIGNED DEFAULT @@SESSION.group_concat_max_len;
    DECLARE expected BIGINT DEFAULT last_sequence - first_sequence + 1;
    DECLARE digests LONGBLOB;
    {{on error: SET SESSION group_concat_max_len = limit_before}}
    IF 32 * expected > @@SESSION.max_allowed_packet THEN
        CALL refuse('PS006',
                    CONCAT('a log epoch of ', expected, ' events needs a max_allowed_packet of ', 32 * expected));
    END IF;
    SET SESSION group_concat_max_len = GREATEST(32 * expected, 1024);
    SELECT COUNT(*), COALESCE(GROUP_CONCAT(
        event_digest(e.sequence, e.event_id, e.`key`, e.type, e.content_type, e.headers, e.payload, e.created_at)
        ORDER BY e.sequence SEPARATOR ''), ''),
        COALESCE(SUM(e.size), 0)
    INTO event_count, digests, event_bytes
    FROM logged_events AS e
    WHERE e.partition_id = part_id AND e.first_sequence <= last_sequence AND e.first_sequence >= (
          SELECT MAX(f.first_sequence) FROM chunks AS f
          WHERE f.partition_id = part_id AND f.first_sequence <= first_sequence)
      AND e.sequence BETWEEN first_sequence AND last_sequence;
    SET SESSION group_concat_max_len = limit_before;
    IF LENGTH(digests) <> 32 * event_count THEN
        CALL refuse('PS019', 'the checksum was not computed over all events');
    END IF;
    SET checksum = SHA2(digests, 256);
END;

-- name: find_epoch_end
-- Where the next log epoch of a partition ends: after max_events, or at the high watermark once the first event was
-- sequenced max_age_seconds ago; NULL when there is nothing to seal.
CREATE PROCEDURE find_epoch_end(part_id BIGINT, start BIGINT, max_events INT, max_age_seconds DOUBLE, OUT last BIGINT)
READS SQL DATA
BEGIN
    DECLARE oldest DATETIME(6);
    SET last = LEAST(high_watermark(part_id), start + max_events - 1);
    -- By SELECT: the reads of a function lock rows where SET calls it (MariaDB), and wait for publishers.
    SELECT sequenced_at_of(part_id, start) INTO oldest;
    IF last < start OR (last < start + max_events - 1 AND NOT COALESCE(
            TIMESTAMPDIFF(MICROSECOND, oldest, UTC_TIMESTAMP(6)) >= max_age_seconds * 1000000, FALSE)) THEN
        SET last = NULL;
    END IF;
END;

-- name: find_sequenced_until
-- A time after which no event of a range, or before it, was sequenced: that of the newest event in its chunks of the
-- index, or that of the log epoch before.
CREATE PROCEDURE find_sequenced_until(part_id BIGINT, start BIGINT, last BIGINT, OUT until DATETIME(6))
READS SQL DATA
BEGIN
    DECLARE before_it DATETIME(6);
    SELECT MAX(e.sequenced_until) INTO before_it FROM log_epochs AS e WHERE e.partition_id = part_id;
    SELECT MAX(c.sequenced_at) INTO until
    FROM chunks AS c
    WHERE c.partition_id = part_id AND c.first_sequence <= last AND c.first_sequence >= COALESCE((
        SELECT MAX(f.first_sequence) FROM chunks AS f WHERE f.partition_id = part_id AND f.first_sequence <= start), 0);
    SET until = GREATEST(COALESCE(before_it, until), until);
END;

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
    CALL find_partition_for(topic, `partition`, 'operate', source_id);
    IF NOT COALESCE(max_events BETWEEN 1 AND 1000000, FALSE) THEN
        CALL refuse('PS006', CONCAT('max_events cannot be ', COALESCE(max_events, 'NULL'), ': use 1 to 1,000,000'));
    END IF;
    SET locked_id = (SELECT p.id FROM partitions AS p WHERE p.id = source_id FOR UPDATE);
    SELECT COALESCE(MAX(e.log_epoch), 0), COALESCE(MAX(e.last_sequence), 0) + 1 INTO previous, start
    FROM log_epochs AS e WHERE e.partition_id = source_id;
    CALL find_epoch_end(source_id, start, max_events, max_age_seconds, last);
    IF last IS NOT NULL THEN
        CALL range_checksum(source_id, start, last, content_count, content_checksum, content_bytes);
        CALL find_sequenced_until(source_id, start, last, until);
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

-- name: log_epochs_of
-- The sealed log epochs of a topic, with the targets that hold a verified copy, as a JSON array;
-- known_as: see describe_topic. Raises PS002.
CREATE PROCEDURE log_epochs_of(topic LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE source_id BIGINT;
    DECLARE limit_before BIGINT UNSIGNED DEFAULT @@SESSION.group_concat_max_len;
    {{on error: SET SESSION group_concat_max_len = limit_before}}
    CALL refuse_serializable('log_epochs_of()');
    CALL find_topic(topic, source_id);
    SET SESSION group_concat_max_len = 4294967295;
    SELECT p.number AS `partition`, e.log_epoch, e.first_sequence, e.last_sequence, e.event_count, e.checksum,
           e.sealed_at, e.dropped_at, COALESCE((
               SELECT JSON_ARRAYAGG(c.target) FROM epoch_copies AS c
               WHERE c.partition_id = e.partition_id AND c.log_epoch = e.log_epoch
                 AND c.state = 'verified'), '[]') AS targets,
           t.known_as
    FROM partitions AS p JOIN log_epochs AS e ON e.partition_id = p.id JOIN topics AS t ON t.id = p.topic_id
    WHERE p.topic_id = source_id
    ORDER BY p.number, e.log_epoch;
    SET SESSION group_concat_max_len = limit_before;
END;

-- name: missing_copies
-- The sealed log epochs of a topic of which a target holds no verified copy. Raises PS002.
CREATE PROCEDURE missing_copies(topic LONGTEXT, target VARCHAR(255))
READS SQL DATA
BEGIN
    DECLARE source_id BIGINT;
    DECLARE limit_before BIGINT UNSIGNED DEFAULT @@SESSION.group_concat_max_len;
    {{on error: SET SESSION group_concat_max_len = limit_before}}
    CALL refuse_serializable('missing_copies()');
    CALL find_topic(topic, source_id);
    SET SESSION group_concat_max_len = 4294967295;
    SELECT p.number AS `partition`, e.log_epoch, e.first_sequence, e.last_sequence, e.event_count, e.checksum,
           e.sealed_at, e.dropped_at, COALESCE((
               SELECT JSON_ARRAYAGG(c.target) FROM epoch_copies AS c
               WHERE c.partition_id = e.partition_id AND c.log_epoch = e.log_epoch
                 AND c.state = 'verified'), '[]') AS targets,
           t.known_as
    FROM partitions AS p JOIN log_epochs AS e ON e.partition_id = p.id JOIN topics AS t ON t.id = p.topic_id
    WHERE p.topic_id = source_id
      AND NOT EXISTS (
        SELECT * FROM epoch_copies AS c
        WHERE c.partition_id = e.partition_id AND c.log_epoch = e.log_epoch AND c.target = target
          AND c.state = 'verified')
    ORDER BY p.number, e.log_epoch;
    SET SESSION group_concat_max_len = limit_before;
END;

-- name: require_place
-- The layouts that there are, and a row that a file can have; raises PS006.
CREATE PROCEDURE require_place(layout INT, first_row BIGINT)
READS SQL DATA
BEGIN
    IF NOT COALESCE(layout IN (1, 2) AND first_row >= 0 AND (layout = 2 OR first_row = 0), FALSE) THEN
        CALL refuse('PS006', CONCAT('a copy in layout ', COALESCE(layout, 'NULL'), ' from row ',
                                    COALESCE(first_row, 'NULL'), ' on: layout 1 is a folder for each log epoch, ',
                                    'from row 0 on; layout 2 is a file of the day'));
    END IF;
END;

-- name: hold_off_clean
-- No run of clean begins on the topic of a partition before the caller's transaction has ended. Called before a copy is
-- recorded: a run either finds it where it is now, or sees that it is younger than the run. Topics are locked before
-- this, log epochs after it.
CREATE PROCEDURE hold_off_clean(part_id BIGINT)
BEGIN
    DECLARE locked INT;
    SELECT COUNT(*) INTO locked FROM retention_policies AS r WHERE r.topic_id = part_id >> 16 LOCK IN SHARE MODE;
END;

-- name: record_copy
-- Records that a target holds a log epoch, but only when count and checksum of what was read back equal the
-- seal. In layout 1 (NULL: 1) the location is a folder of its own, in layout 2 a file of the table, in which the
-- log epoch begins at first_row (NULL: 0). Raises PS002, PS005, PS006, PS017, PS019.
CREATE PROCEDURE record_copy(
    topic LONGTEXT, `partition` INT, log_epoch INT, target VARCHAR(255), location TEXT, event_count BIGINT,
    checksum TEXT, layout INT, first_row BIGINT
)
BEGIN
    DECLARE source_id, sealed_count BIGINT;
    DECLARE sealed_checksum VARCHAR(200);
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    {{on error: CALL undo_call()}}
    CALL begin_call('record_copy()');
    CALL find_partition_for(topic, `partition`, 'operate', source_id);
    SET layout = COALESCE(layout, 1), first_row = COALESCE(first_row, 0);
    CALL require_place(layout, first_row);
    CALL hold_off_clean(source_id);
    SELECT e.event_count, e.checksum INTO sealed_count, sealed_checksum
    FROM log_epochs AS e WHERE e.partition_id = source_id AND e.log_epoch = log_epoch
    -- An erasure gives the log epoch another checksum: it comes before this, or finds the copy recorded.
    LOCK IN SHARE MODE;
    IF sealed_count IS NULL THEN
        CALL refuse('PS019',
                    CONCAT('partition ', `partition`, ' has no sealed log epoch ', COALESCE(log_epoch, 'NULL')));
    END IF;
    IF NOT (sealed_count <=> event_count AND sealed_checksum <=> checksum) THEN
        CALL refuse('PS017', CONCAT('the copy of log epoch ', log_epoch, ' has ', COALESCE(event_count, 'NULL'),
                                    ' events and ', LEFT(COALESCE(checksum, 'NULL'), 12), '.., the seal says ',
                                    sealed_count, ' and ', LEFT(sealed_checksum, 12), '..'));
    END IF;
    DELETE c FROM epoch_copies AS c
    WHERE c.partition_id = source_id AND c.log_epoch = log_epoch AND c.target = target;
    INSERT INTO epoch_copies (partition_id, log_epoch, target, location, state, detail, layout, first_row)
    VALUES (source_id, log_epoch, target, location, 'verified', '', layout, first_row);
    DELETE s FROM suspected_copies AS s
    WHERE s.partition_id = source_id AND s.log_epoch = log_epoch AND s.target = target;
    CALL end_call();
END;

-- name: forget_copy
-- Marks the copy of a log epoch as missing, with the reason; backfill makes it again. Raises PS002, PS005.
CREATE PROCEDURE forget_copy(topic LONGTEXT, `partition` INT, log_epoch INT, target VARCHAR(255), reason TEXT)
BEGIN
    DECLARE source_id BIGINT;
    {{on error: CALL undo_call()}}
    CALL begin_call('forget_copy()');
    CALL find_partition_for(topic, `partition`, 'operate', source_id);
    UPDATE epoch_copies AS c
    SET c.state = 'missing', c.detail = LEFT(reason, 2000), c.changed_at = UTC_TIMESTAMP(6)
    WHERE c.partition_id = source_id AND c.log_epoch = log_epoch AND c.target = target;
    DELETE s FROM suspected_copies AS s
    WHERE s.partition_id = source_id AND s.log_epoch = log_epoch AND s.target = target;
    CALL end_call();
END;

-- name: reissue_seal
-- Gives a log epoch whose events were just replaced a new checksum and keeps the old one. The database computes it from
-- what it has. What it has not it takes from the caller, who has read the copy whose checksum is the present one. For a
-- rehydrated log epoch it takes what the caller has computed, or none: then no copy is left. No copy counts any more
-- until it was made and read again, and its bytes have to be counted again. Raises PS017.
CREATE PROCEDURE reissue_seal(held CHAR(36), part_id BIGINT, epoch INT, old_checksum TEXT, checksum TEXT)
BEGIN
    DECLARE first, last, content_count, content_bytes BIGINT;
    DECLARE was_dropped, is_back BOOLEAN;
    DECLARE sealed_checksum VARCHAR(200);
    DECLARE computed VARCHAR(64);
    SELECT e.first_sequence, e.last_sequence, e.dropped_at IS NOT NULL, e.checksum
    INTO first, last, was_dropped, sealed_checksum
    FROM log_epochs AS e WHERE e.partition_id = part_id AND e.log_epoch = epoch;
    SET is_back = was_dropped AND is_rehydrated(part_id, first);
    IF is_back THEN
        CALL rehydrated_checksum(part_id, first, last, content_count, computed);
    END IF;
    IF was_dropped AND NOT (is_back AND checksum IS NULL) THEN
        IF NOT COALESCE(old_checksum = sealed_checksum AND checksum REGEXP '^[0-9a-f]{64}$'
                        AND checksum = COALESCE(computed, checksum), FALSE) THEN
            CALL refuse('PS017', CONCAT('the erasure in log epoch ', epoch, ' was computed from a copy with ',
                                        LEFT(COALESCE(old_checksum, 'NULL'), 12), '.., and the seal says ',
                                        LEFT(sealed_checksum, 12), '..'));
        END IF;
    ELSE
        IF NOT was_dropped THEN
            CALL range_checksum(part_id, first, last, content_count, computed, content_bytes);
        END IF;
        SET checksum = computed;
    END IF;
    INSERT INTO reissued_seals (
        partition_id, log_epoch, old_checksum, checksum, erasure, reissued_by, reissued_at)
    VALUES (part_id, epoch, sealed_checksum, checksum, held, user_part(USER()), UTC_TIMESTAMP(6));
    UPDATE log_epochs AS e
    SET e.checksum = checksum, e.event_bytes = NULL
    WHERE e.partition_id = part_id AND e.log_epoch = epoch;
    UPDATE epoch_copies AS c
    SET c.state = 'missing', c.detail = CONCAT('erasure ', held), c.changed_at = UTC_TIMESTAMP(6)
    WHERE c.partition_id = part_id AND c.log_epoch = epoch;
END;

-- name: can_read_archive
-- Whether a subscription misses nothing of a partition that retention drops now: the policy demands copies, and who
-- holds the lease, or held it last, has read the archive (see note_archive_reads).
CREATE FUNCTION can_read_archive(of_subscription BIGINT, of_partition BIGINT) RETURNS BOOLEAN
READS SQL DATA
BEGIN
    DECLARE found INT;
    SELECT COUNT(*) INTO found
    FROM archive_readers AS a
    JOIN leases AS l ON l.subscription_id = a.subscription_id AND l.partition_id = a.partition_id
    JOIN partitions AS p ON p.id = a.partition_id
    JOIN retention_policies AS r ON r.topic_id = p.topic_id
    WHERE a.subscription_id = of_subscription AND a.partition_id = of_partition AND a.lease_epoch = l.lease_epoch
      AND r.copies > 0;
    RETURN found > 0;
END;

-- name: reads_archive
-- Whether retention need not wait for a subscription on a partition: it can read the archive, and does, because it
-- stands below the low sequence. It does not once it has caught up, or reads what was rehydrated.
CREATE FUNCTION reads_archive(of_subscription BIGINT, of_partition BIGINT) RETURNS BOOLEAN
READS SQL DATA
BEGIN
    DECLARE low, stands_at BIGINT;
    IF NOT can_read_archive(of_subscription, of_partition) THEN
        RETURN FALSE;
    END IF;
    SELECT MAX(p.low_sequence) INTO low FROM partitions AS p WHERE p.id = of_partition;
    SET stands_at = current_position(of_subscription, of_partition);
    RETURN stands_at < low - 1 AND NOT is_rehydrated(of_partition, stands_at + 1);
END;

-- name: lowest_position
-- The subscription that is furthest behind on a partition, and where it stands; NULL when nobody reads the topic. Those
-- whose policy lets nothing wait that was sealed so many seconds ago (NULL: at any time) are left out, and those that
-- read the archive. Any other one that stands below the low sequence counts: it gets an error, and it must not miss
-- more than was recorded. With NULL nobody is left out.
CREATE PROCEDURE lowest_position(part_id BIGINT, age DOUBLE, OUT subscription VARCHAR(500), OUT position BIGINT)
READS SQL DATA
BEGIN
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    SET subscription = NULL, position = NULL;
    SELECT n.name, n.position INTO subscription, position
    FROM (
        SELECT s.id, s.name, current_position(s.id, part_id) AS position
        FROM partitions AS p
        JOIN subscription_topics AS t ON t.topic_id = p.topic_id
        JOIN subscriptions AS s ON s.id = t.subscription_id
        WHERE p.id = part_id AND (age IS NULL OR s.max_lag_seconds = 0 OR age < s.max_lag_seconds)
    ) AS n
    WHERE age IS NULL OR NOT reads_archive(n.id, part_id)
    ORDER BY n.position, n.name
    LIMIT 1;
END;

-- name: low_sequences
-- Each partition of a topic and the first sequence that the database still holds. Raises PS002.
CREATE PROCEDURE low_sequences(topic LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE source_id BIGINT;
    CALL refuse_serializable('low_sequences()');
    CALL find_topic(topic, source_id);
    SELECT p.number AS `partition`, p.low_sequence FROM partitions AS p WHERE p.topic_id = source_id ORDER BY p.number;
END;

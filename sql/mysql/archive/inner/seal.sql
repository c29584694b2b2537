-- name: framed
-- Bytes with their length before them, so that no two different rows give the same digest input; NULL has length -1.
CREATE FUNCTION framed(part LONGBLOB) RETURNS LONGBLOB
DETERMINISTIC NO SQL
RETURN COALESCE(CONCAT(UNHEX(LPAD(HEX(LENGTH(part)), 8, '0')), part), UNHEX('FFFFFFFF'));

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

-- name: sequenced_until
-- A time after which no event of a range, or before it, was sequenced: that of the newest event in its chunks of the
-- index, or that of the log epoch before.
CREATE PROCEDURE sequenced_until(part_id BIGINT, start BIGINT, last BIGINT, OUT until DATETIME(6))
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
    VALUES (part_id, epoch, sealed_checksum, checksum, held, principal(), UTC_TIMESTAMP(6));
    UPDATE log_epochs AS e
    SET e.checksum = checksum, e.event_bytes = NULL
    WHERE e.partition_id = part_id AND e.log_epoch = epoch;
    UPDATE epoch_copies AS c
    SET c.state = 'missing', c.detail = CONCAT('erasure ', held), c.changed_at = UTC_TIMESTAMP(6)
    WHERE c.partition_id = part_id AND c.log_epoch = epoch;
END;

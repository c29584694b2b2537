-- name: framed
-- Bytes with their length before them, so that no two different rows give the same digest input; NULL has length -1.
CREATE OR REPLACE FUNCTION framed(part bytea) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT COALESCE(int4send(octet_length(part)) || part, int4send(-1))
$$;

-- name: range_checksum
-- The checksum of a range of a partition: SHA-256 over the digests of its events in order, as lower-case hex; and how
-- many bytes they say.
CREATE OR REPLACE FUNCTION range_checksum(
    partition_id bigint, first_sequence bigint, last_sequence bigint, OUT event_count bigint, OUT checksum text,
    OUT event_bytes bigint
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT
SET enable_seqscan = off SET jit = off AS $$
    SELECT count(*), encode(sha256(COALESCE(string_agg(
        event_digest(r.sequence, r.event_id, r.key, r.type, r.content_type, r.headers, r.payload, r.created_at),
        ''::bytea ORDER BY r.sequence), ''::bytea)), 'hex'),
        COALESCE(sum(event_size(r.key, r.type, r.content_type, r.headers, r.payload)), 0)::bigint
    FROM read_log(range_checksum.partition_id, range_checksum.first_sequence,
                  (range_checksum.last_sequence - range_checksum.first_sequence + 1)::integer) AS r
$$;

-- name: sequenced_until
-- A time after which no event of a range was sequenced: that of the newest event in its chunks of the index.
CREATE OR REPLACE FUNCTION sequenced_until(partition_id bigint, first_sequence bigint, last_sequence bigint)
RETURNS timestamptz
LANGUAGE sql STABLE AS $$
    SELECT max(c.sequenced_at)
    FROM chunks AS c
    WHERE c.partition_id = sequenced_until.partition_id AND c.first_sequence <= sequenced_until.last_sequence
      AND c.first_sequence >= COALESCE((
          SELECT b.first_sequence
          FROM chunks AS b
          WHERE b.partition_id = sequenced_until.partition_id AND b.first_sequence <= sequenced_until.first_sequence
          ORDER BY b.first_sequence DESC
          LIMIT 1), 0)
$$;

-- name: require_epoch
-- A sealed log epoch; raises PS019.
CREATE OR REPLACE FUNCTION require_epoch(partition_id bigint, log_epoch integer) RETURNS log_epochs
LANGUAGE plpgsql STABLE AS $$
DECLARE
    found_row log_epochs%ROWTYPE;
BEGIN
    SELECT e.* INTO found_row FROM log_epochs AS e
    WHERE e.partition_id = require_epoch.partition_id AND e.log_epoch = require_epoch.log_epoch;
    IF NOT FOUND THEN
        PERFORM refuse('PS019', format('partition %s has no sealed log epoch %s', partition_id & 65535, log_epoch),
                       'Seal it first.');
    END IF;
    RETURN found_row;
END
$$;

-- name: reissue_seal
-- Gives a log epoch a new checksum and keeps the old one. No copy counts any more until it was made and read again, and
-- its bytes have to be counted again.
CREATE OR REPLACE FUNCTION reissue_seal(held erasures, sealed log_epochs, checksum text) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO reissued_seals (
        partition_id, log_epoch, old_checksum, checksum, erasure, reissued_by, reissued_at)
    VALUES (sealed.partition_id, sealed.log_epoch, sealed.checksum, reissue_seal.checksum, held.erasure, principal(),
            clock_timestamp());
    UPDATE log_epochs AS e SET checksum = reissue_seal.checksum, event_bytes = NULL
    WHERE e.partition_id = sealed.partition_id AND e.log_epoch = sealed.log_epoch;
    UPDATE epoch_copies AS c
    SET state = 'missing', detail = format('erasure %s', held.erasure), changed_at = clock_timestamp()
    WHERE c.partition_id = sealed.partition_id AND c.log_epoch = sealed.log_epoch;
$$;

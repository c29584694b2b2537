-- name: claim_version
-- What claim_rows and claim_write share. is_new: the caller's transaction is the one that publishes the version.
CREATE PROCEDURE claim_version(writer LONGTEXT, version BIGINT, events BIGINT, digest LONGTEXT, OUT is_new BOOLEAN)
BEGIN
    DECLARE known BIGINT DEFAULT 1000;
    DECLARE newest BIGINT;
    DECLARE before_events BIGINT;
    DECLARE owner_hash BINARY(32);
    CALL require_name(writer, 'writer');
    IF version IS NULL OR version NOT BETWEEN 0 AND 1000000000000000000 THEN
        CALL refuse('PS006', CONCAT('a version of ', COALESCE(version, 'NULL')));
    END IF;
    IF events < 0 OR CHAR_LENGTH(digest) > 100 OR (events IS NULL) <> (digest IS NULL) THEN
        CALL refuse('PS006', CONCAT(COALESCE(events, 'NULL'), ' events with a digest of ',
                                    COALESCE(CHAR_LENGTH(digest), 'no'), ' characters'));
    END IF;
    SET owner_hash = UNHEX(SHA2(CONCAT(CHAR_LENGTH(principal()), ':', principal(), writer), 256));
    SELECT MAX(c.version) INTO newest FROM claimed_writes AS c WHERE c.writer_hash = owner_hash;
    IF version <= newest - known THEN
        CALL refuse('PS026', CONCAT('version ', version, ' of writer "', LEFT(writer, 40), '" is too old: it is at ',
                                    newest));
    END IF;
    SET is_new = TRUE;
    BEGIN
        DECLARE CONTINUE HANDLER FOR 1062 SET is_new = FALSE;
        INSERT INTO claimed_writes (writer_hash, version, login, writer, claimed_at, events, digest)
        VALUES (owner_hash, version, principal(), writer, UTC_TIMESTAMP(6), events, digest);
    END;
    IF is_new THEN
        DELETE c FROM claimed_writes AS c WHERE c.writer_hash = owner_hash AND c.version <= version - known;
    ELSE
        SELECT MAX(c.events) INTO before_events
        FROM claimed_writes AS c
        WHERE c.writer_hash = owner_hash AND c.version = version AND (c.events <> events OR c.digest <> digest);
        IF before_events IS NOT NULL THEN
            CALL refuse('PS028', CONCAT('version ', version, ' of writer "', LEFT(writer, 50),
                                        '" was published before: ', before_events, ' other rows, now ', events));
        END IF;
    END IF;
END;

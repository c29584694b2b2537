-- name: stage_events
-- Stores a chunk of events that a later transaction publishes by publish_staged. The stage is a UUID that the caller
-- makes for one attempt to write; chunks have numbers from 0. The events are a JSON array as publish_batch takes it.
-- Nothing is checked here but the size: the events are checked when they are published. Raises PS006, PS018.
CREATE PROCEDURE stage_events(stage CHAR(36), chunk INT, events JSON)
BEGIN
    {{on error: CALL undo_call()}}
    CALL begin_call('stage_events()');
    IF stage IS NULL OR chunk IS NULL OR chunk < 0 OR COALESCE(JSON_TYPE(events) <> 'ARRAY', TRUE)
        OR JSON_LENGTH(events) NOT BETWEEN 1 AND 10000 THEN
        CALL refuse('PS006', CONCAT('a chunk ', COALESCE(chunk, 'NULL'), ' of ', COALESCE(JSON_LENGTH(events), 'no'),
                                    ' events'));
    END IF;
    INSERT INTO staged_writes (stage, chunk, login, staged_at, events)
    VALUES (UNHEX(REPLACE(stage, '-', '')), chunk, principal(), UTC_TIMESTAMP(6), events);
    CALL end_call();
END;

-- name: claim_rows
-- Claims a version of a writer for the caller's transaction. True: publish its stages in this transaction. False: the
-- version was published before, so there is nothing to do. events and digest say which rows they are: how many, and a
-- text of at most 100 characters that is the same for the same rows in any order. A version that was published before
-- with other rows is refused, because nobody would ever publish these (PS028). NULL: nothing is compared. While another
-- transaction has claimed the version, this waits for the end of that one. The newest 1,000 versions of a writer are
-- known; an older one is refused, because nobody knows whether it was published. Raises PS006, PS018, PS026, PS028.
CREATE PROCEDURE claim_rows(writer LONGTEXT, version BIGINT, events BIGINT, digest LONGTEXT)
BEGIN
    DECLARE is_new BOOLEAN;
    {{on error: CALL undo_call()}}
    CALL begin_call('claim_rows()');
    CALL require_read_committed('claim_rows()');
    CALL claim_version(writer, version, events, digest, is_new);
    SELECT is_new AS claimed;
    CALL end_call();
END;

-- name: claim_write
-- As claim_rows, without saying which rows they are: a repetition is not compared. Raises PS006, PS018, PS026.
CREATE PROCEDURE claim_write(writer LONGTEXT, version BIGINT)
BEGIN
    DECLARE is_new BOOLEAN;
    {{on error: CALL undo_call()}}
    CALL begin_call('claim_write()');
    CALL require_read_committed('claim_write()');
    CALL claim_version(writer, version, NULL, NULL, is_new);
    SELECT is_new AS claimed;
    CALL end_call();
END;

-- name: publish_staged
-- Publishes a stage of this login in the caller's transaction, chunk by chunk, and removes it. events is how many it
-- has to have: when chunks are missing, it refuses. Returns how many were published. Each chunk goes through the
-- checks of publish_batch. Raises PS002, PS004, PS005, PS006, PS018, PS022, PS026, PS052.
CREATE PROCEDURE publish_staged(stage CHAR(36), events BIGINT)
BEGIN
    DECLARE at_stage BINARY(16) DEFAULT UNHEX(REPLACE(stage, '-', ''));
    DECLARE id_before BIGINT DEFAULT LAST_INSERT_ID();
    DECLARE total BIGINT DEFAULT 0;
    DECLARE published BIGINT;
    DECLARE at_chunk INT;
    DECLARE given LONGTEXT;
    DECLARE duplicates JSON;
    DECLARE is_done BOOLEAN DEFAULT FALSE;
    DECLARE parts CURSOR FOR
        SELECT s.chunk FROM staged_writes AS s
        WHERE s.stage = at_stage AND s.login = principal()
        ORDER BY s.chunk;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET is_done = TRUE;
    {{on error: CALL undo_call(); DO LAST_INSERT_ID(id_before)}}
    CALL begin_call('publish_staged()');
    OPEN parts;
    part: LOOP
        SET is_done = FALSE;
        FETCH parts INTO at_chunk;
        IF is_done THEN
            LEAVE part;
        END IF;
        SELECT s.events INTO given FROM staged_writes AS s WHERE s.stage = at_stage AND s.chunk = at_chunk;
        CALL insert_batch(given, FALSE, published, duplicates);
        SET total = total + published;
    END LOOP;
    CLOSE parts;
    IF COALESCE(total <> events, TRUE) THEN
        CALL refuse('PS026', CONCAT('of ', COALESCE(events, 'NULL'), ' staged events ', total, ' are there'));
    END IF;
    DELETE s FROM staged_writes AS s WHERE s.stage = at_stage AND s.login = principal();
    DO LAST_INSERT_ID(id_before);
    SELECT total AS published;
    CALL end_call();
END;

-- name: discard_staged
-- Removes stages (a JSON array) of this login that are not to be published. Returns how many chunks those were.
-- Raises PS018.
CREATE PROCEDURE discard_staged(stages JSON)
BEGIN
    DECLARE removed BIGINT;
    {{on error: CALL undo_call()}}
    CALL begin_call('discard_staged()');
    DELETE s FROM JSON_TABLE(stages, '$[*]' COLUMNS (stage CHAR(36) PATH '$')) AS g
    JOIN staged_writes AS s ON s.stage = UNHEX(REPLACE(g.stage, '-', ''))
    WHERE s.login = principal();
    SET removed = ROW_COUNT();
    SELECT removed AS removed;
    CALL end_call();
END;

-- name: sweep_staged
-- Removes chunks that nobody has published for so long that their writer must be gone: at most max_rows, the oldest
-- first. Returns how many. Raises PS006, PS018.
CREATE PROCEDURE sweep_staged(max_age_seconds DOUBLE, max_rows INT)
BEGIN
    DECLARE removed BIGINT;
    {{on error: CALL undo_call()}}
    CALL begin_call('sweep_staged()');
    IF COALESCE(max_age_seconds < 0, TRUE) OR COALESCE(max_rows < 1, TRUE) THEN
        CALL refuse('PS006', CONCAT('staged events older than ', COALESCE(max_age_seconds, 'NULL'), ' seconds'));
    END IF;
    DELETE FROM staged_writes
    WHERE staged_at <= UTC_TIMESTAMP(6) - INTERVAL max_age_seconds SECOND
    ORDER BY staged_at
    LIMIT max_rows;
    SET removed = ROW_COUNT();
    SELECT removed AS removed;
    CALL end_call();
END;

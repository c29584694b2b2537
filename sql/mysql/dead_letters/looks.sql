-- name: record_look
-- Records that a person looks at a payload: the name that the person has given, and what it is that is looked at. Call
-- it in the transaction that reads the payload. Raises PS006, PS018.
CREATE PROCEDURE record_look(person LONGTEXT, subject LONGTEXT)
BEGIN
    DECLARE id_before BIGINT DEFAULT LAST_INSERT_ID();
    {{on error: CALL undo_call()}}
    CALL begin_call('record_look()');
    IF COALESCE(CHAR_LENGTH(person) NOT BETWEEN 1 AND 200 OR CHAR_LENGTH(subject) NOT BETWEEN 1 AND 5000, TRUE) THEN
        CALL refuse('PS006', 'a look has no person or no subject: name both');
    END IF;
    INSERT INTO payload_looks (`by`, person, subject) VALUES (principal(), person, subject);
    DO LAST_INSERT_ID(id_before);
    CALL end_call();
END;

-- name: list_looks
-- Who has looked at payloads, the newest first, at most so many. Nothing for a login that does not see all topics.
CREATE PROCEDURE list_looks(max_rows INT)
READS SQL DATA
BEGIN
    DECLARE most INT DEFAULT LEAST(GREATEST(max_rows, 1), 1000);
    CALL refuse_serializable('list_looks()');
    SELECT l.at, l.`by`, l.person, l.subject
    FROM payload_looks AS l
    WHERE sees_all()
    ORDER BY l.id DESC
    LIMIT most;
END;

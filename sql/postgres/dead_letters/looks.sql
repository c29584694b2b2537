-- name: record_look
-- Records that a person looks at a payload: the name that the person has given, and what it is that is looked at. Call
-- it in the transaction that reads the payload. Raises PS006.
CREATE OR REPLACE FUNCTION record_look(person text, subject text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM commit_durably();
    IF COALESCE(char_length(person) NOT BETWEEN 1 AND 200 OR char_length(subject) NOT BETWEEN 1 AND 5000, true) THEN
        PERFORM refuse('PS006', 'a look has no person or no subject', 'Name both, in 200 and 5,000 characters.');
    END IF;
    INSERT INTO payload_looks (by, person, subject)
    VALUES (principal(), record_look.person, record_look.subject);
END
$$;

-- name: list_looks
-- Who has looked at payloads, the newest first, at most so many. Nothing for a login that does not see all topics.
CREATE OR REPLACE FUNCTION list_looks(max_rows integer DEFAULT 100)
RETURNS TABLE (at timestamptz, by text, person text, subject text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT l.at, l.by, l.person, l.subject
    FROM payload_looks AS l
    WHERE sees_all()
    ORDER BY l.id DESC
    LIMIT LEAST(GREATEST(max_rows, 1), 1000)
$$;

-- name: publish_text
-- Publishes a text, as publish does. The payload is the text in UTF-8, whatever the character set of the session. It
-- is for clients without binary parameters. The default content type is text/plain; charset=utf-8. Raises what
-- publish raises.
CREATE PROCEDURE publish_text(
    topic VARCHAR(4000), payload LONGTEXT, `key` LONGTEXT, type LONGTEXT, content_type LONGTEXT, headers LONGTEXT,
    event_id CHAR(36), `partition` INT, not_before DATETIME(6), dedup_key LONGTEXT, strict BOOLEAN
)
BEGIN
    CALL refuse_serializable('publish_text()');
    IF content_type IS NULL THEN
        SET content_type = 'text/plain; charset=utf-8';
    END IF;
    -- The parameter itself: an expression of more than max_allowed_packet would be NULL.
    CALL publish(
        topic, payload, `key`, type, content_type, headers, event_id, `partition`, not_before, dedup_key, strict);
END;

-- name: publish_json
-- Publishes JSON, as publish does. The payload is the text as it was given, in UTF-8, with its blanks and the order
-- of its keys (MySQL's type JSON would change both). A text that JSON_VALID refuses is refused; on MariaDB also two
-- things that JSON_VALID wrongly accepts: \x, and a decimal point without digits. The default content type is
-- application/json. Raises what publish raises.
CREATE PROCEDURE publish_json(
    topic VARCHAR(4000), payload LONGTEXT, `key` LONGTEXT, type LONGTEXT, content_type LONGTEXT, headers LONGTEXT,
    event_id CHAR(36), `partition` INT, not_before DATETIME(6), dedup_key LONGTEXT, strict BOOLEAN
)
BEGIN
    CALL refuse_serializable('publish_json()');
    -- These are NULL for a text beyond the server's limits.
    IF payload IS NOT NULL AND NOT COALESCE(JSON_VALID(payload) /*M!
        AND REPLACE(payload, '\\\\', '') NOT REGEXP '\\\\[^"/bfnrtu]'
        AND REGEXP_REPLACE(payload, '"(?:[^"\\\\]++|\\\\.)*+"', '""') NOT REGEXP '[.]([^0-9]|$)' */, FALSE) THEN
        CALL refuse(
            'PS006', CONCAT('event for topic "', LEFT(COALESCE(topic, 'NULL'), 60), '": its payload is not JSON'));
    END IF;
    IF content_type IS NULL THEN
        SET content_type = 'application/json';
    END IF;
    CALL publish(
        topic, payload, `key`, type, content_type, headers, event_id, `partition`, not_before, dedup_key, strict);
END;

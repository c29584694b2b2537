-- name: headers_problem
-- What is wrong with the headers of an event, or NULL. Headers that a reader's JSON parser cannot parse must not get
-- into the log. The limits are an object of 64 KiB of text, 32 levels and numbers of 400 digits.
CREATE PROCEDURE headers_problem(headers LONGTEXT, OUT problem VARCHAR(200))
NO SQL
BEGIN
    DECLARE is_object BOOLEAN;
    DECLARE depth INT DEFAULT 0;
    SET problem = IF(LENGTH(headers) > 65536,
                     CONCAT('its headers have ', LENGTH(headers), ' bytes, the limit is 65536'), NULL);
    IF headers IS NOT NULL AND problem IS NULL THEN
        IF JSON_VALID(headers) THEN
            SET is_object = JSON_TYPE(headers) = 'OBJECT', depth = JSON_DEPTH(headers) - 1;
        ELSE
            CALL is_json_object(headers, is_object, depth);
            SET depth = depth - 1;
        END IF;
        SET problem = CASE
            WHEN NOT is_object AND depth <= 33 THEN 'its headers are not a JSON object'
            WHEN depth > 32 THEN 'its headers are nested deeper than 32 levels'
            WHEN LENGTH(headers) > 400 AND REGEXP_REPLACE(headers, '"([^"\\\\]|\\\\.)*"', '') REGEXP '[0-9]{401}'
                THEN 'its headers hold a number of more than 400 digits'
        END;
    END IF;
END;

-- name: is_json_object
-- Whether a text is a JSON object, and how deep it is. It is for texts that the engines' own functions cannot judge:
-- MySQL refuses numbers that do not fit a double, MariaDB refuses more than 31 levels. It replaces strings with "",
-- then the innermost objects and arrays with 0, until one 0 is left. Blanks around each 0 separate it from a digit
-- next to it. Empty objects and arrays do not count as a level, as in JSON_DEPTH.
CREATE PROCEDURE is_json_object(given LONGTEXT, OUT is_object BOOLEAN, OUT depth INT)
NO SQL
BEGIN
    DECLARE value VARCHAR(200) DEFAULT
        '[[:space:]]*(""|-?(0|[1-9][0-9]*)([.][0-9]+)?([eE][-+]?[0-9]+)?|true|false|null)[[:space:]]*';
    DECLARE rest, before_it LONGTEXT;
    SET rest = REGEXP_REPLACE(given, '"([^"\\\\[:cntrl:]]|\\\\(["\\\\/bfnrt]|u[0-9a-fA-F]{4}))*"', '""');
    SET rest = REGEXP_REPLACE(rest, '[{][[:space:]]*[}]|\\[[[:space:]]*\\]', ' 0 ');
    SET depth = 0, before_it = '', is_object = given REGEXP '^[[:space:]]*[{]';
    WHILE rest <> before_it AND depth <= 40 DO
        SET before_it = rest, depth = depth + 1, rest = REGEXP_REPLACE(rest, CONCAT(
            '[{]([[:space:]]*""[[:space:]]*:', value, '(,[[:space:]]*""[[:space:]]*:', value, ')*)[}]|',
            '\\[', value, '(,', value, ')*\\]'), ' 0 ');
    END WHILE;
    SET is_object = is_object AND TRIM(rest) = '0';
END;

-- name: event_problem
-- What is wrong with an event, as 'SQLSTATE problem', or NULL. publish_batch checks the same for all its events in
-- one statement, and calls this for the first event with a problem.
CREATE PROCEDURE event_problem(
    topic_partitions INT, max_payload_bytes INT, strategy VARCHAR(255), payload_bytes BIGINT, `key` LONGTEXT,
    type LONGTEXT, content_type LONGTEXT, headers LONGTEXT, `partition` INT, not_before DATETIME(6), dedup_key LONGTEXT,
    longest_delay DOUBLE, event_id LONGTEXT, OUT problem VARCHAR(300)
)
NO SQL
BEGIN
    CALL headers_problem(headers, problem);
    SET problem = CASE
        WHEN topic_partitions IS NULL THEN 'PS002 its topic does not exist'
        WHEN payload_bytes IS NULL THEN 'PS006 its payload is NULL'
        WHEN payload_bytes > max_payload_bytes
            THEN CONCAT('PS004 its payload has ', payload_bytes, ' bytes, the limit is ', max_payload_bytes)
        WHEN CHAR_LENGTH(`key`) > 255
            THEN CONCAT('PS006 its key has ', CHAR_LENGTH(`key`), ' characters, the limit is 255')
        WHEN CHAR_LENGTH(type) > 255 THEN 'PS006 its type has more than 255 characters'
        WHEN CHAR_LENGTH(content_type) > 255 THEN 'PS006 its content type has more than 255 characters'
        WHEN CHAR_LENGTH(dedup_key) > 255 THEN 'PS006 its dedup key has more than 255 characters'
        WHEN problem IS NOT NULL THEN CONCAT('PS006 ', problem)
        WHEN `partition` < 0 OR `partition` >= topic_partitions
            THEN CONCAT('PS005 partition ', `partition`, ' does not exist, the topic has ', topic_partitions)
        WHEN `partition` IS NULL AND strategy NOT IN ('crc32', 'round_robin')
            THEN CONCAT('PS005 the strategy of its topic is ', strategy, ', so it needs a partition')
        WHEN not_before > UTC_TIMESTAMP(6) + INTERVAL CAST(longest_delay AS SIGNED) SECOND
            THEN CONCAT('PS006 it is to wait for longer than ', CAST(longest_delay AS SIGNED), ' seconds')
        -- The length is checked too, because $ also matches before a newline at the end.
        WHEN event_id IS NOT NULL AND (CHAR_LENGTH(REPLACE(event_id, '-', '')) <> 32
                                       OR REPLACE(event_id, '-', '') NOT REGEXP '^[0-9a-fA-F]{32}$')
            THEN 'PS006 its event_id is not a UUID'
    END;
END;

-- name: new_event_id
-- A UUIDv7 (RFC 9562): the time in milliseconds, then random bits.
CREATE PROCEDURE new_event_id(OUT id BINARY(16))
NO SQL
BEGIN
    SET id = UNHEX(CONCAT(
        LPAD(HEX(FLOOR(1000 * UNIX_TIMESTAMP(SYSDATE(6)))), 12, '0'), '7', LEFT(HEX(RANDOM_BYTES(2)), 3),
        SUBSTR('89AB', 1 + FLOOR(4 * RAND()), 1), LEFT(HEX(RANDOM_BYTES(8)), 15)));
END;

-- By design: it is for publish_packed, which PostgreSQL does not have.

-- name: look_at_packed
-- What decides whether the topics of a packed batch (a JSON array of their addresses) take an event, 40 characters for
-- each: its first partition's id, how many partitions, the longest payload, and how a partition is chosen. NULL when a
-- topic is missing or hidden. It goes topic by topic and reads with SELECT .. INTO, so that no topic is locked. Raises
-- PS022.
CREATE PROCEDURE look_at_packed(addresses JSON, OUT facts LONGBLOB)
READS SQL DATA
BEGIN
    DECLARE done INT DEFAULT 0;
    DECLARE topic_id, asked_in BIGINT;
    DECLARE is_limited BOOLEAN;
    DECLARE known VARBINARY(40);
    SET facts = '';
    WHILE done < JSON_LENGTH(addresses) AND facts IS NOT NULL DO
        SELECT MAX(t.id), MAX(IF(t.restricted OR @penstock_acting IS NOT NULL, t.namespace_id, NULL)),
               MAX(COALESCE(t.max_unsequenced_events, t.max_unsequenced_bytes)) IS NOT NULL,
               MAX(CONCAT(LPAD(t.id * 65536, 19, ' '), LPAD(t.partitions, 6, ' '), LPAD(t.max_payload_bytes, 14, ' '),
                          CASE t.strategy WHEN 'crc32' THEN 'k' WHEN 'round_robin' THEN 'r' ELSE 'p' END))
        INTO topic_id, asked_in, is_limited, known
        FROM topics AS t
        WHERE t.address_hash = UNHEX(SHA2(JSON_UNQUOTE(JSON_EXTRACT(addresses, CONCAT('$[', done, ']'))), 256));
        IF asked_in IS NOT NULL THEN
            SET known = IF(has_right(asked_in, 'publish'), known, NULL);
        END IF;
        IF is_limited AND known IS NOT NULL THEN
            CALL refuse_under_pressure(JSON_ARRAY(topic_id));
        END IF;
        SET facts = CONCAT(facts, known), done = done + 1;
    END WHILE;
END;

-- name: insert_packed
-- Writes those events of a packed batch that fit the facts of their topics, which look_at_packed has found, and tells
-- how many, and in which blocks of ids; an event has its place in them also if it is left out. None when a value does
-- not fit its column.
CREATE PROCEDURE insert_packed(
    facts LONGBLOB, heads LONGBLOB, body LONGBLOB, OUT published BIGINT, OUT blocks LONGBLOB)
BEGIN
    DECLARE all_events INT DEFAULT LENGTH(heads) DIV 90;
    DECLARE turn BIGINT;
    CALL take_blocks(all_events, blocks);
    CALL take_turn(all_events, turn);
    BEGIN
        -- A value that does not fit its column.
        DECLARE CONTINUE HANDLER FOR 1264, 1292, 1366, 1406 SET published = 0;
        -- The packed values stand in FROM: MariaDB writes each variable of a statement into the text of that
        -- statement, as often as it is named.
        INSERT INTO events (
            id, partition_id, event_id, `key`, type, content_type, headers, payload, created_at, due_at)
        SELECT CAST(CONV(HEX(SUBSTR(e.ids, 8 * (e.n DIV 256) + 1, 8)), 16, 10) AS SIGNED) * 256 + MOD(e.n, 256),
               SUBSTR(e.topic, 1, 19) + COALESCE(
                   e.asked, IF(SUBSTR(e.topic, 40, 1) = 'r', NULL, MOD(CRC32(e.`key`), SUBSTR(e.topic, 20, 6))),
                   MOD(GREATEST(turn, 0) + e.n + 1, SUBSTR(e.topic, 20, 6))),
               SUBSTR(e.text, 16 * e.n + 1, 16), e.`key`,
               SUBSTR(e.text, SUBSTR(e.head, e.place + 26, 8), SUBSTR(e.head, e.place + 34, 8)),
               SUBSTR(e.text, SUBSTR(e.head, e.place + 42, 8), SUBSTR(e.head, e.place + 50, 8)), e.headers,
               SUBSTR(e.text, SUBSTR(e.head, e.place + 74, 8), SUBSTR(e.head, e.place + 82, 8)),
               UTC_TIMESTAMP(6), NULL
        FROM (
            SELECT l.n, 90 * l.n + 1 AS place, g.head, g.text, g.ids,
                   SUBSTR(g.known, 40 * SUBSTR(g.head, 90 * l.n + 1, 5) + 1, 40) AS topic,
                   NULLIF(SUBSTR(g.head, 90 * l.n + 6, 5), '    -') AS asked,
                   SUBSTR(g.text, SUBSTR(g.head, 90 * l.n + 11, 8),
                          NULLIF(SUBSTR(g.head, 90 * l.n + 19, 8), '       -')) AS `key`,
                   SUBSTR(g.text, SUBSTR(g.head, 90 * l.n + 59, 8),
                          NULLIF(SUBSTR(g.head, 90 * l.n + 67, 8), '       -')) AS headers
            FROM (SELECT heads AS head, body AS text, facts AS known, blocks AS ids) AS g
            STRAIGHT_JOIN numbers AS l ON l.n < all_events
        ) AS e
        WHERE SUBSTR(e.head, e.place + 82, 8) <= SUBSTR(e.topic, 26, 14) + 0
          AND IF(e.asked IS NULL, SUBSTR(e.topic, 40, 1) <> 'p',
                 e.asked + 0 BETWEEN 0 AND SUBSTR(e.topic, 20, 6) - 1)
          AND (e.headers IS NULL OR SUBSTR(e.headers, 1, 1) = '{' AND LENGTH(e.headers) <= 65536
               AND JSON_VALID(CONVERT(e.headers USING utf8mb4))
               AND (LENGTH(e.headers) <= 70 OR JSON_DEPTH(CONVERT(e.headers USING utf8mb4)) <= 33)
               AND (LENGTH(e.headers) <= 400 OR CONVERT(e.headers USING utf8mb4) NOT REGEXP '[0-9]{401}'));
        SET published = ROW_COUNT();
    END;
END;

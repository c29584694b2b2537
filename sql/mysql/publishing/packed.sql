-- By design: MySQL's fast way for plain events takes packed bytes; PostgreSQL's is publish_columns.

-- name: publish_packed
-- Publishes many plain events, in order: the fast way of a program's publish_batch. Of each event, heads holds 90
-- characters: the number of its topic in addresses (a JSON array; 5 characters), its partition (5), then
-- for key, type, content type, headers and payload where in body the value begins and how many bytes it has (8 each).
-- A dash is a partition, key or headers that are not given. body begins with the 16 bytes of each event's id. Returns
-- how many were published: all, or NULL when this way cannot take one of them. Then nothing was published, and
-- publish_batch tells why or takes it. Raises PS006, PS018, PS022.
CREATE PROCEDURE publish_packed(addresses JSON, heads LONGBLOB, body LONGBLOB)
BEGIN
    DECLARE id_before BIGINT DEFAULT LAST_INSERT_ID();
    DECLARE all_events INT DEFAULT LENGTH(heads) DIV 90;
    DECLARE facts, blocks LONGBLOB;
    DECLARE turn, published, bytes BIGINT;
    {{on error: CALL undo_call(); DO LAST_INSERT_ID(id_before)}}
    CALL begin_call('publish_packed()');
    CALL look_at_packed(addresses, facts);
    IF facts IS NOT NULL AND all_events BETWEEN 1 AND 65536 AND LENGTH(body) >= 16 * all_events THEN
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
        IF NOT COALESCE(published = all_events, FALSE) THEN
            ROLLBACK TO SAVEPOINT penstock_call;
            SET published = NULL;
        ELSEIF acts_within_quota() THEN
            SELECT SUM(SUBSTR(heads, 90 * l.n + 83, 8)) INTO bytes FROM numbers AS l WHERE l.n < all_events;
            CALL charge_account(published, bytes);
        END IF;
        DO LAST_INSERT_ID(id_before);
    END IF;
    SELECT published AS published;
    CALL end_call();
END;

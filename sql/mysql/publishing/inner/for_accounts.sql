-- By design: PostgreSQL takes arrays, MySQL packed bytes.

-- name: account_may_publish
-- Whether an account may publish in a namespace now, by a key that was shown: what act_as and publish ask. It names the
-- account, and so asks nothing of the transaction.
CREATE PROCEDURE account_may_publish(account VARCHAR(64), key_id VARCHAR(64), of_namespace BIGINT, OUT may BOOLEAN)
READS SQL DATA
BEGIN
    DECLARE good INT;
    DECLARE problem VARCHAR(200);
    SELECT COUNT(k.id) INTO good
    FROM account_keys AS k JOIN accounts AS a ON a.id = k.account_id
    WHERE k.id = key_id AND k.account_id = account AND k.revoked_at IS NULL AND k.starts_at <= UTC_TIMESTAMP(6)
      AND COALESCE(k.ends_at > UTC_TIMESTAMP(6), TRUE);
    SET may = COALESCE(good > 0 AND account_has_right(account, of_namespace, 'publish'), FALSE);
    IF may THEN
        CALL quota_problem(account, problem);
        SET may = problem IS NULL;
    END IF;
END;

-- name: look_at_lines
-- The facts of the topic of each line, as look_at_packed finds them. Where nothing is published, because the account
-- may not or the topic has a limit of back pressure, they are those of a topic that takes no payload.
CREATE PROCEDURE look_at_lines(given JSON, OUT facts LONGBLOB)
READS SQL DATA
BEGIN
    DECLARE done INT DEFAULT 0;
    DECLARE in_namespace BIGINT;
    DECLARE may BOOLEAN;
    DECLARE known VARBINARY(40);
    DECLARE all_lines INT DEFAULT JSON_LENGTH(given);
    DECLARE account, key_id VARCHAR(64);
    DECLARE topic VARCHAR(4000);
    -- The text is read once: a path in it would be looked for from its beginning, for each line.
    DECLARE each_line CURSOR FOR
        SELECT g.account, g.key_id, g.topic
        FROM JSON_TABLE(given, '$[*]' COLUMNS (
            place FOR ORDINALITY, account VARCHAR(64) PATH '$.account', key_id VARCHAR(64) PATH '$.key_id',
            topic VARCHAR(4000) PATH '$.topic')) AS g
        ORDER BY g.place;
    SET facts = '';
    OPEN each_line;
    WHILE done < all_lines DO
        FETCH each_line INTO account, key_id, topic;
        SELECT MAX(t.namespace_id),
               MAX(CONCAT(LPAD(t.id * 65536, 19, ' '), LPAD(t.partitions, 6, ' '), LPAD(t.max_payload_bytes, 14, ' '),
                          CASE t.strategy WHEN 'crc32' THEN 'k' WHEN 'round_robin' THEN 'r' ELSE 'p' END))
        INTO in_namespace, known
        FROM topics AS t
        WHERE t.address_hash = UNHEX(SHA2(topic, 256))
          AND t.max_unsequenced_events IS NULL AND t.max_unsequenced_bytes IS NULL;
        SET may = FALSE;
        IF in_namespace IS NOT NULL THEN
            CALL account_may_publish(account, key_id, in_namespace, may);
        END IF;
        SET facts = CONCAT(facts, IF(may, known, CONCAT(REPEAT(' ', 24), '1', LPAD('-1', 14, ' '), 'p'))),
            done = done + 1;
    END WHILE;
    CLOSE each_line;
END;

-- name: charge_lines
-- Counts for each account that has a quota what was published of it.
CREATE PROCEDURE charge_lines(given JSON, heads LONGBLOB, blocks LONGBLOB)
BEGIN
    DECLARE limited INT;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE all_events INT DEFAULT LENGTH(heads) DIV 90;
    DECLARE account VARCHAR(64);
    DECLARE counted, bytes BIGINT;
    DECLARE each_account CURSOR FOR
        SELECT q.account_id, SUM(c.counted), SUM(c.bytes)
        FROM (
            SELECT SUBSTR(g.head, 90 * l.n + 1, 5) + 1 AS place, COUNT(e.id) AS counted, SUM(LENGTH(e.payload)) AS bytes
            FROM (SELECT heads AS head, blocks AS ids) AS g
            STRAIGHT_JOIN numbers AS l ON l.n < all_events
            STRAIGHT_JOIN events AS e
                ON e.id = CAST(CONV(HEX(SUBSTR(g.ids, 8 * (l.n DIV 256) + 1, 8)), 16, 10) AS SIGNED) * 256
                    + MOD(l.n, 256)
            GROUP BY SUBSTR(g.head, 90 * l.n + 1, 5) + 1
        ) AS c
        JOIN JSON_TABLE(given, '$[*]' COLUMNS (place FOR ORDINALITY, account VARCHAR(64) PATH '$.account')) AS j
            ON j.place = c.place
        JOIN account_quotas AS q ON q.account_id = j.account
        GROUP BY q.account_id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    SELECT COUNT(q.account_id) INTO limited
    FROM JSON_TABLE(given, '$[*]' COLUMNS (account VARCHAR(64) PATH '$.account')) AS j
    JOIN account_quotas AS q ON q.account_id = j.account;
    IF limited > 0 THEN
        OPEN each_account;
        FETCH each_account INTO account, counted, bytes;
        WHILE NOT done DO
            CALL count_published(account, counted, bytes);
            FETCH each_account INTO account, counted, bytes;
        END WHILE;
        CLOSE each_account;
    END IF;
END;

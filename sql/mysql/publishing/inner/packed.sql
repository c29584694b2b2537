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

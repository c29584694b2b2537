-- name: report_positions
-- Reports the positions (JSON arrays) that a program outside the database has seen: a sink, an archive, a registry or
-- a client. If a position lies beyond the log of the same history, a restore has lost commits, and the partition is
-- stopped until reconcile is called. It is stopped for all readers if the login may operate the topic, else for the
-- subscription that the caller names (or NULL). Returns for each partition whether it is stopped, where the log ends,
-- and the current history: a caller that has another history has to find out where to continue. There is no row for a
-- partition that is gone, or that the login may not operate and the subscription does not read. Raises PS006, PS013,
-- PS018.
CREATE PROCEDURE report_positions(
    partition_ids JSON, sequences JSON, histories JSON, source TEXT, subscription LONGTEXT
)
BEGIN
    DECLARE owner_id BIGINT DEFAULT 0;
    DECLARE present, given, wrong INT;
    DECLARE known JSON;
    {{on error: CALL undo_call()}}
    CALL begin_call('report_positions()');
    CALL require_read_committed('report_positions()');
    SET given = COALESCE(JSON_LENGTH(partition_ids), 0);
    SELECT COUNT(*) INTO wrong
    FROM JSON_TABLE(JSON_MERGE_PRESERVE(partition_ids, sequences, histories), '$[*]' COLUMNS (
        place FOR ORDINALITY, number BIGINT PATH '$')) AS g
    WHERE g.number IS NULL OR g.number < 0 OR (g.place > 2 * given AND g.number NOT BETWEEN 1 AND 2147483647);
    IF COALESCE(wrong > 0 OR source = '' OR JSON_LENGTH(sequences) <> given
                OR JSON_LENGTH(histories) <> given, TRUE) THEN
        CALL refuse('PS006', CONCAT('cannot record positions ', COALESCE(LEFT(sequences, 30), 'NULL'), ' of histories ',
                                    COALESCE(LEFT(histories, 30), 'NULL'), ', seen by "',
                                    COALESCE(LEFT(source, 30), ''), '"'));
    END IF;
    IF subscription IS NOT NULL THEN
        CALL require_subscription(subscription, owner_id);
    END IF;
    SELECT MAX(h.history) INTO present FROM histories AS h;
    CALL stop_reported(partition_ids, sequences, histories, owner_id, present, source, known);
    SELECT p.id AS partition_id, EXISTS (
               SELECT * FROM stops AS s
               WHERE s.partition_id = p.id AND s.subscription_id IN (0, owner_id) AND s.history >= present) AS stopped,
           high_watermark(p.id) AS high_watermark, present AS present_history
    FROM JSON_TABLE(known, '$[*]' COLUMNS (id BIGINT PATH '$')) AS j JOIN partitions AS p ON p.id = j.id
    ORDER BY p.id;
    CALL end_call();
END;

-- name: restore_status
-- What is beyond the end of the log after a restore: stopped partitions, and positions of subscriptions. Without those
-- of topics and subscriptions that the login may not see.
CREATE PROCEDURE restore_status()
READS SQL DATA
BEGIN
    DECLARE present INT;
    CALL refuse_serializable('restore_status()');
    SELECT MAX(h.history) INTO present FROM histories AS h;
    SELECT t.address AS topic, p.number AS `partition`, b.watermark AS high_watermark, b.sequence, b.history, b.source,
           b.reported_at
    FROM (
        SELECT s.partition_id, s.sequence, s.history,
               CONCAT(s.source, COALESCE(CONCAT(' (stops "', o.name, '" alone)'), '')) AS source, s.reported_at,
               high_watermark(s.partition_id) AS watermark
        FROM stops AS s LEFT JOIN subscriptions AS o ON o.id = s.subscription_id
        WHERE s.history >= present AND (o.id IS NULL OR NOT reads_hidden(o.id))
        UNION ALL
        SELECT l.partition_id, current_position(l.subscription_id, l.partition_id), present,
               CONCAT('subscription "', o.name, '"'), NULL, high_watermark(l.partition_id)
        FROM leases AS l JOIN subscriptions AS o ON o.id = l.subscription_id
        WHERE current_position(l.subscription_id, l.partition_id) > high_watermark(l.partition_id)
          AND NOT reads_hidden(o.id)
    ) AS b
    JOIN partitions AS p ON p.id = b.partition_id
    JOIN topics AS t ON t.id = p.topic_id
    WHERE NOT t.restricted AND @penstock_acting IS NULL OR has_right(t.namespace_id, 'any')
    ORDER BY t.address, p.number, b.source;
END;

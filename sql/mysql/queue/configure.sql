-- name: configure_queue
-- Sets settings of a queue, given as a JSON object; the others stay. Raises PS006, PS013, PS018, PS042.
CREATE PROCEDURE configure_queue(subscription LONGTEXT, settings JSON)
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE bad, wanted VARCHAR(100);
    {{on error: CALL undo_call()}}
    CALL begin_call('configure_queue()');
    CALL require_read_committed('configure_queue()');
    CALL require_queue(subscription, 'consume', owner_id);
    -- A redrive locks the same row, so it sees the order that is set here, or this sees what it has brought back.
    SET owner_id = (SELECT s.id FROM subscriptions AS s WHERE s.id = owner_id FOR UPDATE);
    CALL require_queue(subscription, 'consume', owner_id);
    IF COALESCE(JSON_TYPE(settings), '') <> 'OBJECT' THEN
        CALL refuse('PS006', 'the settings of a queue are not a JSON object');
    END IF;
    SELECT MAX(LEFT(g.setting, 60)) INTO bad
    FROM JSON_TABLE(JSON_KEYS(settings), '$[*]' COLUMNS (setting VARCHAR(100) PATH '$')) AS g
    LEFT JOIN queue_bounds AS b ON CAST(b.setting AS BINARY) = CAST(g.setting AS BINARY)
    WHERE CAST(g.setting AS BINARY) <> 'order' AND (
        b.setting IS NULL
        OR JSON_TYPE(JSON_EXTRACT(settings, CONCAT('$.', b.setting))) NOT IN ('INTEGER', 'DOUBLE', 'DECIMAL')
        OR NOT JSON_EXTRACT(settings, CONCAT('$.', b.setting)) + 0 BETWEEN b.lowest AND b.highest
        OR (b.is_whole AND MOD(JSON_EXTRACT(settings, CONCAT('$.', b.setting)) + 0, 1) <> 0));
    SET wanted = LEFT(JSON_UNQUOTE(JSON_EXTRACT(settings, '$.order')), 60);
    IF bad IS NOT NULL THEN
        CALL refuse('PS006', CONCAT('the setting ', bad, ' of a queue cannot have this value, or there is none'));
    ELSEIF CAST(wanted AS BINARY) NOT IN ('none', 'key') THEN
        CALL refuse('PS006', CONCAT('there is no order ', wanted, ': use none or key'));
    END IF;
    UPDATE queues AS q
    SET q.visibility_seconds = COALESCE(JSON_EXTRACT(settings, '$.visibility_seconds') + 0, q.visibility_seconds),
        q.max_deliveries = COALESCE(JSON_EXTRACT(settings, '$.max_deliveries') + 0, q.max_deliveries),
        q.max_failures = COALESCE(JSON_EXTRACT(settings, '$.max_failures') + 0, q.max_failures),
        q.max_in_flight = COALESCE(JSON_EXTRACT(settings, '$.max_in_flight') + 0, q.max_in_flight),
        q.first_backoff_seconds
            = COALESCE(JSON_EXTRACT(settings, '$.first_backoff_seconds') + 0, q.first_backoff_seconds),
        q.longest_backoff_seconds
            = COALESCE(JSON_EXTRACT(settings, '$.longest_backoff_seconds') + 0, q.longest_backoff_seconds),
        q.jitter = COALESCE(JSON_EXTRACT(settings, '$.jitter') + 0, q.jitter),
        q.retention_seconds = COALESCE(JSON_EXTRACT(settings, '$.retention_seconds') + 0, q.retention_seconds)
    WHERE q.subscription_id = owner_id;
    IF wanted IS NOT NULL THEN
        CALL set_order(owner_id, wanted);
    END IF;
    CALL end_call();
END;

-- name: describe_queue
-- The settings of a queue. Raises PS013, PS042.
CREATE PROCEDURE describe_queue(subscription LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE owner_id BIGINT;
    CALL refuse_serializable('describe_queue()');
    CALL require_queue(subscription, 'consume', owner_id);
    SELECT q.visibility_seconds, q.max_deliveries, q.max_failures, q.max_in_flight, q.first_backoff_seconds,
           q.longest_backoff_seconds, q.jitter, q.`order`, q.retention_seconds
    FROM queues AS q WHERE q.subscription_id = owner_id;
END;

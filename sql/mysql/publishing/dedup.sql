-- name: turn_dedup
-- Forgets dedup keys that are older than the window, a few at a time. Returns whether there were any. Keys that are
-- locked are left for the next call. The session begins where its last call ended, so that it does not step again
-- over deleted rows that a read view still keeps. A key of a transaction that was open for longer than the window is
-- left to the next session.
CREATE PROCEDURE turn_dedup()
BEGIN
    DECLARE window_seconds DOUBLE;
    DECLARE some BOOLEAN;
    DECLARE expired, remaining DATETIME(6);
    DECLARE begin_at DATETIME(6) DEFAULT IF(
        CAST(@penstock_forgotten AS CHAR)
            REGEXP '^20[0-9]{2}-(0[1-9]|1[0-2])-([0-2][0-9]|3[01]) [0-9:.]{8,15}$', @penstock_forgotten, '2000-01-01');
    {{on error: CALL undo_call()}}
    CALL begin_call('turn_dedup()');
    CALL find_setting('dedup_window_seconds', window_seconds);
    SET expired = UTC_TIMESTAMP(6) - INTERVAL CAST(window_seconds * 1000000 AS SIGNED) MICROSECOND;
    -- The session may have written anything into the variable.
    SET begin_at = IF(begin_at > expired, '2000-01-01', begin_at);
    DELETE d
    FROM (
        -- With a column that the index lacks: else MySQL may read the whole index instead of a range of it.
        SELECT o.topic_id, o.dedup_key, o.event_id
        FROM dedup_keys AS o FORCE INDEX (dedup_keys_at)
        WHERE o.at >= begin_at AND o.at < expired
        ORDER BY o.at
        LIMIT 10000
        FOR UPDATE SKIP LOCKED
    ) AS old_one
    STRAIGHT_JOIN dedup_keys AS d FORCE INDEX (PRIMARY)
        ON d.topic_id = old_one.topic_id AND d.dedup_key = old_one.dedup_key;
    SET some = ROW_COUNT() > 0;
    SELECT MIN(o.at) INTO remaining FROM dedup_keys AS o WHERE o.at >= begin_at AND o.at < expired;
    SET @penstock_forgotten = COALESCE(remaining, expired);
    SELECT some AS turned;
    CALL end_call();
END;

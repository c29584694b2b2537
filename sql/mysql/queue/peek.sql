-- name: peek
-- The next unfinished events of each partition, and what waits outside the window, without handing anything out: at
-- most max_events. state is ready, in_flight, delayed or behind (an earlier event of its key). Raises PS006, PS013,
-- PS042.
CREATE PROCEDURE peek(subscription LONGTEXT, max_events INT)
READS SQL DATA
BEGIN
    DECLARE owner_id, floor_id BIGINT;
    DECLARE history INT;
    CALL refuse_serializable('peek()');
    CALL require_queue(subscription, 'peek', owner_id);
    IF NOT COALESCE(max_events BETWEEN 1 AND 1000, FALSE) THEN
        CALL refuse('PS006', CONCAT('cannot peek at ', COALESCE(max_events, 'NULL'), ' events: use 1 to 1,000'));
    END IF;
    SELECT t.floor_id INTO floor_id FROM queue_turns AS t WHERE t.subscription_id = owner_id;
    SELECT MAX(h.history) INTO history FROM histories AS h;
    CALL show_queue(owner_id, floor_id, max_events, history, UTC_TIMESTAMP(6));
END;

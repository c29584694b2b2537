-- name: receive
-- Hands out at most max_events events, invisible to others for visibility_seconds (NULL: the queue's own). Each claim
-- that comes with them counts as a delivery, so commit that before a handler gets them. Events come from the log in its
-- order, unless they came back. An event that was handed out twice and never finished is handed out alone. Nothing is
-- returned while the subscription is paused, or max_in_flight are handed out. Raises PS006, PS013, PS018, PS042.
CREATE PROCEDURE receive(subscription LONGTEXT, max_events INT, visibility_seconds DOUBLE)
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE claimed LONGTEXT;
    DECLARE own_token BINARY(16);
    DECLARE ends DATETIME(6);
    DECLARE paused BOOLEAN;
    DECLARE kept_order VARCHAR(10);
    DECLARE id_before BIGINT DEFAULT LAST_INSERT_ID();
    {{on error: CALL undo_call(); DO LAST_INSERT_ID(id_before)}}
    CALL begin_call('receive()');
    CALL require_read_committed('receive()');
    CALL find_queue(subscription, 'receive', owner_id, kept_order);
    SELECT COALESCE(visibility_seconds, q.visibility_seconds) INTO visibility_seconds
    FROM queues AS q WHERE q.subscription_id = owner_id;
    IF NOT COALESCE(max_events BETWEEN 1 AND 1000, FALSE) OR NOT visibility_seconds BETWEEN 0 AND 43200 THEN
        CALL refuse('PS006', CONCAT('cannot receive ', COALESCE(max_events, 'NULL'), ' events for ', visibility_seconds,
                                    ' seconds'));
    END IF;
    CALL is_paused(owner_id, paused);
    IF NOT paused THEN
        SET own_token = RANDOM_BYTES(16),
            ends = UTC_TIMESTAMP(6) + INTERVAL ROUND(visibility_seconds * 1e6) MICROSECOND;
        CALL claim_events(owner_id, kept_order, max_events, own_token, ends, claimed);
        IF claimed <> '' THEN
            CALL read_claims(owner_id, claimed);
        END IF;
    END IF;
    DO LAST_INSERT_ID(id_before);
    CALL end_call();
END;

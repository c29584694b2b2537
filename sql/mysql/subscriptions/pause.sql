-- name: pause_subscription
-- Pauses a subscription: from now on its leases are not handed out and polls return nothing. Check-ins ask for the
-- leases that are held; events that a consumer already has may be committed until it gives the lease back. A second
-- call keeps the time of the first, and replaces the reason and the login that gave it. Returns whether the
-- subscription was running. Raises PS006, PS013.
CREATE PROCEDURE pause_subscription(subscription LONGTEXT, reason LONGTEXT)
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE paused BOOLEAN;
    {{on error: CALL undo_call()}}
    CALL begin_call('pause_subscription()');
    IF reason IS NULL OR CHAR_LENGTH(reason) > 1000 THEN
        CALL refuse('PS006', 'the reason of a pause is NULL or has more than 1,000 characters');
    END IF;
    CALL lock_subscription(subscription, owner_id);
    CALL is_paused(owner_id, paused);
    UPDATE subscriptions AS s
    SET s.paused_at = COALESCE(s.paused_at, UTC_TIMESTAMP(6)), s.paused_by = principal(), s.paused_reason = reason
    WHERE s.id = owner_id AND (s.paused_at IS NULL OR CHAR_LENGTH(reason) > 0);
    SELECT NOT paused AS paused;
    CALL end_call();
END;

-- name: resume_subscription
-- Lets the next check-ins hand out leases again. Returns whether the subscription was paused. Raises PS013.
CREATE PROCEDURE resume_subscription(subscription LONGTEXT)
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE paused BOOLEAN;
    {{on error: CALL undo_call()}}
    CALL begin_call('resume_subscription()');
    CALL lock_subscription(subscription, owner_id);
    CALL is_paused(owner_id, paused);
    UPDATE subscriptions AS s SET s.paused_at = NULL, s.paused_by = NULL, s.paused_reason = NULL
    WHERE s.id = owner_id;
    SELECT paused AS resumed;
    CALL end_call();
END;

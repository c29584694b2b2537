-- name: pause_subscription
-- Pauses a subscription: from now on its leases are not handed out and polls return nothing. Check-ins ask for the
-- leases that are held; events that a consumer already has may be committed until it gives the lease back. A second
-- call keeps the time of the first, and replaces the reason and the login that gave it. Returns whether the
-- subscription was running. Raises PS006, PS013.
CREATE OR REPLACE FUNCTION pause_subscription(subscription text, reason text DEFAULT '') RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner_id bigint := (require_subscription(subscription)).id;
BEGIN
    PERFORM commit_durably();
    IF reason IS NULL OR char_length(reason) > 1000 THEN
        PERFORM refuse('PS006', 'the reason of a pause is NULL or has more than 1,000 characters', 'Use 0 to 1,000.');
    END IF;
    UPDATE subscriptions AS s
    SET paused_at = clock_timestamp(), paused_by = principal(), paused_reason = pause_subscription.reason
    WHERE s.id = owner_id AND s.paused_at IS NULL;
    IF FOUND THEN
        RETURN true;
    END IF;
    UPDATE subscriptions AS s SET paused_by = principal(), paused_reason = pause_subscription.reason
    WHERE s.id = owner_id AND s.paused_at IS NOT NULL AND pause_subscription.reason <> '';
    RETURN false;
END
$$;

-- name: resume_subscription
-- Lets the next check-ins hand out leases again. Returns whether the subscription was paused. Raises PS013.
CREATE OR REPLACE FUNCTION resume_subscription(subscription text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner_id bigint := (require_subscription(subscription)).id;
BEGIN
    PERFORM commit_durably();
    UPDATE subscriptions AS s SET paused_at = NULL, paused_by = NULL, paused_reason = NULL
    WHERE s.id = owner_id AND s.paused_at IS NOT NULL;
    RETURN FOUND;
END
$$;

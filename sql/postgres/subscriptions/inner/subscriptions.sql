-- name: require_subscription
-- The subscription with this name; raises PS013, also when it reads a topic that the login may not consume.
CREATE OR REPLACE FUNCTION require_subscription(subscription text) RETURNS subscriptions
LANGUAGE plpgsql STABLE AS $$
DECLARE
    found_row subscriptions%ROWTYPE;
BEGIN
    SELECT s.* INTO found_row FROM subscriptions AS s WHERE s.name = subscription;
    -- First it checks whether there are any rights at all, so that a heartbeat has no cost for rights where
    -- there are none.
    IF NOT FOUND OR (NOT no_walls() AND reads_hidden(found_row.id)) THEN
        PERFORM refuse('PS013', format('there is no subscription "%s"', subscription),
                       'Create it: SELECT penstock.subscribe(...).');
    END IF;
    RETURN found_row;
END
$$;

-- name: is_paused
-- Whether a subscription is paused. Call it after its row is locked, in a separate statement.
CREATE OR REPLACE FUNCTION is_paused(subscription_id bigint) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN s.paused_at IS NOT NULL FROM subscriptions AS s WHERE s.id = is_paused.subscription_id;
END
$$;

-- name: refuse_unread
-- Raises the error that a subscription does not read a topic (PS013).
CREATE OR REPLACE FUNCTION refuse_unread(subscription text, topic text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM refuse('PS013', format('subscription "%s" does not read topic "%s"', subscription, left(topic, 200)),
                   'Subscribe it to the topic first.');
END
$$;

-- name: sees_all
-- Whether the login may see figures over the whole log: it passes the walls, or there are no walls.
CREATE OR REPLACE FUNCTION sees_all() RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT NOT EXISTS (SELECT FROM namespace_grants) OR passes_walls('read')
$$;

-- name: reads_unseen
-- Whether a subscription reads a topic that the login may not read: then the login sees neither the
-- subscription's name nor its consumers.
CREATE OR REPLACE FUNCTION reads_unseen(subscription_id bigint) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT EXISTS (
        SELECT FROM subscription_topics AS s JOIN topics AS t ON t.id = s.topic_id
        WHERE s.subscription_id = reads_unseen.subscription_id AND t.restricted
          AND NOT has_right(t.namespace_id, 'read'))
$$;

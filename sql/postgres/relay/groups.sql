-- name: set_relay_group
-- Creates a relay with several sinks, or adds sinks to one, and sets how many of them have to pass an event before the
-- relay has passed it. Each sink is a subscription RELAY.SINK, which begins at start (see subscribe); one that is there
-- already is taken as it stands. Sinks that are not named stay. topics: those of the relay, which stay; NULL for one
-- that exists. retain_for: all or quorum; quorum needs verified copies of each topic. Returns how many sinks were new.
-- Raises PS002, PS006, PS007, PS013, PS018 and what subscribe raises.
CREATE OR REPLACE FUNCTION set_relay_group(
    relay text, topics text[], sinks text[], ack_quorum integer, retain_for text DEFAULT 'all',
    start text DEFAULT 'earliest'
) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    own relay_groups%ROWTYPE;
    present text[];
    is_new boolean;
    sink_name text;
    added integer := 0;
BEGIN
    PERFORM commit_durably();
    PERFORM require_read_committed('set_relay_group()');
    PERFORM require_name(replace(relay, '/', '.'), 'relay');
    PERFORM require_sinks(relay, sinks);
    PERFORM require_ack_quorum(ack_quorum);
    own := lock_relay_group(relay);
    is_new := own.id IS NULL;
    IF is_new THEN
        own := begin_relay_group(relay, set_relay_group.ack_quorum);
        present := set_relay_group.topics;
    ELSE
        present := topics_of_relay(own.id);
        PERFORM require_same_topics(relay, present, set_relay_group.topics);
        -- Locked before subscriptions, as in every call that locks both.
        PERFORM lock_topic(g, 'consume') FROM unnest(present) AS g;
        PERFORM hold_relay_members(own.id);
        PERFORM raise_relay_floors(own.id);
    END IF;
    FOR sink_name IN SELECT DISTINCT g COLLATE "C" AS name FROM unnest(sinks) AS g ORDER BY 1 LOOP
        added := added + add_relay_member(own, sink_name, present, set_relay_group.start)::integer;
    END LOOP;
    IF is_new THEN
        PERFORM begin_relay_floors(own.id, set_relay_group.ack_quorum);
    END IF;
    PERFORM require_possible_quorum(own, set_relay_group.ack_quorum);
    PERFORM require_retain_for(own.id, set_relay_group.retain_for);
    UPDATE relay_groups AS g
    SET ack_quorum = set_relay_group.ack_quorum, retain_for = set_relay_group.retain_for
    WHERE g.id = own.id;
    RETURN added;
END
$$;

-- name: delete_relay_group
-- Makes the sinks of a relay ordinary subscriptions again, which stay where they stand. Raises PS013.
CREATE OR REPLACE FUNCTION delete_relay_group(relay text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    own relay_groups%ROWTYPE := lock_relay_group(relay);
BEGIN
    PERFORM commit_durably();
    IF own.id IS NULL THEN
        PERFORM refuse_relay(relay);
    END IF;
    DELETE FROM relay_marks AS k
    USING relay_members AS r
    WHERE r.group_id = own.id AND k.subscription_id = r.subscription_id;
    DELETE FROM relay_members AS r WHERE r.group_id = own.id;
    DELETE FROM relay_floors AS f WHERE f.group_id = own.id;
    DELETE FROM relay_groups AS g WHERE g.id = own.id;
END
$$;

-- name: list_relay_groups
-- The relays with several sinks that the login may see, with a row for each sink.
CREATE OR REPLACE FUNCTION list_relay_groups()
RETURNS TABLE (relay text, ack_quorum integer, retain_for text, sink text, subscription text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT g.name, g.ack_quorum, g.retain_for, r.sink, s.name
    FROM relay_groups AS g
    JOIN relay_members AS r ON r.group_id = g.id
    JOIN subscriptions AS s ON s.id = r.subscription_id
    WHERE (SELECT no_walls()) OR NOT hides_relay(g.id)
    ORDER BY g.name, r.sink
$$;

-- name: relay_group_lag
-- Where the relays with several sinks stand, or one of them (NULL: all): position is the highest sequence that at least
-- ack_quorum of their sinks have passed, and it never moves back. sinks_there: how many sinks have passed it.
CREATE OR REPLACE FUNCTION relay_group_lag(relay text DEFAULT NULL)
RETURNS TABLE (
    relay text, topic text, partition integer, "position" bigint, high_watermark bigint, lag_events bigint,
    lag_seconds double precision, sinks bigint, sinks_there bigint
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT g.name, t.address, p.number, at.position, at.watermark, at.watermark - at.position,
           COALESCE(extract(epoch FROM clock_timestamp() - sequenced_at_of(p.id, at.position + 1)), 0),
           m.sinks, m.sinks_there
    FROM relay_groups AS g
    CROSS JOIN LATERAL (
        SELECT DISTINCT l.partition_id
        FROM relay_members AS r JOIN leases AS l ON l.subscription_id = r.subscription_id
        WHERE r.group_id = g.id
    ) AS read
    JOIN partitions AS p ON p.id = read.partition_id
    JOIN topics AS t ON t.id = p.topic_id
    CROSS JOIN LATERAL (
        SELECT group_position(g.id, p.id) AS position, high_watermark(p.id) AS watermark OFFSET 0
    ) AS at
    CROSS JOIN LATERAL (
        SELECT count(*) AS sinks,
               count(*) FILTER (WHERE h.started <= at.position AND h.passed >= at.position) AS sinks_there
        FROM passed_by_members(g.id, p.id) AS h
    ) AS m
    WHERE (relay_group_lag.relay IS NULL OR g.name = relay_group_lag.relay)
      AND ((SELECT no_walls()) OR NOT hides_relay(g.id))
      AND (NOT t.restricted AND (SELECT as_login()) OR has_right(t.namespace_id, 'read'))
    ORDER BY g.name, t.address, p.number
$$;

-- name: set_relay_group
-- Creates a relay with several sinks, or adds sinks to one, and sets how many of them have to pass an event before the
-- relay has passed it. Each sink is a subscription RELAY.SINK, which begins at start (see subscribe); one that is there
-- already is taken as it stands. Sinks that are not named stay. topics: those of the relay, which stay; NULL for one
-- that exists. retain_for: all or quorum; quorum needs verified copies of each topic. Returns how many sinks were new.
-- Raises PS002, PS006, PS007, PS013, PS018 and what subscribe raises.
CREATE PROCEDURE set_relay_group(
    relay LONGTEXT, topics JSON, sinks JSON, given_quorum INT, given_retain LONGTEXT, start LONGTEXT
)
BEGIN
    DECLARE own_id BIGINT;
    DECLARE is_new BOOLEAN;
    DECLARE present JSON;
    DECLARE added INT DEFAULT 0;
    {{on error: CALL undo_call()}}
    CALL begin_call('set_relay_group()');
    CALL require_read_committed('set_relay_group()');
    CALL require_name(REPLACE(relay, '/', '.'), 'relay');
    CALL require_sinks(sinks);
    CALL require_ack_quorum(given_quorum);
    CALL lock_relay_group(relay, own_id);
    SET is_new = own_id IS NULL, present = topics;
    IF is_new THEN
        CALL begin_relay_group(relay, given_quorum, own_id);
    ELSE
        CALL topics_of_relay(own_id, present);
        CALL require_same_topics(present, topics);
        -- Locked before subscriptions, as in every call that locks both.
        CALL lock_topics(present, 'consume');
        CALL hold_relay_members(own_id);
        CALL raise_relay_floors(own_id);
    END IF;
    CALL add_relay_members(own_id, relay, sinks, present, start, added);
    IF is_new THEN
        CALL begin_relay_floors(own_id, given_quorum);
    END IF;
    CALL require_possible_quorum(own_id, given_quorum);
    CALL require_retain_for(own_id, given_retain);
    UPDATE relay_groups AS g SET g.ack_quorum = given_quorum, g.retain_for = given_retain WHERE g.id = own_id;
    SELECT added;
    CALL end_call();
END;

-- name: delete_relay_group
-- Makes the sinks of a relay ordinary subscriptions again, which stay where they stand. Raises PS013, PS018.
CREATE PROCEDURE delete_relay_group(relay LONGTEXT)
BEGIN
    DECLARE own_id BIGINT;
    {{on error: CALL undo_call()}}
    CALL begin_call('delete_relay_group()');
    CALL lock_relay_group(relay, own_id);
    IF own_id IS NULL THEN
        CALL refuse_relay(relay);
    END IF;
    CALL forget_relay_group(own_id);
    CALL end_call();
END;

-- name: list_relay_groups
-- The relays with several sinks that the login may see, with a row for each sink.
CREATE PROCEDURE list_relay_groups()
READS SQL DATA
BEGIN
    CALL refuse_serializable('list_relay_groups()');
    SELECT g.name AS relay, g.ack_quorum, g.retain_for, r.sink, s.name AS subscription
    FROM relay_groups AS g
    JOIN relay_members AS r ON r.group_id = g.id
    JOIN subscriptions AS s ON s.id = r.subscription_id
    WHERE NOT hides_relay(g.id)
    ORDER BY CAST(g.name AS BINARY), CAST(r.sink AS BINARY);
END;

-- name: relay_group_lag
-- Where the relays with several sinks stand, or one of them (NULL: all): position is the highest sequence that at least
-- ack_quorum of their sinks have passed, and it never moves back. sinks_there: how many sinks have passed it.
CREATE PROCEDURE relay_group_lag(relay LONGTEXT)
READS SQL DATA
BEGIN
    CALL refuse_serializable('relay_group_lag()');
    WITH standing AS (
        SELECT g.id AS group_id, g.name, t.address, p.number, p.id, group_position(g.id, p.id) AS position,
               high_watermark(p.id) AS watermark
        FROM relay_groups AS g
        JOIN (
            SELECT DISTINCT r.group_id, l.partition_id
            FROM relay_members AS r JOIN leases AS l ON l.subscription_id = r.subscription_id
        ) AS n ON n.group_id = g.id
        JOIN partitions AS p ON p.id = n.partition_id
        JOIN topics AS t ON t.id = p.topic_id
        WHERE (relay IS NULL OR g.name_hash = UNHEX(SHA2(relay, 256))) AND NOT hides_relay(g.id)
          AND (NOT t.restricted AND @penstock_acting IS NULL OR has_right(t.namespace_id, 'read'))
        LIMIT 100000000  -- Keeps it from being merged into the query, which would call the functions for each mention.
    )
    SELECT a.name AS relay, a.address AS topic, a.number AS `partition`, a.position,
           a.watermark AS high_watermark, a.watermark - a.position AS lag_events,
           IF(a.watermark > a.position, waited_for(a.id, a.position + 1), 0) AS lag_seconds,
           (SELECT COUNT(*) FROM relay_members AS r WHERE r.group_id = a.group_id) AS sinks,
           (SELECT COUNT(*) FROM relay_members AS r
            WHERE r.group_id = a.group_id AND begun_by_member(r.subscription_id, a.id) <= a.position
              AND passed_by_member(r.subscription_id, a.id) >= a.position) AS sinks_there
    FROM standing AS a
    ORDER BY a.name, a.address, a.number;
END;

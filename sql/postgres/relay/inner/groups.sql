-- name: lock_relay_group
-- The relay with several sinks of this name, locked; NULL when there is none, or when it is hidden. It is locked before
-- topics, subscriptions and leases.
CREATE OR REPLACE FUNCTION lock_relay_group(relay text) RETURNS relay_groups
LANGUAGE plpgsql AS $$
DECLARE
    own relay_groups%ROWTYPE;
BEGIN
    SELECT g.* INTO own FROM relay_groups AS g
    WHERE g.name = relay AND (no_walls() OR NOT hides_relay(g.id))
    FOR UPDATE;
    RETURN own;
END
$$;

-- name: hides_relay
-- Whether a sink of a relay reads a topic that the login may not see.
CREATE OR REPLACE FUNCTION hides_relay(group_id bigint) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT FROM relay_members AS r
        WHERE r.group_id = hides_relay.group_id AND reads_hidden(r.subscription_id))
$$;

-- name: refuse_relay
-- Raises the error that there is no such relay (PS013).
CREATE OR REPLACE FUNCTION refuse_relay(relay text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM refuse('PS013', format('there is no relay "%s" with several sinks', left(relay, 200)),
                   'Create it first, with its sinks.');
END
$$;

-- name: require_sinks
-- Checks the names of sinks; raises PS006.
CREATE OR REPLACE FUNCTION require_sinks(relay text, sinks text[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    wrong text;
BEGIN
    SELECT left(g.name, 200) INTO wrong FROM unnest(sinks) AS g (name)
    WHERE (g.name ~ $p$^[A-Za-z0-9][A-Za-z0-9_-]{0,62}\Z$p$) IS NOT TRUE
    LIMIT 1;
    IF FOUND THEN
        PERFORM refuse('PS006', format('"%s" cannot be the name of a sink of the relay "%s"', wrong, left(relay, 200)),
                       'Use up to 63 letters, digits, dashes and underscores.');
    END IF;
END
$$;

-- name: require_ack_quorum
-- Refuses a quorum below 1 (PS006).
CREATE OR REPLACE FUNCTION require_ack_quorum(ack_quorum integer) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF ack_quorum IS NULL OR ack_quorum < 1 THEN
        PERFORM refuse('PS006', format('ack_quorum cannot be %s', COALESCE(ack_quorum::text, 'NULL')),
                       'Use 1 to the number of sinks.');
    END IF;
END
$$;

-- name: begin_relay_group
-- A new relay with several sinks, locked, without sinks. Raises PS007 when its name is another's, or a subscription's.
CREATE OR REPLACE FUNCTION begin_relay_group(relay text, ack_quorum integer) RETURNS relay_groups
LANGUAGE plpgsql AS $$
DECLARE
    own relay_groups%ROWTYPE;
BEGIN
    IF NOT may_name(relay) OR EXISTS (SELECT FROM subscriptions AS s WHERE s.name = relay) THEN
        PERFORM refuse('PS007', format('"%s" is another''s name, or that of a subscription', left(relay, 200)),
                       'Choose another name for the relay.');
    END IF;
    INSERT INTO relay_groups (name, ack_quorum) VALUES (relay, begin_relay_group.ack_quorum)
    ON CONFLICT (name) DO NOTHING
    RETURNING * INTO own;
    IF NOT FOUND THEN
        PERFORM refuse('PS007', format('there is already a relay "%s"', left(relay, 200)), 'Choose another name.');
    END IF;
    RETURN own;
END
$$;

-- name: topics_of_relay
-- The addresses of the topics that the sinks of a relay read.
CREATE OR REPLACE FUNCTION topics_of_relay(group_id bigint) RETURNS text[]
LANGUAGE sql STABLE AS $$
    SELECT ARRAY(
        SELECT DISTINCT t.address
        FROM relay_members AS r
        JOIN subscription_topics AS s ON s.subscription_id = r.subscription_id
        JOIN topics AS t ON t.id = s.topic_id
        WHERE r.group_id = topics_of_relay.group_id
        ORDER BY t.address)
$$;

-- name: require_same_topics
-- Refuses other topics than those that a relay has (PS006): a sink that reads one alone would hold up the relay there.
CREATE OR REPLACE FUNCTION require_same_topics(relay text, present text[], wanted text[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF wanted IS NOT NULL AND NOT (wanted <@ present AND present <@ wanted) THEN
        PERFORM refuse('PS006', format('the relay "%s" has the topics %s', left(relay, 200),
                                       left(array_to_string(present, ', '), 500)),
                       'They stay; make another relay for other topics.');
    END IF;
END
$$;

-- name: add_relay_member
-- Adds a sink to a relay, if it has none of this name; whether it was new. Raises PS007 and what subscribe raises.
CREATE OR REPLACE FUNCTION add_relay_member(own relay_groups, sink text, topics text[], start text) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    owner subscriptions%ROWTYPE;
BEGIN
    IF EXISTS (SELECT FROM relay_members AS r WHERE r.group_id = own.id AND r.sink = add_relay_member.sink) THEN
        RETURN false;
    END IF;
    PERFORM subscribe(own.name || '.' || add_relay_member.sink, topics, start);
    owner := require_subscription(own.name || '.' || add_relay_member.sink);
    IF owner.mode <> 'stream' OR EXISTS (SELECT FROM relay_members AS r WHERE r.subscription_id = owner.id)
            OR (SELECT count(*) FROM subscription_topics AS t WHERE t.subscription_id = owner.id)
               <> (SELECT count(DISTINCT g) FROM unnest(topics) AS g) THEN
        PERFORM refuse('PS007', format('the subscription "%s" is a queue, or reads other topics', owner.name),
                       'Choose another name for the sink.');
    END IF;
    -- So that no commit comes between this and where the relay stands.
    PERFORM FROM leases AS l WHERE l.subscription_id = owner.id ORDER BY l.partition_id FOR UPDATE;
    INSERT INTO relay_members (subscription_id, group_id, sink) VALUES (owner.id, own.id, add_relay_member.sink);
    INSERT INTO relay_marks (subscription_id, partition_id, started)
    SELECT owner.id, l.partition_id, current_position(owner.id, l.partition_id)
    FROM leases AS l
    WHERE l.subscription_id = owner.id;
    RETURN true;
END
$$;

-- name: hold_relay_members
-- Locks the sinks of a relay and where they stand: until the transaction ends, no position of theirs moves.
CREATE OR REPLACE FUNCTION hold_relay_members(group_id bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    members bigint[] := ARRAY(
        SELECT r.subscription_id FROM relay_members AS r WHERE r.group_id = hold_relay_members.group_id);
BEGIN
    PERFORM FROM subscriptions AS s WHERE s.id = ANY (members) ORDER BY s.id FOR UPDATE;
    PERFORM FROM leases AS l
    WHERE l.subscription_id = ANY (members)
    ORDER BY l.subscription_id, l.partition_id
    FOR UPDATE;
END
$$;

-- name: passed_by_members
-- What each sink of a relay has passed of a partition: from after started up to passed. passed never moves back.
CREATE OR REPLACE FUNCTION passed_by_members(group_id bigint, partition_id bigint)
RETURNS TABLE (subscription_id bigint, started bigint, passed bigint)
LANGUAGE sql STABLE AS $$
    SELECT r.subscription_id, COALESCE(k.started, 0),
           GREATEST(current_position(r.subscription_id, l.partition_id), k.passed)
    FROM relay_members AS r
    JOIN leases AS l
        ON l.subscription_id = r.subscription_id AND l.partition_id = passed_by_members.partition_id
    LEFT JOIN relay_marks AS k ON k.subscription_id = r.subscription_id AND k.partition_id = l.partition_id
    WHERE r.group_id = passed_by_members.group_id
$$;

-- name: group_position
-- Where a relay with several sinks stands in a partition: the highest sequence up to which at least ack_quorum sinks
-- have passed each event. The first event that fewer have passed comes after the floor, or after the last one that some
-- sink has passed, so only these places are looked at.
CREATE OR REPLACE FUNCTION group_position(group_id bigint, partition_id bigint) RETURNS bigint
LANGUAGE sql STABLE AS $$
    WITH members AS MATERIALIZED (
        SELECT h.started, h.passed
        FROM passed_by_members(group_position.group_id, group_position.partition_id) AS h
    ), floor AS MATERIALIZED (
        SELECT COALESCE(max(f.position), 0) AS at FROM relay_floors AS f
        WHERE f.group_id = group_position.group_id AND f.partition_id = group_position.partition_id
    )
    SELECT min(c.at)
    FROM (SELECT f.at FROM floor AS f UNION SELECT m.passed FROM members AS m) AS c
    WHERE c.at >= (SELECT f.at FROM floor AS f)
      AND (SELECT count(*) FROM members AS n WHERE n.started <= c.at AND n.passed > c.at)
          < (SELECT g.ack_quorum FROM relay_groups AS g WHERE g.id = group_position.group_id)
$$;

-- name: begin_relay_floors
-- Where a new relay stands: where as many of its sinks as its quorum have begun. What comes before that can never be
-- passed by so many.
CREATE OR REPLACE FUNCTION begin_relay_floors(group_id bigint, ack_quorum integer) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO relay_floors (group_id, partition_id, position)
    SELECT begin_relay_floors.group_id, o.partition_id, o.started
    FROM (
        SELECT k.partition_id, k.started,
               row_number() OVER (PARTITION BY k.partition_id ORDER BY k.started) AS place
        FROM relay_members AS r JOIN relay_marks AS k ON k.subscription_id = r.subscription_id
        WHERE r.group_id = begin_relay_floors.group_id
    ) AS o
    WHERE o.place = begin_relay_floors.ack_quorum
$$;

-- name: raise_relay_floors
-- Records where a relay stands, before its sinks or its quorum are changed. The caller holds its sinks.
CREATE OR REPLACE FUNCTION raise_relay_floors(group_id bigint) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO relay_floors AS f (group_id, partition_id, position)
    SELECT raise_relay_floors.group_id, p.partition_id,
           group_position(raise_relay_floors.group_id, p.partition_id)
    FROM (
        SELECT DISTINCT l.partition_id
        FROM relay_members AS r JOIN leases AS l ON l.subscription_id = r.subscription_id
        WHERE r.group_id = raise_relay_floors.group_id
    ) AS p
    ON CONFLICT ON CONSTRAINT relay_floors_pkey DO UPDATE SET position = EXCLUDED.position
$$;

-- name: require_possible_quorum
-- Refuses a quorum that the sinks of a relay cannot reach (PS006): there are fewer, or fewer of them get the event that
-- the relay waits for, because others begin after it.
CREATE OR REPLACE FUNCTION require_possible_quorum(own relay_groups, ack_quorum integer) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    members bigint := (SELECT count(*) FROM relay_members AS r WHERE r.group_id = own.id);
    wrong record;
BEGIN
    IF members < ack_quorum THEN
        PERFORM refuse('PS006', format('the relay "%s" would have %s sinks, and ack_quorum is %s', left(own.name, 200),
                                       members, ack_quorum),
                       'Lower ack_quorum first, or add a sink.');
    END IF;
    SELECT p.number, t.address, group_position(own.id, p.id) AS at INTO wrong
    FROM (
        SELECT DISTINCT l.partition_id
        FROM relay_members AS r JOIN leases AS l ON l.subscription_id = r.subscription_id
        WHERE r.group_id = own.id
    ) AS l
    JOIN partitions AS p ON p.id = l.partition_id
    JOIN topics AS t ON t.id = p.topic_id
    WHERE (SELECT count(*) FROM passed_by_members(own.id, p.id) AS h WHERE h.started <= group_position(own.id, p.id))
          < ack_quorum
    ORDER BY t.address, p.number
    LIMIT 1;
    IF FOUND THEN
        PERFORM refuse('PS006', format('fewer than %s sinks of the relay "%s" get what follows %s in "%s" partition %s',
                                       ack_quorum, left(own.name, 200), wrong.at, wrong.address, wrong.number),
                       'Wait until the relay has passed where its newest sink begins, or lower ack_quorum.');
    END IF;
END
$$;

-- name: require_retain_for
-- Checks for which sinks retention waits; raises PS006. By the quorum it needs verified copies: what retention drops
-- before a late sink has it, this sink reads from the archive.
CREATE OR REPLACE FUNCTION require_retain_for(group_id bigint, retain_for text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    wrong text;
BEGIN
    IF retain_for IS NULL OR retain_for NOT IN ('all', 'quorum') THEN
        PERFORM refuse('PS006', format('retain_for cannot be %s', COALESCE(left(retain_for, 100), 'NULL')),
                       'Use all or quorum.');
    END IF;
    SELECT g INTO wrong
    FROM unnest(topics_of_relay(require_retain_for.group_id)) AS g
    JOIN topics AS t ON t.address = g
    LEFT JOIN retention_policies AS r ON r.topic_id = t.id
    WHERE COALESCE(r.copies, 0) < 1
    LIMIT 1;
    IF FOUND AND retain_for = 'quorum' THEN
        PERFORM refuse('PS006', format('retain_for cannot be quorum: the retention of "%s" demands no verified copy',
                                       left(wrong, 200)),
                       'Late sinks read what is gone from the archive: set retention with at least one copy first.');
    END IF;
END
$$;

-- name: leave_relay_group
-- Takes a subscription that is removed out of its relay, if it is a sink of one. Called before the subscription is
-- locked. Raises PS006 when the others cannot reach the relay's quorum.
CREATE OR REPLACE FUNCTION leave_relay_group(owner_id bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    own relay_groups%ROWTYPE;
BEGIN
    SELECT g.* INTO own
    FROM relay_members AS r JOIN relay_groups AS g ON g.id = r.group_id
    WHERE r.subscription_id = owner_id
    FOR UPDATE OF g;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    PERFORM hold_relay_members(own.id);
    PERFORM raise_relay_floors(own.id);
    DELETE FROM relay_members AS r WHERE r.subscription_id = owner_id;
    DELETE FROM relay_marks AS k WHERE k.subscription_id = owner_id;
    PERFORM require_possible_quorum(own, own.ack_quorum);
END
$$;

-- name: require_left_relay
-- Refuses to remove a subscription that a relay has taken as a sink since leave_relay_group has looked (PS006): what
-- the relay knows of it would stay for ever. Called when the subscription is locked.
CREATE OR REPLACE FUNCTION require_left_relay(owner_id bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    taken_as text := (SELECT r.sink FROM relay_members AS r WHERE r.subscription_id = owner_id);
BEGIN
    IF taken_as IS NOT NULL THEN
        PERFORM refuse('PS006', format('a relay has just taken the subscription as its sink "%s"', taken_as),
                       'Nothing was removed. Unsubscribe again: then it leaves the relay first.');
    END IF;
END
$$;

-- name: require_no_relay_member
-- Refuses to add a topic to a sink of a relay with several (PS006): the others would not read it.
CREATE OR REPLACE FUNCTION require_no_relay_member(owner_id bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    own text := (
        SELECT g.name FROM relay_members AS r JOIN relay_groups AS g ON g.id = r.group_id
        WHERE r.subscription_id = owner_id);
BEGIN
    IF own IS NOT NULL THEN
        PERFORM refuse('PS006', format('the subscription is a sink of the relay "%s"', left(own, 200)),
                       'All sinks of a relay read the same topics; make another relay for other topics.');
    END IF;
END
$$;

-- name: keep_passed
-- Records what a sink of a relay has passed before its position moves back. The caller has locked its lease.
CREATE OR REPLACE FUNCTION keep_passed(subscription_id bigint, partition_id bigint, stood_at bigint) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO relay_marks AS k (subscription_id, partition_id, started, passed)
    SELECT r.subscription_id, keep_passed.partition_id, 0, stood_at
    FROM relay_members AS r
    WHERE r.subscription_id = keep_passed.subscription_id
    ON CONFLICT ON CONSTRAINT relay_marks_pkey DO UPDATE SET passed = GREATEST(k.passed, EXCLUDED.passed)
$$;

-- name: cut_relays_back
-- Brings what relays with several sinks have passed back to the end of the log, when a history begins.
CREATE OR REPLACE FUNCTION cut_relays_back() RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE relay_marks AS k
    SET started = LEAST(k.started, high_watermark(k.partition_id)),
        passed = LEAST(k.passed, high_watermark(k.partition_id))
    WHERE GREATEST(k.started, k.passed) > high_watermark(k.partition_id);
    UPDATE relay_floors AS f SET position = high_watermark(f.partition_id)
    WHERE f.position > high_watermark(f.partition_id);
END
$$;

-- name: retained_for
-- What holds retention back for a subscription on a partition, and under whose name: where it stands; for a sink of a
-- relay that retains for its quorum, where the relay stands, if that is further and the topic's retention demands
-- copies, from which the sink reads.
CREATE OR REPLACE FUNCTION retained_for(
    subscription_id bigint, partition_id bigint, OUT of_name text, OUT at bigint
)
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN q.at > o.at THEN q.name ELSE o.name END, GREATEST(o.at, q.at)
    FROM (
        SELECT s.name, current_position(s.id, retained_for.partition_id) AS at
        FROM subscriptions AS s WHERE s.id = retained_for.subscription_id
        OFFSET 0
    ) AS o
    LEFT JOIN LATERAL (
        SELECT g.name, group_position(g.id, p.id) AS at
        FROM relay_members AS m
        JOIN relay_groups AS g ON g.id = m.group_id AND g.retain_for = 'quorum'
        JOIN partitions AS p ON p.id = retained_for.partition_id
        JOIN retention_policies AS r ON r.topic_id = p.topic_id AND r.copies > 0
        WHERE m.subscription_id = retained_for.subscription_id
        OFFSET 0
    ) AS q ON true
$$;

-- name: is_retained_for_quorum
-- Whether retention goes by the relay of a subscription on a partition, and not by the subscription itself.
CREATE OR REPLACE FUNCTION is_retained_for_quorum(subscription_id bigint, partition_id bigint) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT FROM relay_members AS m
        JOIN relay_groups AS g ON g.id = m.group_id AND g.retain_for = 'quorum'
        JOIN partitions AS p ON p.id = is_retained_for_quorum.partition_id
        JOIN retention_policies AS r ON r.topic_id = p.topic_id AND r.copies > 0
        WHERE m.subscription_id = is_retained_for_quorum.subscription_id)
$$;

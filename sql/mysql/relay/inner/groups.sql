-- name: lock_relay_group
-- The id of the relay with several sinks of this name, locked; NULL when there is none, or when it is hidden. It is
-- locked before topics, subscriptions and leases.
CREATE PROCEDURE lock_relay_group(relay LONGTEXT, OUT own_id BIGINT)
BEGIN
    DECLARE seen_id BIGINT;
    SELECT MAX(g.id) INTO seen_id
    FROM relay_groups AS g WHERE g.name_hash = UNHEX(SHA2(relay, 256)) AND NOT hides_relay(g.id);
    SET own_id = NULL;
    IF seen_id IS NOT NULL THEN
        SET own_id = (SELECT g.id FROM relay_groups AS g WHERE g.id = seen_id FOR UPDATE);
    END IF;
END;

-- name: hides_relay
-- Whether a sink of a relay reads a topic that the login may not see.
CREATE FUNCTION hides_relay(of_group BIGINT) RETURNS BOOLEAN
READS SQL DATA
BEGIN
    DECLARE hidden INT;
    SELECT COUNT(*) INTO hidden
    FROM relay_members AS r WHERE r.group_id = of_group AND reads_hidden(r.subscription_id);
    RETURN hidden > 0;
END;

-- name: refuse_relay
-- Raises the error that there is no such relay (PS013).
CREATE PROCEDURE refuse_relay(relay LONGTEXT)
NO SQL
BEGIN
    CALL refuse('PS013', CONCAT('there is no relay "', LEFT(COALESCE(relay, ''), 70), '" with several sinks'));
END;

-- name: require_sinks
-- Checks the names of sinks (a JSON array); raises PS006.
CREATE PROCEDURE require_sinks(sinks JSON)
BEGIN
    DECLARE wrong VARCHAR(200);
    SELECT MIN(COALESCE(g.name, '')) INTO wrong
    FROM JSON_TABLE(sinks, '$[*]' COLUMNS (name VARCHAR(200) PATH '$' NULL ON ERROR)) AS g
    WHERE (g.name REGEXP '^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$' AND LOCATE('\n', g.name) = 0) IS NOT TRUE;
    IF wrong IS NOT NULL THEN
        CALL refuse('PS006', CONCAT('"', LEFT(wrong, 80), '" cannot be the name of a sink'));
    END IF;
END;

-- name: require_ack_quorum
-- Refuses a quorum below 1 (PS006).
CREATE PROCEDURE require_ack_quorum(ack_quorum INT)
NO SQL
BEGIN
    IF ack_quorum IS NULL OR ack_quorum < 1 THEN
        CALL refuse('PS006', CONCAT('ack_quorum cannot be ', COALESCE(ack_quorum, 'NULL')));
    END IF;
END;

-- name: begin_relay_group
-- A new relay with several sinks, locked, without sinks. Raises PS007 when its name is another's, or a subscription's.
CREATE PROCEDURE begin_relay_group(relay LONGTEXT, given_quorum INT, OUT own_id BIGINT)
BEGIN
    DECLARE taken, own INT;
    SET own = may_name(relay);
    SELECT COUNT(*) INTO taken FROM subscriptions AS s WHERE s.name_hash = UNHEX(SHA2(relay, 256));
    IF taken > 0 OR NOT own THEN
        CALL refuse('PS007', CONCAT('"', LEFT(relay, 60), '" is another''s name, or that of a subscription'));
    END IF;
    INSERT IGNORE INTO relay_groups (name, ack_quorum) VALUES (relay, given_quorum);
    IF ROW_COUNT() = 0 THEN
        CALL refuse('PS007', CONCAT('there is already a relay "', LEFT(relay, 80), '"'));
    END IF;
    SET own_id = LAST_INSERT_ID();
END;

-- name: topics_of_relay
-- The addresses of the topics that the sinks of a relay read, as a JSON array.
CREATE PROCEDURE topics_of_relay(own_id BIGINT, OUT present JSON)
BEGIN
    DECLARE found VARCHAR(4000);
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE topics_there CURSOR FOR
        SELECT DISTINCT t.address
        FROM relay_members AS r
        JOIN subscription_topics AS s ON s.subscription_id = r.subscription_id
        JOIN topics AS t ON t.id = s.topic_id
        WHERE r.group_id = own_id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    SET present = JSON_ARRAY();
    OPEN topics_there;
    topic: LOOP
        FETCH topics_there INTO found;
        IF done THEN
            LEAVE topic;
        END IF;
        SET present = JSON_ARRAY_APPEND(present, '$', found);
    END LOOP;
    CLOSE topics_there;
END;

-- name: require_same_topics
-- Refuses other topics than those that a relay has (PS006): a sink that reads one alone would hold up the relay there.
CREATE PROCEDURE require_same_topics(present JSON, wanted JSON)
BEGIN
    IF wanted IS NOT NULL AND NOT (JSON_CONTAINS(present, wanted) AND JSON_CONTAINS(wanted, present)) THEN
        CALL refuse('PS006', 'the relay has other topics, and they stay');
    END IF;
END;

-- name: add_relay_members
-- Adds those of the sinks (a JSON array) that a relay lacks, and says how many. Raises PS007 and what subscribe raises.
CREATE PROCEDURE add_relay_members(
    own_id BIGINT, relay LONGTEXT, sinks JSON, topics JSON, start LONGTEXT, OUT added INT
)
BEGIN
    DECLARE sink_name VARCHAR(63);
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE missing CURSOR FOR
        SELECT DISTINCT g.name
        FROM JSON_TABLE(sinks, '$[*]' COLUMNS (name VARCHAR(63) PATH '$')) AS g
        LEFT JOIN relay_members AS r ON r.group_id = own_id AND r.sink = g.name
        WHERE r.sink IS NULL
        ORDER BY g.name;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    SET added = 0;
    OPEN missing;
    sink: LOOP
        FETCH missing INTO sink_name;
        IF done THEN
            LEAVE sink;
        END IF;
        CALL add_relay_member(own_id, CONCAT(relay, '.', sink_name), sink_name, topics, start);
        SET added = added + 1;
    END LOOP;
    CLOSE missing;
END;

-- name: add_relay_member
-- Adds a sink to a relay. Raises PS007 and what subscribe raises.
CREATE PROCEDURE add_relay_member(
    own_id BIGINT, subscription LONGTEXT, sink VARCHAR(63), topics JSON, start LONGTEXT
)
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE added, is_other, locked INT;
    CALL make_subscription(subscription, topics, start, 'stream', owner_id, added);
    SELECT COUNT(*) INTO is_other
    FROM subscriptions AS s
    WHERE s.id = owner_id
      AND (s.mode <> 'stream' OR EXISTS (SELECT 1 FROM relay_members AS r WHERE r.subscription_id = owner_id)
           OR (SELECT COUNT(*) FROM subscription_topics AS t WHERE t.subscription_id = owner_id)
              <> (SELECT COUNT(DISTINCT g.address)
                  FROM JSON_TABLE(topics, '$[*]' COLUMNS (address VARCHAR(4000) PATH '$')) AS g));
    IF is_other > 0 THEN
        CALL refuse('PS007',
                    CONCAT('the subscription "', LEFT(subscription, 60), '" is a queue, or reads other topics'));
    END IF;
    -- So that no commit comes between this and where the relay stands.
    SELECT COUNT(*) INTO locked
    FROM (
        SELECT l.partition_id FROM leases AS l WHERE l.subscription_id = owner_id ORDER BY l.partition_id FOR UPDATE
    ) AS n;
    INSERT INTO relay_members (subscription_id, group_id, sink) VALUES (owner_id, own_id, sink);
    INSERT INTO relay_marks (subscription_id, partition_id, started)
    SELECT n.owner, n.part, n.at
    FROM (
        SELECT owner_id AS owner, l.partition_id AS part, current_position(owner_id, l.partition_id) AS at
        FROM leases AS l WHERE l.subscription_id = owner_id
        LIMIT 100000000
    ) AS n;
END;

-- name: hold_relay_members
-- Locks the sinks of a relay and where they stand: until the transaction ends, no position of theirs moves.
CREATE PROCEDURE hold_relay_members(own_id BIGINT)
BEGIN
    DECLARE member_id, locked BIGINT;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE members CURSOR FOR
        SELECT r.subscription_id FROM relay_members AS r WHERE r.group_id = own_id ORDER BY r.subscription_id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    OPEN members;
    member: LOOP
        FETCH members INTO member_id;
        IF done THEN
            LEAVE member;
        END IF;
        SET locked = (SELECT s.id FROM subscriptions AS s WHERE s.id = member_id FOR UPDATE);
        SELECT COUNT(*) INTO locked
        FROM (
            SELECT l.partition_id FROM leases AS l
            WHERE l.subscription_id = member_id
            ORDER BY l.partition_id
            FOR UPDATE
        ) AS n;
    END LOOP;
    CLOSE members;
END;

-- name: begun_by_member
-- After which sequence a sink of a relay has got the events of a partition.
CREATE FUNCTION begun_by_member(of_subscription BIGINT, of_partition BIGINT) RETURNS BIGINT
READS SQL DATA
BEGIN
    DECLARE found BIGINT;
    SELECT MAX(k.started) INTO found
    FROM relay_marks AS k WHERE k.subscription_id = of_subscription AND k.partition_id = of_partition;
    RETURN COALESCE(found, 0);
END;

-- name: passed_by_member
-- Up to which sequence a sink of a relay has passed a partition; it never moves back. The mark is read last: whoever
-- moves a position back has raised it before.
CREATE FUNCTION passed_by_member(of_subscription BIGINT, of_partition BIGINT) RETURNS BIGINT
READS SQL DATA
BEGIN
    DECLARE stands_at, mark BIGINT;
    SET stands_at = current_position(of_subscription, of_partition);
    SELECT MAX(k.passed) INTO mark
    FROM relay_marks AS k WHERE k.subscription_id = of_subscription AND k.partition_id = of_partition;
    RETURN GREATEST(stands_at, COALESCE(mark, 0));
END;

-- name: relay_floor
-- Where a relay stood in a partition when its sinks or its quorum were changed last.
CREATE FUNCTION relay_floor(of_group BIGINT, of_partition BIGINT) RETURNS BIGINT
READS SQL DATA
BEGIN
    DECLARE found BIGINT;
    SELECT MAX(f.position) INTO found
    FROM relay_floors AS f WHERE f.partition_id = of_partition AND f.group_id = of_group;
    RETURN COALESCE(found, 0);
END;

-- name: group_position
-- Where a relay with several sinks stands in a partition: the highest sequence up to which at least ack_quorum sinks
-- have passed each event. The first event that fewer have passed comes after the floor, or after the last one that some
-- sink has passed, so only these places are looked at. What the sinks have passed is read once, and the floor last:
-- whoever changes sinks or quorum has raised it before.
CREATE FUNCTION group_position(of_group BIGINT, of_partition BIGINT) RETURNS BIGINT
READS SQL DATA
BEGIN
    DECLARE quorum INT;
    DECLARE begun, reached, member_id BIGINT;
    DECLARE members JSON DEFAULT JSON_ARRAY();
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE sinks CURSOR FOR
        SELECT r.subscription_id
        FROM relay_members AS r
        JOIN leases AS l ON l.subscription_id = r.subscription_id AND l.partition_id = of_partition
        WHERE r.group_id = of_group;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    SELECT MAX(g.ack_quorum) INTO quorum FROM relay_groups AS g WHERE g.id = of_group;
    SET begun = relay_floor(of_group, of_partition);
    OPEN sinks;
    sink: LOOP
        FETCH sinks INTO member_id;
        IF done THEN
            LEAVE sink;
        END IF;
        SET members = JSON_ARRAY_APPEND(members, '$', JSON_OBJECT(
            's', begun_by_member(member_id, of_partition), 'p', passed_by_member(member_id, of_partition)));
    END LOOP;
    CLOSE sinks;
    SELECT MIN(c.at) INTO reached
    FROM (
        SELECT begun AS at
        UNION SELECT j.p FROM JSON_TABLE(members, '$[*]' COLUMNS (p BIGINT PATH '$.p')) AS j
    ) AS c
    WHERE c.at >= begun AND quorum > (
        SELECT COUNT(*)
        FROM JSON_TABLE(members, '$[*]' COLUMNS (s BIGINT PATH '$.s', p BIGINT PATH '$.p')) AS n
        WHERE n.s <= c.at AND n.p > c.at);
    RETURN GREATEST(COALESCE(reached, begun), relay_floor(of_group, of_partition));
END;

-- name: begin_relay_floors
-- Where a new relay stands: where as many of its sinks as its quorum have begun. What comes before that can never be
-- passed by so many.
CREATE PROCEDURE begin_relay_floors(own_id BIGINT, given_quorum INT)
BEGIN
    INSERT INTO relay_floors (group_id, partition_id, position)
    SELECT own_id, o.partition_id, o.started
    FROM (
        SELECT k.partition_id, k.started,
               ROW_NUMBER() OVER (PARTITION BY k.partition_id ORDER BY k.started) AS place
        FROM relay_members AS r JOIN relay_marks AS k ON k.subscription_id = r.subscription_id
        WHERE r.group_id = own_id
    ) AS o
    WHERE o.place = given_quorum;
END;

-- name: raise_relay_floors
-- Records where a relay stands, before its sinks or its quorum are changed. The caller holds its sinks.
CREATE PROCEDURE raise_relay_floors(own_id BIGINT)
BEGIN
    INSERT INTO relay_floors (group_id, partition_id, position)
    SELECT own_id, p.part, p.at
    FROM (
        SELECT n.partition_id AS part, group_position(own_id, n.partition_id) AS at
        FROM (
            SELECT DISTINCT l.partition_id
            FROM relay_members AS r JOIN leases AS l ON l.subscription_id = r.subscription_id
            WHERE r.group_id = own_id
        ) AS n
        LIMIT 100000000
    ) AS p
    WHERE TRUE
    ON DUPLICATE KEY UPDATE position = VALUES(position);
END;

-- name: require_possible_quorum
-- Refuses a quorum that the sinks of a relay cannot reach (PS006): there are fewer, or fewer of them get the event that
-- the relay waits for, because others begin after it.
CREATE PROCEDURE require_possible_quorum(own_id BIGINT, given_quorum INT)
BEGIN
    DECLARE members, stuck INT;
    SELECT COUNT(*) INTO members FROM relay_members AS r WHERE r.group_id = own_id;
    IF members < given_quorum THEN
        CALL refuse('PS006', CONCAT('the relay would have ', members, ' sinks, and ack_quorum is ', given_quorum));
    END IF;
    SELECT COUNT(*) INTO stuck
    FROM (
        SELECT n.partition_id AS part, group_position(own_id, n.partition_id) AS at
        FROM (
            SELECT DISTINCT l.partition_id
            FROM relay_members AS r JOIN leases AS l ON l.subscription_id = r.subscription_id
            WHERE r.group_id = own_id
        ) AS n
        LIMIT 100000000
    ) AS p
    WHERE given_quorum > (
        SELECT COUNT(*) FROM relay_members AS r
        JOIN leases AS l ON l.subscription_id = r.subscription_id AND l.partition_id = p.part
        WHERE r.group_id = own_id AND begun_by_member(r.subscription_id, p.part) <= p.at);
    IF stuck > 0 THEN
        CALL refuse('PS006', CONCAT('fewer than ', given_quorum,
                                    ' sinks of the relay get what follows its position in ', stuck, ' partitions'));
    END IF;
END;

-- name: require_retain_for
-- Checks for which sinks retention waits; raises PS006. By the quorum it needs verified copies: what retention drops
-- before a late sink has it, this sink reads from the archive.
CREATE PROCEDURE require_retain_for(own_id BIGINT, retain_for LONGTEXT)
BEGIN
    DECLARE wrong VARCHAR(4000);
    IF retain_for IS NULL OR retain_for NOT IN ('all', 'quorum') THEN
        CALL refuse('PS006', CONCAT('retain_for cannot be ', LEFT(COALESCE(retain_for, 'NULL'), 80)));
    END IF;
    SELECT MIN(t.address) INTO wrong
    FROM relay_members AS m
    JOIN subscription_topics AS s ON s.subscription_id = m.subscription_id
    JOIN topics AS t ON t.id = s.topic_id
    LEFT JOIN retention_policies AS r ON r.topic_id = t.id
    WHERE m.group_id = own_id AND COALESCE(r.copies, 0) < 1;
    IF wrong IS NOT NULL AND retain_for = 'quorum' THEN
        CALL refuse('PS006', CONCAT('retain_for cannot be quorum: the retention of "', LEFT(wrong, 40),
                                    '" demands no verified copy'));
    END IF;
END;

-- name: leave_relay_group
-- Takes a subscription that is removed out of its relay, if it is a sink of one. Called before the subscription is
-- locked. Raises PS006 when the others cannot reach the relay's quorum.
CREATE PROCEDURE leave_relay_group(owner_id BIGINT)
BEGIN
    DECLARE own_id BIGINT;
    DECLARE given_quorum INT;
    SELECT MAX(r.group_id) INTO own_id FROM relay_members AS r WHERE r.subscription_id = owner_id;
    IF own_id IS NOT NULL THEN
        CALL require_read_committed('the removal of a sink');
        SET given_quorum = (SELECT g.ack_quorum FROM relay_groups AS g WHERE g.id = own_id FOR UPDATE);
        CALL hold_relay_members(own_id);
        CALL raise_relay_floors(own_id);
        DELETE r FROM relay_members AS r WHERE r.subscription_id = owner_id;
        DELETE k FROM relay_marks AS k WHERE k.subscription_id = owner_id;
        CALL require_possible_quorum(own_id, given_quorum);
    END IF;
END;

-- name: require_left_relay
-- Refuses to remove a subscription that a relay has taken as a sink since leave_relay_group has looked (PS006): what
-- the relay knows of it would stay for ever. Called when the subscription is locked. It locks what it reads, because
-- the snapshot of the caller may be older.
CREATE PROCEDURE require_left_relay(owner_id BIGINT)
BEGIN
    DECLARE taken_as VARCHAR(63);
    SET taken_as = (SELECT r.sink FROM relay_members AS r WHERE r.subscription_id = owner_id FOR UPDATE);
    IF taken_as IS NOT NULL THEN
        CALL refuse('PS006', CONCAT('a relay has just taken it as its sink "', taken_as, '": unsubscribe again'));
    END IF;
END;

-- name: forget_relay_group
-- Deletes what makes subscriptions the sinks of a relay.
CREATE PROCEDURE forget_relay_group(own_id BIGINT)
BEGIN
    DELETE k
    FROM relay_members AS r STRAIGHT_JOIN relay_marks AS k ON k.subscription_id = r.subscription_id
    WHERE r.group_id = own_id;
    DELETE r FROM relay_members AS r WHERE r.group_id = own_id;
    DELETE f FROM relay_floors AS f WHERE f.group_id = own_id;
    DELETE g FROM relay_groups AS g WHERE g.id = own_id;
END;

-- name: require_no_relay_member
-- Refuses to add a topic to a sink of a relay with several (PS006): the others would not read it.
CREATE PROCEDURE require_no_relay_member(owner_id BIGINT)
BEGIN
    DECLARE own VARCHAR(500);
    SELECT MAX(g.name) INTO own
    FROM relay_members AS r JOIN relay_groups AS g ON g.id = r.group_id
    WHERE r.subscription_id = owner_id;
    IF own IS NOT NULL THEN
        CALL refuse('PS006', CONCAT('the subscription is a sink of the relay "', LEFT(own, 80), '"'));
    END IF;
END;

-- name: keep_passed
-- Records what a sink of a relay has passed before its position moves back. The caller has locked its lease.
CREATE PROCEDURE keep_passed(owner_id BIGINT, part_id BIGINT, stood_at BIGINT)
BEGIN
    DECLARE is_member INT;
    SELECT COUNT(*) INTO is_member FROM relay_members AS r WHERE r.subscription_id = owner_id;
    IF is_member > 0 THEN
        INSERT INTO relay_marks (subscription_id, partition_id, started, passed)
        VALUES (owner_id, part_id, 0, stood_at)
        ON DUPLICATE KEY UPDATE passed = GREATEST(relay_marks.passed, VALUES(passed));
    END IF;
END;

-- name: cut_relays_back
-- Brings what relays with several sinks have passed back to the end of the log, when a history begins.
CREATE PROCEDURE cut_relays_back()
BEGIN
    UPDATE relay_marks AS k
    SET k.started = LEAST(k.started, high_watermark(k.partition_id)),
        k.passed = LEAST(k.passed, high_watermark(k.partition_id));
    UPDATE relay_floors AS f SET f.position = LEAST(f.position, high_watermark(f.partition_id));
END;

-- name: is_retained_for_quorum
-- The relay by which retention goes on a partition instead of by a subscription, which is one of its sinks; NULL: there
-- is none.
CREATE FUNCTION is_retained_for_quorum(of_subscription BIGINT, of_partition BIGINT) RETURNS BIGINT
READS SQL DATA
BEGIN
    DECLARE found BIGINT;
    SELECT MAX(g.id) INTO found
    FROM relay_members AS m
    JOIN relay_groups AS g ON g.id = m.group_id AND g.retain_for = 'quorum'
    JOIN partitions AS p ON p.id = of_partition
    JOIN retention_policies AS r ON r.topic_id = p.topic_id AND r.copies > 0
    WHERE m.subscription_id = of_subscription;
    RETURN found;
END;

-- name: retained_for
-- What holds retention back for a subscription on a partition: where it stands; for a sink of a relay that retains for
-- its quorum, where the relay stands, if that is further.
CREATE FUNCTION retained_for(of_subscription BIGINT, of_partition BIGINT) RETURNS BIGINT
READS SQL DATA
BEGIN
    DECLARE own_id, stands_at BIGINT;
    SET stands_at = current_position(of_subscription, of_partition);
    SET own_id = is_retained_for_quorum(of_subscription, of_partition);
    IF own_id IS NULL THEN
        RETURN stands_at;
    END IF;
    RETURN GREATEST(stands_at, group_position(own_id, of_partition));
END;

-- name: waited_for
-- How long an event has waited since it was sequenced, in seconds.
CREATE FUNCTION waited_for(of_partition BIGINT, of_sequence BIGINT) RETURNS DOUBLE
READS SQL DATA
BEGIN
    DECLARE since DATETIME(6);
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    SELECT IF(c.sequenced_ats IS NULL, c.sequenced_at,
              TIMESTAMP'1970-01-01 00:00:00' + INTERVAL CAST(CONV(HEX(
                  SUBSTR(c.sequenced_ats, 8 * (of_sequence - c.first_sequence) + 1, 8)
              ), 16, 10) AS SIGNED) MICROSECOND)
    INTO since
    FROM chunks AS c
    WHERE c.partition_id = of_partition AND c.first_sequence <= of_sequence
    ORDER BY c.partition_id DESC, c.first_sequence DESC
    LIMIT 1;
    RETURN COALESCE(TIMESTAMPDIFF(MICROSECOND, since, UTC_TIMESTAMP(6)), 0) / 1e6;
END;

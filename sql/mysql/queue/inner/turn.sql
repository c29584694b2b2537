-- name: turn_queue
-- Does what all receivers of a queue need once: brings expired claims and due events back, finds the first free range,
-- deals new ranges, and moves the positions. turned is false when another session is doing it. wanted_size is what the
-- caller asks for at a time.
CREATE PROCEDURE turn_queue(owner_id BIGINT, wanted_size INT, OUT turned BOOLEAN)
turn: BEGIN
    DECLARE present DATETIME(6) DEFAULT UTC_TIMESTAMP(6);
    DECLARE begun DATETIME(6) DEFAULT SYSDATE(6);
    DECLARE rest DATETIME(6);
    DECLARE held, floor_id, last_id, seen_floor, seen_free, events, free_events, room, brought BIGINT;
    DECLARE most INT;
    DECLARE kept_order VARCHAR(10);
    DECLARE is_due, has_more, has_unsettled BOOLEAN DEFAULT FALSE;
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    SELECT q.subscription_id, q.max_in_flight, q.`order` INTO held, most, kept_order
    FROM queues AS q WHERE q.subscription_id = owner_id FOR UPDATE SKIP LOCKED;
    SET turned = held IS NOT NULL;
    IF NOT turned THEN
        LEAVE turn;
    END IF;
    SELECT t.floor_id, t.last_id, t.rest_until NOT BETWEEN present AND present + INTERVAL 5 SECOND
    INTO floor_id, last_id, is_due
    FROM queue_turns AS t WHERE t.subscription_id = owner_id;
    IF is_due THEN
        CALL end_claims(owner_id, floor_id, present, has_more);
        CALL move_claims(owner_id, floor_id, present);
        IF kept_order = 'key' THEN
            CALL settle_keys(owner_id, has_unsettled);
        END IF;
        IF has_removed(owner_id) THEN
            CALL drop_removed(owner_id, floor_id, kept_order);
        END IF;
    END IF;
    -- A range that somebody is just cutting is still seen whole, so nothing that is not seen yet is below these.
    SELECT GREATEST(last_id, COALESCE(MAX(r.id), 0)), MIN(r.id), MIN(IF(r.token IS NULL, r.id, NULL)),
           CAST(COALESCE(SUM(r.last_sequence - r.first_sequence + 1), 0) AS SIGNED),
           CAST(COALESCE(SUM(IF(r.token IS NULL, r.last_sequence - r.first_sequence + 1, 0)), 0) AS SIGNED)
    INTO last_id, seen_floor, seen_free, events, free_events
    FROM queue_ranges AS r
    WHERE r.subscription_id = owner_id AND r.id >= floor_id;
    SET seen_floor = COALESCE(seen_floor, last_id + 1), seen_free = COALESCE(seen_free, last_id + 1);
    IF kept_order = 'key' THEN
        SET events = events + events_behind(owner_id);
    END IF;
    SET room = LEAST(most - events, LEAST(400 * wanted_size, 20000) - free_events);
    IF is_due THEN
        CALL bring_due(owner_id, present, LEAST(most - events, 1000), last_id, brought);
        SET room = room - brought;
    END IF;
    CALL deal(owner_id, wanted_size, kept_order, room, last_id);
    IF is_due THEN
        CALL move_floors(owner_id, seen_floor);
        -- No rest while there is more to bring back than one turn takes, or a dead fleet would keep it for hours.
        SET has_more = has_more OR has_unsettled OR brought >= 1000,
            rest = IF(has_more, present, rest_after(owner_id, TIMESTAMPDIFF(MICROSECOND, begun, SYSDATE(6))));
    END IF;
    UPDATE queue_turns AS t
    SET t.floor_id = seen_floor, t.free_id = seen_free, t.last_id = last_id,
        t.range_size = IF(kept_order = 'key', 1, wanted_size),
        t.rest_until = COALESCE(rest, t.rest_until)
    WHERE t.subscription_id = owner_id;
END;

-- name: rest_after
-- When somebody has to look at a queue again, after a look that took so many microseconds: after a tenth of a second,
-- and so that looks take a twentieth of the time, but within five seconds. When a delayed event is due sooner, then, so
-- that looks take a sixth of it. A time that is further ahead was stored before the clock was set back, and counts as
-- over.
CREATE FUNCTION rest_after(owner_id BIGINT, spent BIGINT) RETURNS DATETIME(6)
READS SQL DATA
BEGIN
    DECLARE present DATETIME(6) DEFAULT UTC_TIMESTAMP(6);
    DECLARE latest DATETIME(6)
        DEFAULT UTC_TIMESTAMP(6) + INTERVAL LEAST(GREATEST(100000, 20 * spent), 5000000) MICROSECOND;
    DECLARE next_due DATETIME(6);
    SELECT MIN(w.due_at) INTO next_due
    FROM queue_waiting AS w
    WHERE w.subscription_id = owner_id AND w.due_at > present;
    RETURN LEAST(latest, GREATEST(present + INTERVAL 5 * spent MICROSECOND, COALESCE(next_due, latest)));
END;

-- name: has_due
-- Whether an event out of the window is due. Nothing waits for longer than a year: what does was put there before the
-- clock was set back.
CREATE FUNCTION has_due(of_subscription BIGINT, present DATETIME(6)) RETURNS BOOLEAN
READS SQL DATA
BEGIN
    DECLARE found BIGINT;
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    SELECT w.id INTO found
    FROM queue_waiting AS w
    WHERE w.subscription_id = of_subscription AND (w.due_at <= present OR w.due_at > present + INTERVAL 366 DAY)
    LIMIT 1;
    RETURN found IS NOT NULL;
END;

-- name: end_claims
-- Frees the events of claims whose time is over, each alone, so that one bad event does not end the deliveries of its
-- neighbours. Their receipts stay good until the events are handed out again. An event that was handed out too often
-- becomes a dead letter, which counts as 25 others. A claim that somebody is just finishing is locked, and is left to
-- the next turn. has_more: it took claims, the oldest first, until they had 5,000 events. No claim is longer than 12
-- hours: one that ends later was made before the clock was set back, and is over.
CREATE PROCEDURE end_claims(owner_id BIGINT, floor_id BIGINT, present DATETIME(6), OUT has_more BOOLEAN)
BEGIN
    DECLARE ids, pieces LONGTEXT;
    DECLARE most INT;
    DECLARE limit_before BIGINT UNSIGNED DEFAULT @@SESSION.group_concat_max_len;
    {{on error: SET SESSION group_concat_max_len = limit_before}}
    SET SESSION group_concat_max_len = 4294967295;
    SELECT MAX(q.max_deliveries) INTO most FROM queues AS q WHERE q.subscription_id = owner_id;
    SELECT GROUP_CONCAT(o.id ORDER BY o.id), COALESCE(SUM(o.work), 0) >= 5000 INTO ids, has_more
    FROM (
        SELECT n.id, n.work, SUM(n.work) OVER (ORDER BY n.id) - n.work AS work_before
        FROM (
            SELECT r.id, (r.last_sequence - r.first_sequence + 1) * IF(r.deliveries < most, 1, 25) AS work
            FROM queue_ranges AS r
            WHERE r.subscription_id = owner_id AND r.id >= floor_id
              AND r.deadline NOT BETWEEN present AND present + INTERVAL 12 HOUR
            ORDER BY r.id
            LIMIT 5000
        ) AS n
    ) AS o
    WHERE o.work_before < 5000;
    IF ids IS NOT NULL THEN
        CALL lock_ranges(owner_id, present, ids);
    END IF;
    IF ids IS NULL THEN
        SET has_more = FALSE;
    ELSE
        SELECT CONCAT('[', GROUP_CONCAT(JSON_ARRAY(
                   0, 0, r.id, r.partition_id, r.first_sequence, r.last_sequence, r.deliveries,
                   COALESCE(r.waiting_id, 0))), ']')
        INTO pieces
        FROM JSON_TABLE(CONCAT('[', ids, ']'), '$[*]' COLUMNS (id BIGINT PATH '$')) AS g
        STRAIGHT_JOIN queue_ranges AS r FORCE INDEX (PRIMARY) ON r.subscription_id = owner_id AND r.id = g.id
        WHERE r.deliveries >= most;
        CALL bury_pieces(owner_id, pieces, 'was handed out as often as it may be, and never finished');
        INSERT INTO queue_ranges (
            subscription_id, partition_id, first_sequence, last_sequence, deliveries, waiting_id, former, former_token)
        SELECT owner_id, r.partition_id, r.first_sequence + n.n, r.first_sequence + n.n, r.deliveries, r.waiting_id,
               COALESCE(r.former, r.id), r.token
        FROM JSON_TABLE(CONCAT('[', ids, ']'), '$[*]' COLUMNS (id BIGINT PATH '$')) AS g
        STRAIGHT_JOIN queue_ranges AS r FORCE INDEX (PRIMARY) ON r.subscription_id = owner_id AND r.id = g.id
        STRAIGHT_JOIN places AS n
            ON n.size = 1 << CAST(CEIL(LOG2(r.last_sequence - r.first_sequence + 1)) AS UNSIGNED)
            AND n.n <= r.last_sequence - r.first_sequence
        WHERE r.deliveries < most
        ORDER BY r.id, n.n;
        CALL drop_ranges(owner_id, ids);
    END IF;
    SET SESSION group_concat_max_len = limit_before;
END;

-- name: move_claims
-- Writes claims that are held for long to the end of the window, with receipts, deadline and all, so that the window
-- stays short. Those whose time is over come back soon, and are left where they stand.
CREATE PROCEDURE move_claims(owner_id BIGINT, floor_id BIGINT, present DATETIME(6))
BEGIN
    DECLARE ids LONGTEXT;
    DECLARE limit_before BIGINT UNSIGNED DEFAULT @@SESSION.group_concat_max_len;
    {{on error: SET SESSION group_concat_max_len = limit_before}}
    SET SESSION group_concat_max_len = 4294967295;
    SELECT GROUP_CONCAT(o.id ORDER BY o.id) INTO ids
    FROM (
        SELECT r.id
        FROM queue_turns AS t JOIN queue_ranges AS r ON r.subscription_id = t.subscription_id
        WHERE t.subscription_id = owner_id AND r.id >= floor_id AND r.id < t.free_id - 5000
          AND r.deadline > present
        ORDER BY r.id
        LIMIT 1000
    ) AS o;
    IF ids IS NOT NULL THEN
        CALL lock_ranges(owner_id, NULL, ids);
    END IF;
    IF ids IS NOT NULL THEN
        INSERT INTO queue_ranges (
            subscription_id, partition_id, first_sequence, last_sequence, deliveries, token, deadline, waiting_id,
            former, former_token)
        SELECT r.subscription_id, r.partition_id, r.first_sequence, r.last_sequence, r.deliveries, r.token, r.deadline,
               r.waiting_id, COALESCE(r.former, r.id), r.former_token
        FROM JSON_TABLE(CONCAT('[', ids, ']'), '$[*]' COLUMNS (id BIGINT PATH '$')) AS g
        STRAIGHT_JOIN queue_ranges AS r FORCE INDEX (PRIMARY) ON r.subscription_id = owner_id AND r.id = g.id
        ORDER BY r.id;
        CALL drop_ranges(owner_id, ids);
    END IF;
    SET SESSION group_concat_max_len = limit_before;
END;

-- name: bring_due
-- Brings events that are due into the window again, the earliest first. brought is how many.
CREATE PROCEDURE bring_due(
    owner_id BIGINT, present DATETIME(6), room BIGINT, INOUT last_id BIGINT, OUT brought BIGINT
)
BEGIN
    DECLARE ids LONGTEXT;
    DECLARE limit_before BIGINT UNSIGNED DEFAULT @@SESSION.group_concat_max_len;
    {{on error: SET SESSION group_concat_max_len = limit_before}}
    SET SESSION group_concat_max_len = 4294967295;
    SET room = GREATEST(room, 0), brought = 0;
    SELECT GROUP_CONCAT(o.id ORDER BY o.due_at, o.id) INTO ids
    FROM (
        SELECT w.id, w.due_at FROM queue_waiting AS w
        WHERE w.subscription_id = owner_id AND (w.due_at <= present OR w.due_at > present + INTERVAL 366 DAY)
        ORDER BY w.due_at
        LIMIT room
    ) AS o;
    IF ids IS NOT NULL THEN
        -- Only the dealer writes due_at where it is due: what he has seen is still so.
        INSERT INTO queue_ranges (
            subscription_id, partition_id, first_sequence, last_sequence, deliveries, waiting_id)
        SELECT owner_id, w.partition_id, w.sequence, w.sequence, w.deliveries, w.id
        FROM JSON_TABLE(CONCAT('[', ids, ']'), '$[*]' COLUMNS (place FOR ORDINALITY, id BIGINT PATH '$')) AS g
        STRAIGHT_JOIN queue_waiting AS w FORCE INDEX (PRIMARY) ON w.id = g.id
        ORDER BY g.place;
        SET brought = ROW_COUNT();
        CALL note_range_ids(owner_id, brought, last_id);
        UPDATE JSON_TABLE(CONCAT('[', ids, ']'), '$[*]' COLUMNS (id BIGINT PATH '$')) AS g
        STRAIGHT_JOIN queue_waiting AS w FORCE INDEX (PRIMARY) ON w.id = g.id
        SET w.due_at = NULL;
    END IF;
    SET SESSION group_concat_max_len = limit_before;
END;

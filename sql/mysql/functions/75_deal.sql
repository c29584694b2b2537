-- name: current_reached
-- The last sequence of a partition that a queue has dealt; NULL when it does not read the partition.
CREATE FUNCTION current_reached(of_subscription BIGINT, of_partition BIGINT) RETURNS BIGINT
READS SQL DATA
BEGIN
    DECLARE newest BIGINT;
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    SELECT COALESCE(p.reached, p.position) INTO newest
    FROM positions AS p FORCE INDEX (positions_newest)
    WHERE p.subscription_id = of_subscription AND p.partition_id = of_partition
    ORDER BY p.id DESC
    LIMIT 1;
    RETURN newest;
END;

-- name: has_undealt
-- Whether a partition has events that a queue has not dealt. The ends are looked up in the query: calls of functions
-- for each partition take longer.
CREATE FUNCTION has_undealt(of_subscription BIGINT) RETURNS BOOLEAN
READS SQL DATA
BEGIN
    DECLARE found BIGINT;
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    SELECT l.partition_id INTO found
    FROM leases AS l
    WHERE l.subscription_id = of_subscription AND (
        SELECT c.first_sequence + c.event_count - 1
        FROM chunks AS c
        WHERE c.partition_id = l.partition_id
        ORDER BY c.partition_id DESC, c.first_sequence DESC
        LIMIT 1
    ) > (
        SELECT COALESCE(p.reached, p.position)
        FROM positions AS p FORCE INDEX (positions_newest)
        WHERE p.subscription_id = l.subscription_id AND p.partition_id = l.partition_id
        ORDER BY p.id DESC
        LIMIT 1
    )
    LIMIT 1;
    RETURN found IS NOT NULL;
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

-- name: note_range_ids
-- Raises last_id to the newest range of a queue. A counter that was set back is refused (PS021): what is dealt would
-- stand below the first free range, where no receiver looks.
CREATE PROCEDURE note_range_ids(owner_id BIGINT, dealt INT, INOUT last_id BIGINT)
BEGIN
    IF dealt > 0 THEN
        IF LAST_INSERT_ID() <= last_id THEN
            CALL refuse('PS021', CONCAT('the counter queue_ranges was set back, below ', last_id));
        END IF;
        SELECT COALESCE(MAX(r.id), last_id) INTO last_id
        FROM queue_ranges AS r WHERE r.subscription_id = owner_id AND r.id > last_id;
    END IF;
END;

-- name: lock_ranges
-- Those of some ranges (ids with commas between them) whose time is over and that nobody has locked, locked. They were
-- selected before: a locking query would lock what it passes over.
CREATE PROCEDURE lock_ranges(owner_id BIGINT, present DATETIME(6), INOUT ids LONGTEXT)
BEGIN
    DECLARE limit_before BIGINT UNSIGNED DEFAULT @@SESSION.group_concat_max_len;
    {{on error: SET SESSION group_concat_max_len = limit_before}}
    SET SESSION group_concat_max_len = 4294967295;
    SELECT GROUP_CONCAT(r.id ORDER BY r.id) INTO ids
    FROM (
        SELECT j.id FROM JSON_TABLE(CONCAT('[', ids, ']'), '$[*]' COLUMNS (id BIGINT PATH '$')) AS j LIMIT 10000
    ) AS g
    STRAIGHT_JOIN queue_ranges AS r FORCE INDEX (PRIMARY) ON r.subscription_id = owner_id AND r.id = g.id
    WHERE present IS NULL OR r.deadline NOT BETWEEN present AND present + INTERVAL 12 HOUR
    FOR UPDATE SKIP LOCKED;
    SET SESSION group_concat_max_len = limit_before;
END;

-- name: drop_ranges
-- Deletes ranges that the caller has locked (ids with commas between them).
CREATE PROCEDURE drop_ranges(owner_id BIGINT, ids LONGTEXT)
BEGIN
    DELETE r
    FROM JSON_TABLE(CONCAT('[', ids, ']'), '$[*]' COLUMNS (id BIGINT PATH '$')) AS g
    STRAIGHT_JOIN queue_ranges AS r FORCE INDEX (PRIMARY) ON r.subscription_id = owner_id AND r.id = g.id;
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

-- name: deal
-- Cuts what a queue has not dealt into ranges, the oldest of each partition first, by turns over the partitions.
CREATE PROCEDURE deal(
    owner_id BIGINT, wanted_size INT, kept_order VARCHAR(10), room BIGINT, INOUT last_id BIGINT
)
BEGIN
    DECLARE plan LONGTEXT;
    DECLARE dealt INT;
    CALL undealt_parts(owner_id, room, IF(kept_order = 'key', 1, wanted_size), plan);
    IF plan <> '' THEN
        IF kept_order = 'key' THEN
            CALL deal_in_order(owner_id, plan, last_id);
        ELSE
            INSERT INTO queue_ranges (subscription_id, partition_id, first_sequence, last_sequence)
            SELECT owner_id, g.partition_id, g.after + 1 + n.n * wanted_size,
                   LEAST(g.after + (n.n + 1) * wanted_size, g.until)
            FROM (
                SELECT j.partition_id, j.after, j.until
                FROM JSON_TABLE(plan, '$[*]' COLUMNS (
                    partition_id BIGINT PATH '$[0]', after BIGINT PATH '$[3]', until BIGINT PATH '$[4]')) AS j
                LIMIT 1000000
            ) AS g
            STRAIGHT_JOIN places AS n
                ON n.size = 1 << CAST(CEIL(LOG2((g.until - g.after + wanted_size - 1) DIV wanted_size)) AS UNSIGNED)
                AND n.n < (g.until - g.after + wanted_size - 1) DIV wanted_size
            ORDER BY n.n, g.partition_id;
            SET dealt = ROW_COUNT();
            CALL note_range_ids(owner_id, dealt, last_id);
        END IF;
        INSERT INTO positions (subscription_id, partition_id, position, lease_epoch, reason, reached)
        SELECT owner_id, j.partition_id, j.position, j.lease_epoch, 'queue', j.until
        FROM JSON_TABLE(plan, '$[*]' COLUMNS (
            partition_id BIGINT PATH '$[0]', lease_epoch BIGINT PATH '$[1]', position BIGINT PATH '$[2]',
            until BIGINT PATH '$[4]')) AS j;
    END IF;
END;

-- name: undealt_parts
-- The partitions of which a queue has not dealt all, locked, and up to where it shall deal each: an array of
-- [partition, lease_epoch, position, after, until] in plan, or an empty text. Room is shared out in whole ranges,
-- because a receive of many short ones takes several times as long; when there are fewer ranges than partitions, chance
-- chooses. A lease row that is locked is left to the next turn. What was dropped before it was dealt is passed over,
-- and recorded.
CREATE PROCEDURE undealt_parts(owner_id BIGINT, room BIGINT, wanted_size INT, OUT plan LONGTEXT)
BEGIN
    DECLARE part_id, held_epoch, stands_at, after, watermark, low, reached, share, places BIGINT;
    DECLARE limit_before BIGINT UNSIGNED DEFAULT @@SESSION.group_concat_max_len;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE grown CURSOR FOR
        SELECT l.partition_id FROM leases AS l
        WHERE l.subscription_id = owner_id AND room > 0 AND (
            SELECT c.first_sequence + c.event_count - 1
            FROM chunks AS c
            WHERE c.partition_id = l.partition_id
            ORDER BY c.partition_id DESC, c.first_sequence DESC
            LIMIT 1
        ) > (
            SELECT COALESCE(p.reached, p.position)
            FROM positions AS p FORCE INDEX (positions_newest)
            WHERE p.subscription_id = l.subscription_id AND p.partition_id = l.partition_id
            ORDER BY p.id DESC
            LIMIT 1
        )
        ORDER BY l.partition_id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    {{on error: SET SESSION group_concat_max_len = limit_before}}
    SET plan = '';
    OPEN grown;
    each_part: LOOP
        FETCH grown INTO part_id;
        IF done THEN
            LEAVE each_part;
        END IF;
        SET held_epoch = (
            SELECT l.lease_epoch FROM leases AS l
            WHERE l.subscription_id = owner_id AND l.partition_id = part_id
            FOR UPDATE SKIP LOCKED);
        SELECT MAX(p.low_sequence) INTO low FROM partitions AS p WHERE p.id = part_id;
        SET stands_at = current_position(owner_id, part_id), watermark = high_watermark(part_id),
            reached = LEAST(current_reached(owner_id, part_id), watermark), after = GREATEST(reached, low - 1);
        IF held_epoch IS NOT NULL AND reached < low - 1 THEN
            CALL record_passed(owner_id, part_id, reached, low);
        END IF;
        IF held_epoch IS NOT NULL AND watermark > after THEN
            SET plan = CONCAT_WS(',', NULLIF(plan, ''), JSON_ARRAY(part_id, held_epoch, stands_at, after, watermark));
        END IF;
    END LOOP;
    CLOSE grown;
    IF plan <> '' THEN
        SET plan = CONCAT('[', plan, ']'), places = GREATEST(room DIV wanted_size, 1),
            share = LEAST(room, GREATEST(places DIV JSON_LENGTH(plan), 1) * wanted_size);
        SET SESSION group_concat_max_len = 4294967295;
        SELECT CONCAT('[', GROUP_CONCAT(JSON_ARRAY(
                   j.partition_id, j.lease_epoch, j.position, j.after, LEAST(j.watermark, j.after + share))), ']')
        INTO plan
        FROM (
            SELECT g.partition_id, g.lease_epoch, g.position, g.after, g.watermark
            FROM JSON_TABLE(plan, '$[*]' COLUMNS (
                partition_id BIGINT PATH '$[0]', lease_epoch BIGINT PATH '$[1]', position BIGINT PATH '$[2]',
                after BIGINT PATH '$[3]', watermark BIGINT PATH '$[4]')) AS g
            ORDER BY RAND()
            LIMIT places
        ) AS j;
        SET SESSION group_concat_max_len = limit_before;
    END IF;
END;

-- name: move_floors
-- Moves the position of each partition to before its lowest unfinished event. Events out of the window are copies and
-- do not count; what waits behind its key does. A lease row that is locked is left to the next turn.
CREATE PROCEDURE move_floors(owner_id BIGINT, floor_id BIGINT)
BEGIN
    DECLARE part_id, held_epoch, lowest, dealt_to BIGINT;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE moved CURSOR FOR
        SELECT l.partition_id, COALESCE(u.sequence - 1, current_reached(owner_id, l.partition_id))
        FROM leases AS l
        LEFT JOIN (
            SELECT n.partition_id, MIN(n.sequence) AS sequence
            FROM (
                SELECT r.partition_id, r.first_sequence AS sequence
                FROM queue_ranges AS r
                WHERE r.subscription_id = owner_id AND r.id >= floor_id AND r.waiting_id IS NULL
                UNION ALL
                SELECT k.partition_id, MIN(k.sequence)
                FROM queue_keys AS k FORCE INDEX (queue_keys_state)
                WHERE k.subscription_id = owner_id AND k.state IN ('behind', 'unsure') AND k.waiting_id = 0
                GROUP BY k.partition_id
            ) AS n
            GROUP BY n.partition_id
        ) AS u ON u.partition_id = l.partition_id
        WHERE l.subscription_id = owner_id
          AND COALESCE(u.sequence - 1, current_reached(owner_id, l.partition_id))
              > current_position(owner_id, l.partition_id)
        ORDER BY l.partition_id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    OPEN moved;
    each_part: LOOP
        FETCH moved INTO part_id, lowest;
        IF done THEN
            LEAVE each_part;
        END IF;
        SET held_epoch = (
            SELECT l.lease_epoch FROM leases AS l
            WHERE l.subscription_id = owner_id AND l.partition_id = part_id
            FOR UPDATE SKIP LOCKED);
        -- Asked again under the lock: a new history may have brought the position back.
        SET dealt_to = current_reached(owner_id, part_id);
        IF held_epoch IS NOT NULL AND lowest <= dealt_to THEN
            INSERT INTO positions (subscription_id, partition_id, position, lease_epoch, reason, reached)
            VALUES (owner_id, part_id, lowest, held_epoch, 'queue', dealt_to);
        END IF;
    END LOOP;
    CLOSE moved;
END;

-- name: move_idle_floors
-- Moves the positions of queues from which nobody receives any more: what was finished after the last receive. A queue
-- whose position cannot move is left out, or as many of them would hide all later ones. Needs READ COMMITTED: an older
-- snapshot does not see what another session dealt before this one had the lock.
CREATE PROCEDURE move_idle_floors(max_rows INT)
BEGIN
    DECLARE found_id, owner_id, seen_floor BIGINT;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE idle CURSOR FOR
        SELECT t.subscription_id
        FROM queue_turns AS t
        WHERE t.rest_until NOT BETWEEN UTC_TIMESTAMP(6) AND UTC_TIMESTAMP(6) + INTERVAL 5 SECOND AND EXISTS (
            SELECT * FROM leases AS l
            WHERE l.subscription_id = t.subscription_id
              AND current_position(t.subscription_id, l.partition_id)
                  < current_reached(t.subscription_id, l.partition_id)
              AND NOT is_in_hand(t.subscription_id, l.partition_id,
                                 current_position(t.subscription_id, l.partition_id) + 1, t.floor_id))
        ORDER BY t.subscription_id
        LIMIT max_rows;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    OPEN idle;
    each_queue: LOOP
        FETCH idle INTO found_id;
        IF done THEN
            LEAVE each_queue;
        END IF;
        SET owner_id = (
            SELECT q.subscription_id FROM queues AS q WHERE q.subscription_id = found_id FOR UPDATE SKIP LOCKED);
        IF owner_id IS NOT NULL THEN
            SELECT t.floor_id INTO seen_floor FROM queue_turns AS t WHERE t.subscription_id = owner_id;
            CALL move_floors(owner_id, seen_floor);
        END IF;
    END LOOP;
    CLOSE idle;
END;

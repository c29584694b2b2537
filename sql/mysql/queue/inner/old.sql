-- name: old_until
-- The last of at most so many sequences after one of a partition whose events came to the log before a time, all of
-- them; the one after which it looked when there is none.
CREATE FUNCTION old_until(part_id BIGINT, after BIGINT, most BIGINT, before_time DATETIME(6)) RETURNS BIGINT
READS SQL DATA
BEGIN
    DECLARE begins, young, last_old BIGINT;
    DECLARE is_merged BOOLEAN DEFAULT FALSE;
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    SELECT COALESCE(MAX(c.first_sequence), 0) INTO begins
    FROM chunks AS c WHERE c.partition_id = part_id AND c.first_sequence <= after + 1;
    SELECT c.first_sequence, c.sequenced_ats IS NOT NULL INTO young, is_merged
    FROM chunks AS c
    WHERE c.partition_id = part_id AND c.first_sequence >= begins AND c.first_sequence <= after + most
      AND c.sequenced_at > before_time
    ORDER BY c.first_sequence
    LIMIT 1;
    IF is_merged THEN
        SELECT MIN(n.sequence) INTO young
        FROM logged_ids AS n
        WHERE n.partition_id = part_id AND n.first_sequence = young AND n.sequenced_at > before_time;
    END IF;
    SET last_old = COALESCE(young - 1, high_watermark(part_id));
    RETURN GREATEST(after, LEAST(after + most, last_old));
END;

-- name: end_old
-- Throws away what queues have kept for longer than they shall, at most 100,000 events of a partition that were not
-- dealt, and of each queue 10,000 ranges that were, and 2,000 copies. Chance chooses among more queues than max_rows:
-- one that cannot be helped, because somebody has its oldest event, hides no other one.
CREATE PROCEDURE end_old(max_rows INT)
BEGIN
    DECLARE found_id, owner_id BIGINT;
    DECLARE seconds DOUBLE;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE present DATETIME(6) DEFAULT UTC_TIMESTAMP(6);
    DECLARE holders CURSOR FOR
        SELECT q.subscription_id
        FROM queues AS q
        WHERE q.retention_seconds > 0 AND (EXISTS (
            SELECT * FROM leases AS l
            WHERE l.subscription_id = q.subscription_id
              AND old_until(l.partition_id, current_position(q.subscription_id, l.partition_id), 1,
                            present - INTERVAL q.retention_seconds * 1000000 MICROSECOND)
                  > current_position(q.subscription_id, l.partition_id)
        ) OR EXISTS (
            SELECT * FROM queue_waiting AS w
            WHERE w.subscription_id = q.subscription_id
              AND w.sequenced_at <= present - INTERVAL q.retention_seconds * 1000000 MICROSECOND))
        ORDER BY RAND()
        LIMIT max_rows;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    OPEN holders;
    each_queue: LOOP
        FETCH holders INTO found_id;
        IF done THEN
            LEAVE each_queue;
        END IF;
        SET owner_id = (
            SELECT q.subscription_id FROM queues AS q WHERE q.subscription_id = found_id FOR UPDATE SKIP LOCKED);
        IF owner_id IS NOT NULL THEN
            -- Under the lock: it may have been set since.
            SELECT q.retention_seconds INTO seconds FROM queues AS q WHERE q.subscription_id = owner_id;
            IF seconds > 0 THEN
                CALL end_old_of(owner_id, present - INTERVAL seconds * 1000000 MICROSECOND);
            END IF;
        END IF;
    END LOOP;
    CLOSE holders;
END;

-- name: end_old_of
-- Throws away what a queue has kept since before a time, under the dealer's lock, and records it. What somebody has
-- stays until his time is over. What was not dealt is passed over, so that it costs no row.
CREATE PROCEDURE end_old_of(owner_id BIGINT, before_time DATETIME(6))
BEGIN
    DECLARE part_id, held_epoch, seen_floor, stands_at, dealt_to, until BIGINT;
    DECLARE kept_order VARCHAR(10);
    DECLARE lows, ended, copies LONGTEXT;
    DECLARE present DATETIME(6) DEFAULT UTC_TIMESTAMP(6);
    DECLARE done, has_more BOOLEAN DEFAULT FALSE;
    DECLARE limit_before BIGINT UNSIGNED DEFAULT @@SESSION.group_concat_max_len;
    DECLARE parts CURSOR FOR
        SELECT l.partition_id FROM leases AS l WHERE l.subscription_id = owner_id ORDER BY l.partition_id;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    {{on error: SET SESSION group_concat_max_len = limit_before}}
    SET SESSION group_concat_max_len = 4294967295;
    SELECT t.floor_id INTO seen_floor FROM queue_turns AS t WHERE t.subscription_id = owner_id;
    SELECT q.`order` INTO kept_order FROM queues AS q WHERE q.subscription_id = owner_id;
    SET seen_floor = COALESCE(seen_floor, 0);
    CALL end_claims(owner_id, seen_floor, present, has_more);
    SELECT CONCAT('[', GROUP_CONCAT(JSON_ARRAY(l.partition_id, 1 + old_until(
               l.partition_id, current_position(owner_id, l.partition_id), 100000, before_time))), ']')
    INTO lows
    FROM leases AS l WHERE l.subscription_id = owner_id;
    CALL drop_below(owner_id, seen_floor, kept_order, lows, ended);
    CALL drop_old_copies(owner_id, seen_floor, before_time, copies);
    SET ended = JSON_MERGE_PRESERVE(ended, COALESCE(copies, '[]')), done = FALSE;
    OPEN parts;
    each_part: LOOP
        FETCH parts INTO part_id;
        IF done THEN
            LEAVE each_part;
        END IF;
        SET held_epoch = (
            SELECT l.lease_epoch FROM leases AS l
            WHERE l.subscription_id = owner_id AND l.partition_id = part_id
            FOR UPDATE SKIP LOCKED);
        SET stands_at = current_position(owner_id, part_id), dealt_to = current_reached(owner_id, part_id);
        SET until = old_until(part_id, dealt_to, 100000, before_time);
        IF held_epoch IS NOT NULL AND until > dealt_to THEN
            INSERT INTO positions (subscription_id, partition_id, position, lease_epoch, reason, reached)
            VALUES (owner_id, part_id, stands_at, held_epoch, 'queue', until);
            SET ended = JSON_ARRAY_APPEND(ended, '$', JSON_ARRAY(0, 0, 0, part_id, dealt_to + 1, until, 0, 0));
        END IF;
    END LOOP;
    CLOSE parts;
    CALL record_old(owner_id, ended);
    CALL move_floors(owner_id, seen_floor);
    SET SESSION group_concat_max_len = limit_before;
END;

-- name: drop_old_copies
-- Ends the events out of the window that came to the log before a time, and those that are in it again; ended has
-- their pieces. Nobody is waited for: who erases a copy has it locked, and it ends with the next sweep.
CREATE PROCEDURE drop_old_copies(owner_id BIGINT, floor_id BIGINT, before_time DATETIME(6), OUT ended LONGTEXT)
BEGIN
    DECLARE ids, range_ids, free_ids LONGTEXT;
    DECLARE limit_before BIGINT UNSIGNED DEFAULT @@SESSION.group_concat_max_len;
    {{on error: SET SESSION group_concat_max_len = limit_before}}
    SET SESSION group_concat_max_len = 4294967295;
    SET ended = '[]';
    -- In the order of workers: the claim before the copy.
    SELECT GROUP_CONCAT(o.id ORDER BY o.id) INTO range_ids
    FROM (
        SELECT r.id
        FROM queue_ranges AS r
        STRAIGHT_JOIN queue_waiting AS w FORCE INDEX (PRIMARY) ON w.id = r.waiting_id
        WHERE r.subscription_id = owner_id AND r.id >= floor_id AND r.token IS NULL
          AND w.sequenced_at <= before_time
        ORDER BY r.id
        LIMIT 1000
    ) AS o;
    IF range_ids IS NOT NULL THEN
        CALL lock_ranges(owner_id, NULL, range_ids);
    END IF;
    IF range_ids IS NOT NULL THEN
        SELECT GROUP_CONCAT(r.waiting_id) INTO free_ids
        FROM JSON_TABLE(CONCAT('[', range_ids, ']'), '$[*]' COLUMNS (id BIGINT PATH '$')) AS g
        STRAIGHT_JOIN queue_ranges AS r FORCE INDEX (PRIMARY) ON r.subscription_id = owner_id AND r.id = g.id
        WHERE r.token IS NULL;
    END IF;
    -- Found first: a locking query would lock what it passes over.
    SELECT GROUP_CONCAT(o.id ORDER BY o.id) INTO ids
    FROM (
        SELECT w.id
        FROM queue_waiting AS w FORCE INDEX (queue_waiting_age)
        WHERE w.subscription_id = owner_id AND w.sequenced_at <= before_time AND w.due_at IS NOT NULL
        LIMIT 1000
    ) AS o;
    SET ids = CONCAT_WS(',', free_ids, ids);
    IF ids <> '' THEN
        SELECT GROUP_CONCAT(w.id),
               CONCAT('[', GROUP_CONCAT(JSON_ARRAY(
                   0, 0, 0, w.partition_id, w.sequence, w.sequence, w.deliveries, w.id)), ']')
        INTO ids, ended
        FROM (
            SELECT j.id FROM JSON_TABLE(CONCAT('[', ids, ']'), '$[*]' COLUMNS (id BIGINT PATH '$')) AS j LIMIT 2000
        ) AS g
        STRAIGHT_JOIN queue_waiting AS w FORCE INDEX (PRIMARY) ON w.id = g.id
        WHERE w.due_at IS NOT NULL OR FIND_IN_SET(w.id, free_ids)
        FOR UPDATE SKIP LOCKED;
        DELETE r
        FROM JSON_TABLE(CONCAT('[', COALESCE(range_ids, ''), ']'), '$[*]' COLUMNS (id BIGINT PATH '$')) AS g
        STRAIGHT_JOIN queue_ranges AS r FORCE INDEX (PRIMARY) ON r.subscription_id = owner_id AND r.id = g.id
        WHERE r.token IS NULL AND FIND_IN_SET(r.waiting_id, ids);
        CALL drop_copies(ended);
        CALL finish_keys(owner_id, ended);
    END IF;
    SET SESSION group_concat_max_len = limit_before;
END;

-- name: record_old
-- Records what a queue has thrown away because of its age: a row for all that follow each other.
CREATE PROCEDURE record_old(owner_id BIGINT, ended LONGTEXT)
BEGIN
    INSERT INTO queue_purges (subscription_id, partition_id, first_sequence, last_sequence, purged_by, reason)
    SELECT owner_id, i.partition_id, MIN(i.first_sequence), MAX(i.last_sequence), principal(), 'retention_seconds'
    FROM (
        SELECT n.*, SUM(n.first_sequence > n.highest + 1) OVER (
                   PARTITION BY n.partition_id ORDER BY n.first_sequence, n.last_sequence ROWS UNBOUNDED PRECEDING)
                   AS island
        FROM (
            SELECT e.partition_id, e.first_sequence, e.last_sequence, MAX(e.last_sequence) OVER (
                       PARTITION BY e.partition_id ORDER BY e.first_sequence, e.last_sequence
                       ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS highest
            FROM JSON_TABLE(ended, '$[*]' COLUMNS (
                partition_id BIGINT PATH '$[3]', first_sequence BIGINT PATH '$[4]',
                last_sequence BIGINT PATH '$[5]')) AS e
        ) AS n
    ) AS i
    GROUP BY i.partition_id, i.island;
END;

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

-- name: current_undealt
-- The first sequence of a partition that the log has and a queue has not dealt.
CREATE FUNCTION current_undealt(of_subscription BIGINT, of_partition BIGINT) RETURNS BIGINT
READS SQL DATA
BEGIN
    DECLARE low BIGINT;
    SELECT MAX(p.low_sequence) INTO low FROM partitions AS p WHERE p.id = of_partition;
    RETURN GREATEST(current_reached(of_subscription, of_partition) + 1, low);
END;

-- name: is_in_hand
-- Whether an event that a queue has dealt is not finished: then the position before it cannot move.
CREATE FUNCTION is_in_hand(owner_id BIGINT, part_id BIGINT, sequence BIGINT, floor_id BIGINT) RETURNS BOOLEAN
READS SQL DATA
RETURN EXISTS (
    SELECT * FROM queue_ranges AS r FORCE INDEX (PRIMARY)
    WHERE r.subscription_id = owner_id AND r.id >= floor_id AND r.partition_id = part_id
      AND r.waiting_id IS NULL AND sequence BETWEEN r.first_sequence AND r.last_sequence
) OR EXISTS (
    SELECT * FROM queue_keys AS k
    WHERE k.subscription_id = owner_id AND k.partition_id = part_id AND k.sequence = sequence
      AND k.state IN ('behind', 'unsure') AND k.waiting_id = 0
);

-- name: queue_counts
-- How many events of a queue are ready, handed out, waiting outside the window, and dead. One query, because several
-- would see what moves between them twice, or not at all.
CREATE PROCEDURE queue_counts(
    owner_id BIGINT, OUT ready BIGINT, OUT in_flight BIGINT, OUT waits BIGINT, OUT dead BIGINT
)
READS SQL DATA
BEGIN
    DECLARE present DATETIME(6) DEFAULT UTC_TIMESTAMP(6);
    SELECT u.events + w.events - w.claimed + events_behind(owner_id), w.claimed, a.events, d.events
    INTO ready, in_flight, waits, dead
    FROM (
        SELECT CAST(COALESCE(SUM(
                   high_watermark(l.partition_id) - current_undealt(owner_id, l.partition_id) + 1), 0) AS SIGNED)
                   AS events
        FROM leases AS l
        WHERE l.subscription_id = owner_id
    ) AS u
    CROSS JOIN (
        SELECT CAST(COALESCE(SUM(r.last_sequence - r.first_sequence + 1), 0) AS SIGNED) AS events,
               CAST(COALESCE(SUM(IF(r.token IS NOT NULL AND r.deadline > present,
                                    r.last_sequence - r.first_sequence + 1, 0)), 0) AS SIGNED) AS claimed
        FROM queue_turns AS t
        JOIN queue_ranges AS r ON r.subscription_id = t.subscription_id AND r.id >= t.floor_id
        WHERE t.subscription_id = owner_id
    ) AS w
    CROSS JOIN (
        SELECT COUNT(*) AS events FROM queue_waiting AS c WHERE c.subscription_id = owner_id AND c.due_at IS NOT NULL
    ) AS a
    CROSS JOIN (SELECT COUNT(*) AS events FROM dead_letters AS l WHERE l.subscription_id = owner_id) AS d;
END;

-- name: queue_statistics
-- How many events of a queue are ready, handed out, waiting for a retry, and dead, and what they are together without
-- the dead ones. Raises PS013, PS042.
CREATE PROCEDURE queue_statistics(subscription LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE owner_id, ready, in_flight, waits, dead BIGINT;
    CALL refuse_serializable('queue_statistics()');
    CALL require_queue(subscription, 'peek', owner_id);
    CALL queue_counts(owner_id, ready, in_flight, waits, dead);
    SELECT ready + in_flight + waits AS size, ready AS ready, in_flight AS in_flight, waits AS `delayed`, dead AS dead;
END;

-- name: queue_pointers
-- Where a queue stands in each partition. reader: the sequence that is dealt next. repair: the lowest one that is not
-- finished; retention waits for it. invisibility: the lowest one that is handed out now or waits for a retry, NULL when
-- there is none. behind: how many wait behind an earlier event of their key. Raises PS013, PS042.
CREATE PROCEDURE queue_pointers(subscription LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE owner_id, lowest_id BIGINT;
    DECLARE present DATETIME(6) DEFAULT UTC_TIMESTAMP(6);
    CALL refuse_serializable('queue_pointers()');
    CALL require_queue(subscription, 'peek', owner_id);
    SELECT t.floor_id INTO lowest_id FROM queue_turns AS t WHERE t.subscription_id = owner_id;
    SELECT t.address AS topic, l.partition_id & 65535 AS `partition`,
           current_undealt(owner_id, l.partition_id) AS reader,
           COALESCE(u.repair, current_undealt(owner_id, l.partition_id)) AS repair, u.invisibility,
           CAST(COALESCE(u.behind, 0) AS SIGNED) AS behind
    FROM leases AS l
    JOIN topics AS t ON t.id = l.partition_id >> 16
    LEFT JOIN (
        SELECT n.partition_id, MIN(n.repair) AS repair, MIN(n.invisibility) AS invisibility,
               SUM(n.behind) AS behind
        FROM (
            SELECT r.partition_id, IF(r.waiting_id IS NULL, r.first_sequence, NULL) AS repair,
                   IF(r.deadline > present, r.first_sequence, NULL) AS invisibility, 0 AS behind
            FROM queue_ranges AS r FORCE INDEX (PRIMARY)
            WHERE r.subscription_id = owner_id AND r.id >= lowest_id
            UNION ALL
            SELECT k.partition_id, IF(k.waiting_id = 0, k.sequence, NULL), NULL, 1
            FROM queue_keys AS k FORCE INDEX (queue_keys_state)
            WHERE k.subscription_id = owner_id AND k.state IN ('behind', 'unsure')
            UNION ALL
            SELECT w.partition_id, NULL, w.sequence, 0
            FROM queue_waiting AS w
            WHERE w.subscription_id = owner_id AND w.due_at IS NOT NULL
        ) AS n
        GROUP BY n.partition_id
    ) AS u ON u.partition_id = l.partition_id
    WHERE l.subscription_id = owner_id
    ORDER BY t.address, l.partition_id;
END;

-- name: peek
-- The next unfinished events of each partition, and what waits outside the window, without handing anything out: at
-- most max_events. state is ready, in_flight, delayed or behind (an earlier event of its key). Raises PS006, PS013,
-- PS042.
CREATE PROCEDURE peek(subscription LONGTEXT, max_events INT)
READS SQL DATA
BEGIN
    DECLARE owner_id, floor_id BIGINT;
    DECLARE history INT;
    CALL refuse_serializable('peek()');
    CALL require_queue(subscription, 'peek', owner_id);
    IF NOT COALESCE(max_events BETWEEN 1 AND 1000, FALSE) THEN
        CALL refuse('PS006', CONCAT('cannot peek at ', COALESCE(max_events, 'NULL'), ' events: use 1 to 1,000'));
    END IF;
    SELECT t.floor_id INTO floor_id FROM queue_turns AS t WHERE t.subscription_id = owner_id;
    SELECT MAX(h.history) INTO history FROM histories AS h;
    CALL show_queue(owner_id, floor_id, max_events, history, UTC_TIMESTAMP(6));
END;

-- name: show_queue
-- The rows of peek.
CREATE PROCEDURE show_queue(
    owner_id BIGINT, lowest_id BIGINT, max_events INT, present INT, now DATETIME(6)
)
READS SQL DATA
BEGIN
    WITH windowed AS (
        SELECT r.partition_id, r.first_sequence, r.last_sequence, r.deliveries,
               IF(r.deadline > now, 'in_flight', 'ready') AS state, r.deadline
        FROM queue_ranges AS r FORCE INDEX (PRIMARY)
        WHERE r.subscription_id = owner_id AND r.id >= lowest_id AND r.waiting_id IS NULL
        ORDER BY r.id
        LIMIT max_events
    ), copies AS (
        SELECT c.*
        FROM queue_waiting AS c FORCE INDEX (queue_waiting_place)
        WHERE c.subscription_id = owner_id
        ORDER BY c.sequence, c.partition_id
        LIMIT max_events
    ), returned AS (
        SELECT r.waiting_id, r.deliveries, IF(r.deadline > now, 'in_flight', 'ready') AS state, r.deadline
        FROM queue_ranges AS r FORCE INDEX (PRIMARY)
        WHERE r.subscription_id = owner_id AND r.id >= lowest_id
          AND r.waiting_id IN (SELECT c.id FROM copies AS c)
    ), placed AS (
        SELECT w.partition_id, w.first_sequence, w.last_sequence, w.deliveries, w.state, w.deadline
        FROM windowed AS w
        UNION ALL
        (SELECT k.partition_id, k.sequence, k.sequence, 0, 'behind', NULL
         FROM queue_keys AS k FORCE INDEX (queue_keys_state)
         WHERE k.subscription_id = owner_id AND k.state IN ('behind', 'unsure') AND k.waiting_id = 0
         ORDER BY k.sequence, k.partition_id
         LIMIT max_events)
        UNION ALL
        SELECT l.partition_id, current_undealt(owner_id, l.partition_id),
               LEAST(current_undealt(owner_id, l.partition_id) + max_events - 1, high_watermark(l.partition_id)), 0,
               'ready', NULL
        FROM leases AS l
        WHERE l.subscription_id = owner_id
          AND high_watermark(l.partition_id) >= current_undealt(owner_id, l.partition_id)
        LIMIT 1000000
    ), shown AS (
        SELECT p.partition_id, p.first_sequence + l.n AS sequence, p.deliveries, p.state, p.deadline, (
                   SELECT f.first_sequence FROM chunks AS f
                   WHERE f.partition_id = p.partition_id AND f.first_sequence <= p.first_sequence + l.n
                   ORDER BY f.partition_id DESC, f.first_sequence DESC
                   LIMIT 1) AS chunk
        FROM placed AS p
        STRAIGHT_JOIN places AS l
            ON l.size = 1 << CAST(CEIL(LOG2(p.last_sequence - p.first_sequence + 1)) AS UNSIGNED)
            AND l.n <= p.last_sequence - p.first_sequence
        ORDER BY p.first_sequence + l.n, p.partition_id
        LIMIT max_events
    )
    SELECT s.state, IF(s.state = 'in_flight', s.deadline, NULL) AS visible_at, s.deliveries,
           0 AS failures, t.address AS topic, s.partition_id & 65535 AS `partition`, s.sequence,
           LOWER(INSERT(INSERT(INSERT(INSERT(HEX(e.event_id), 21, 0, '-'), 17, 0, '-'), 13, 0, '-'), 9, 0, '-'))
               AS event_id,
           e.`key`, e.type, e.content_type, e.headers, e.payload, e.created_at,
           IF(c.sequenced_ats IS NULL, c.sequenced_at, TIMESTAMP'1970-01-01 00:00:00' + INTERVAL CAST(CONV(HEX(
               SUBSTR(c.sequenced_ats, 8 * (s.sequence - c.first_sequence) + 1, 8)), 16, 10) AS SIGNED) MICROSECOND)
               AS sequenced_at, present AS history
    FROM shown AS s
    STRAIGHT_JOIN chunks AS c
        ON c.partition_id = s.partition_id AND c.first_sequence = s.chunk
        AND s.sequence < c.first_sequence + c.event_count
    STRAIGHT_JOIN events AS e FORCE INDEX (PRIMARY)
        ON e.id = CAST(CONV(HEX(SUBSTR(c.event_ids, 8 * (s.sequence - c.first_sequence) + 1, 8)), 16, 10) AS SIGNED)
    STRAIGHT_JOIN topics AS t ON t.id = s.partition_id >> 16
    UNION ALL
    SELECT CASE WHEN a.due_at > now THEN 'delayed' WHEN b.waiting_id IS NOT NULL THEN 'behind'
                ELSE COALESCE(w.state, 'ready') END,
           COALESCE(a.due_at, IF(w.state = 'in_flight', w.deadline, NULL)), COALESCE(w.deliveries, a.deliveries),
           a.failures, t.address, a.partition_id & 65535, a.sequence,
           LOWER(INSERT(INSERT(INSERT(INSERT(HEX(a.event_id), 21, 0, '-'), 17, 0, '-'), 13, 0, '-'), 9, 0, '-')),
           a.`key`, a.type, a.content_type, a.headers, COALESCE(a.body, a.payload), a.created_at, a.sequenced_at,
           a.history
    FROM copies AS a
    JOIN topics AS t ON t.id = a.partition_id >> 16
    LEFT JOIN returned AS w ON w.waiting_id = a.id
    LEFT JOIN queue_keys AS b
        ON b.subscription_id = a.subscription_id AND b.partition_id = a.partition_id AND b.sequence = a.sequence
        AND b.waiting_id = a.id AND b.state <> 'first'
    ORDER BY sequence, topic, `partition`
    LIMIT max_events;
END;

-- name: has_removed
-- Whether retention has removed events that a queue has dealt and not finished: its position is below them.
CREATE FUNCTION has_removed(owner_id BIGINT) RETURNS BOOLEAN
READS SQL DATA
BEGIN
    DECLARE found INT DEFAULT 0;
    SELECT COUNT(*) INTO found
    FROM leases AS l STRAIGHT_JOIN partitions AS p ON p.id = l.partition_id
    WHERE l.subscription_id = owner_id AND current_position(owner_id, l.partition_id) < p.low_sequence - 1;
    RETURN found > 0;
END;

-- name: drop_removed
-- Ends what a queue has dealt and retention has removed: a receiver would get a claim of nothing, again and again. That
-- it was skipped is recorded already. A claim that somebody has stays until its time is over: he may have read it. What
-- waits behind the key of such an event and is gone too ends with it: nobody else can be about to finish that key.
CREATE PROCEDURE drop_removed(owner_id BIGINT, floor_id BIGINT, kept_order VARCHAR(10))
BEGIN
    DECLARE ids, gone_ids, pieces, cuts, behind LONGTEXT;
    DECLARE limit_before BIGINT UNSIGNED DEFAULT @@SESSION.group_concat_max_len;
    {{on error: SET SESSION group_concat_max_len = limit_before}}
    SET SESSION group_concat_max_len = 4294967295;
    SELECT GROUP_CONCAT(o.id ORDER BY o.id) INTO ids
    FROM (
        SELECT r.id
        FROM queue_ranges AS r STRAIGHT_JOIN partitions AS p ON p.id = r.partition_id
        WHERE r.subscription_id = owner_id AND r.id >= floor_id AND r.token IS NULL AND r.waiting_id IS NULL
          AND r.first_sequence < p.low_sequence
        ORDER BY r.id
        LIMIT 10000
    ) AS o;
    IF ids IS NOT NULL THEN
        CALL lock_ranges(owner_id, NULL, ids);
    END IF;
    IF ids IS NOT NULL THEN
        -- Somebody may have claimed one before it was locked.
        SELECT GROUP_CONCAT(IF(r.last_sequence < p.low_sequence, r.id, NULL)),
               CONCAT('[', GROUP_CONCAT(IF(r.last_sequence < p.low_sequence, JSON_ARRAY(
                   0, 0, r.id, r.partition_id, r.first_sequence, r.last_sequence, r.deliveries, 0), NULL)), ']'),
               CONCAT('[', GROUP_CONCAT(IF(r.last_sequence < p.low_sequence, NULL, JSON_ARRAY(
                   r.id, p.low_sequence))), ']')
        INTO gone_ids, pieces, cuts
        FROM JSON_TABLE(CONCAT('[', ids, ']'), '$[*]' COLUMNS (id BIGINT PATH '$')) AS g
        STRAIGHT_JOIN queue_ranges AS r FORCE INDEX (PRIMARY) ON r.subscription_id = owner_id AND r.id = g.id
        STRAIGHT_JOIN partitions AS p ON p.id = r.partition_id
        WHERE r.token IS NULL;
        UPDATE JSON_TABLE(COALESCE(cuts, '[]'), '$[*]' COLUMNS (
            id BIGINT PATH '$[0]', low_sequence BIGINT PATH '$[1]')) AS g
        STRAIGHT_JOIN queue_ranges AS r FORCE INDEX (PRIMARY) ON r.subscription_id = owner_id AND r.id = g.id
        SET r.first_sequence = g.low_sequence;
        IF gone_ids IS NOT NULL THEN
            CALL drop_ranges(owner_id, gone_ids);
        END IF;
    END IF;
    IF kept_order = 'key' AND pieces IS NOT NULL THEN
        SELECT CONCAT('[', GROUP_CONCAT(JSON_ARRAY(n.partition_id, n.sequence)), ']') INTO behind
        FROM (
            SELECT DISTINCT k.partition_id, k.sequence
            FROM JSON_TABLE(pieces, '$[*]' COLUMNS (
                partition_id BIGINT PATH '$[3]', sequence BIGINT PATH '$[4]')) AS g
            STRAIGHT_JOIN queue_keys AS f FORCE INDEX (PRIMARY)
                ON f.subscription_id = owner_id AND f.partition_id = g.partition_id AND f.sequence = g.sequence
                AND f.waiting_id = 0
            STRAIGHT_JOIN partitions AS p ON p.id = g.partition_id
            STRAIGHT_JOIN queue_keys AS k FORCE INDEX (queue_keys_key)
                ON k.subscription_id = owner_id AND k.partition_id = g.partition_id AND k.key_digest = f.key_digest
            WHERE k.state <> 'first' AND k.waiting_id = 0 AND k.sequence < p.low_sequence
            LIMIT 1000000
        ) AS n;
        DELETE k
        FROM JSON_TABLE(COALESCE(behind, '[]'), '$[*]' COLUMNS (
            partition_id BIGINT PATH '$[0]', sequence BIGINT PATH '$[1]')) AS g
        STRAIGHT_JOIN queue_keys AS k FORCE INDEX (PRIMARY)
            ON k.subscription_id = owner_id AND k.partition_id = g.partition_id AND k.sequence = g.sequence
            AND k.waiting_id = 0;
        CALL finish_keys(owner_id, pieces);
    END IF;
    SET SESSION group_concat_max_len = limit_before;
END;

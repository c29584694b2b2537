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

-- name: current_undealt
-- The first sequence of a partition that the log has and a queue has not dealt.
CREATE FUNCTION current_undealt(of_subscription BIGINT, of_partition BIGINT) RETURNS BIGINT
READS SQL DATA
BEGIN
    DECLARE low BIGINT;
    SELECT MAX(p.low_sequence) INTO low FROM partitions AS p WHERE p.id = of_partition;
    RETURN GREATEST(current_reached(of_subscription, of_partition) + 1, low);
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
           COALESCE(a.due_at, IF(w.state = 'in_flight', w.deadline, NULL)),
           COALESCE(w.deliveries, a.deliveries) + a.deliveries_before, a.failures, t.address, a.partition_id & 65535,
           a.sequence,
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

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

-- name: queue_scheduled
-- How many events were published for later into the topics of a queue and are not due yet: they are not in the log, so
-- no other count has them. It counts no further than 20,000. Raises PS013, PS042.
CREATE PROCEDURE queue_scheduled(subscription LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE owner_id, taken_id BIGINT;
    DECLARE taken_due DATETIME(6);
    CALL refuse_serializable('queue_scheduled()');
    CALL require_queue(subscription, 'peek', owner_id);
    SELECT s.delayed_due, s.delayed_id INTO taken_due, taken_id FROM sequencer AS s;
    SELECT COUNT(*) AS scheduled
    FROM (
        SELECT d.id
        FROM leases AS l
        STRAIGHT_JOIN delayed_events AS d FORCE INDEX (delayed_events_partition)
            ON d.partition_id = l.partition_id AND d.due >= taken_due AND NOT (d.due = taken_due AND d.id <= taken_id)
        WHERE l.subscription_id = owner_id
        LIMIT 20000
    ) AS c;
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

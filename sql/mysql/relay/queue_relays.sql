-- name: bury_claims
-- Makes events dead letters at once that a relay of a queue has received and its sink will never take. Returns for each
-- entry whether it was done, as acknowledge does. Raises PS013, PS018, PS042, PS043, PS044.
CREATE PROCEDURE bury_claims(
    subscription LONGTEXT, claims JSON, first_sequences JSON, last_sequences JSON, tokens JSON, reason LONGTEXT,
    partly BOOLEAN
)
BEGIN
    DECLARE owner_id BIGINT;
    DECLARE pieces, settled LONGTEXT;
    DECLARE id_before BIGINT DEFAULT LAST_INSERT_ID();
    {{on error: CALL undo_call(); DO LAST_INSERT_ID(id_before)}}
    CALL begin_call('bury_claims()');
    CALL require_read_committed('bury_claims()');
    CALL require_queue(subscription, 'acknowledge', owner_id);
    CALL take_out(owner_id, claims, first_sequences, last_sequences, tokens, partly, pieces, settled);
    CALL bury_pieces(owner_id, pieces, LEFT(COALESCE(reason, ''), 2000));
    SELECT settled AS settled;
    DO LAST_INSERT_ID(id_before);
    CALL end_call();
END;

-- name: relayed_events
-- What has become of events of a queue, from a sequence of a partition on, at most max_events. state: pending (also one
-- that waits for its next attempt, or behind an earlier event of its key), in_flight, sent (finished, or thrown away by
-- purge), failed (a dead letter). attempts counts hand-outs; next_attempt_at is when the next one is due, or when
-- others may get it that is in flight. Raises PS002, PS005, PS006, PS013, PS042.
CREATE PROCEDURE relayed_events(
    subscription LONGTEXT, topic LONGTEXT, `partition` INT, from_sequence BIGINT, max_events INT
)
READS SQL DATA
BEGIN
    DECLARE owner_id, source_id, lowest_id, stands_at BIGINT;
    DECLARE present INT;
    DECLARE now DATETIME(6) DEFAULT UTC_TIMESTAMP(6);
    CALL refuse_serializable('relayed_events()');
    CALL require_queue(subscription, 'peek', owner_id);
    CALL require_partition(topic, `partition`, source_id);
    SET stands_at = current_reached(owner_id, source_id);
    IF NOT COALESCE(max_events BETWEEN 1 AND 1000, FALSE) THEN
        CALL refuse('PS006', CONCAT('cannot look at ', COALESCE(max_events, 'NULL'), ' events: use 1 to 1,000'));
    ELSEIF stands_at IS NULL THEN
        CALL refuse('PS013', 'the subscription does not read the topic');
    END IF;
    SELECT t.floor_id INTO lowest_id FROM queue_turns AS t WHERE t.subscription_id = owner_id;
    SELECT MAX(h.history) INTO present FROM histories AS h;
    SELECT l.sequence,
           LOWER(INSERT(INSERT(INSERT(INSERT(HEX(l.event_id), 21, 0, '-'), 17, 0, '-'), 13, 0, '-'), 9, 0, '-'))
               AS event_id,
           CASE WHEN COALESCE(b.token, r.token) IS NOT NULL AND COALESCE(b.deadline, r.deadline) > now THEN 'in_flight'
                WHEN w.id IS NOT NULL OR r.id IS NOT NULL OR l.sequence > stands_at OR k.sequence IS NOT NULL
                    THEN 'pending'
                WHEN d.id IS NOT NULL THEN 'failed'
                ELSE 'sent' END AS state,
           CASE WHEN w.id IS NOT NULL THEN COALESCE(b.deliveries, w.deliveries) + w.deliveries_before
                ELSE COALESCE(r.deliveries, d.attempts, IF(l.sequence > stands_at, 0, NULL)) END AS attempts,
           COALESCE(w.reason, d.reason, '') AS last_error,
           IF(COALESCE(b.token, r.token) IS NOT NULL, COALESCE(b.deadline, r.deadline), w.due_at) AS next_attempt_at
    FROM (
        SELECT STRAIGHT_JOIN i.sequence, e.event_id
        FROM (
            SELECT n.sequence, n.id
            FROM logged_ids AS n
            WHERE n.partition_id = source_id
              AND n.first_sequence >= COALESCE((
                  SELECT MAX(f.first_sequence) FROM chunks AS f
                  WHERE f.partition_id = source_id AND f.first_sequence <= from_sequence), 0)
              AND n.first_sequence < from_sequence + max_events
              AND n.sequence >= from_sequence AND n.sequence < from_sequence + max_events
            LIMIT 1000
        ) AS i
        JOIN events AS e FORCE INDEX (PRIMARY) ON e.id = i.id
    ) AS l
    LEFT JOIN queue_waiting AS w FORCE INDEX (queue_waiting_place)
        ON w.subscription_id = owner_id AND w.partition_id = source_id AND w.sequence = l.sequence
    LEFT JOIN queue_ranges AS b FORCE INDEX (PRIMARY)
        ON b.subscription_id = owner_id AND b.id >= lowest_id AND b.waiting_id = w.id
    LEFT JOIN queue_ranges AS r FORCE INDEX (PRIMARY)
        ON r.subscription_id = owner_id AND r.id >= lowest_id AND r.partition_id = source_id
        AND r.waiting_id IS NULL AND l.sequence BETWEEN r.first_sequence AND r.last_sequence
    LEFT JOIN queue_keys AS k FORCE INDEX (PRIMARY)
        ON k.subscription_id = owner_id AND k.partition_id = source_id AND k.sequence = l.sequence
        AND k.state IN ('behind', 'unsure')
    LEFT JOIN dead_letters AS d FORCE INDEX (PRIMARY)
        ON d.subscription_id = owner_id AND d.partition_id = source_id AND d.sequence = l.sequence
        AND d.history = present
    ORDER BY l.sequence;
END;

-- name: queue_relay_status
-- Where the relay of a queue stands: how many of its events are ready, handed out, waiting for a retry, and dead; the
-- newest failure, of an attempt, an event that died or a sink that takes nothing; and since when it takes nothing.
-- breaker: open or half-open, NULL: closed. Raises PS013, PS042.
CREATE PROCEDURE queue_relay_status(subscription LONGTEXT)
READS SQL DATA
BEGIN
    DECLARE owner_id, ready, in_flight, waits, dead BIGINT;
    CALL refuse_serializable('queue_relay_status()');
    CALL require_queue(subscription, 'peek', owner_id);
    CALL queue_counts(owner_id, ready, in_flight, waits, dead);
    SELECT ready AS ready, in_flight AS in_flight, waits AS `delayed`, dead AS dead, f.error AS last_error,
           f.at AS failed_at, b.state AS breaker, b.since AS away_since
    FROM (SELECT owner_id AS id) AS o
    LEFT JOIN relay_breakers AS b ON b.subscription_id = o.id AND b.consumer = ''
    LEFT JOIN (
        SELECT u.error, u.at
        FROM (
            SELECT s.error, s.changed_at AS at FROM relay_breakers AS s
            WHERE s.subscription_id = owner_id AND s.consumer = ''
            UNION ALL
            (SELECT w.reason, w.failed_at FROM queue_waiting AS w FORCE INDEX (queue_waiting_place)
             WHERE w.subscription_id = owner_id AND w.failed_at IS NOT NULL
             ORDER BY w.failed_at DESC
             LIMIT 1)
            UNION ALL
            (SELECT d.reason, d.died_at FROM dead_letters AS d FORCE INDEX (dead_letters_subscription)
             WHERE d.subscription_id = owner_id
             ORDER BY d.id DESC
             LIMIT 1)
        ) AS u
        ORDER BY u.at DESC
        LIMIT 1
    ) AS f ON TRUE;
END;

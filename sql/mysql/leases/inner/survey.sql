-- name: backlog_of
-- How much of a partition is unread, redriven dead letters included.
CREATE FUNCTION backlog_of(of_subscription BIGINT, of_partition BIGINT) RETURNS BIGINT
READS SQL DATA
RETURN high_watermark(of_partition) - current_position(of_subscription, of_partition)
    + redriven_letters(of_subscription, of_partition);

-- name: survey
-- Records which partitions of a subscription are active, unless that was done after the given time: all check-ins
-- share what one of them has found. A partition is active when it has unread events or redriven dead letters, or when
-- it is held and was read a moment ago, so that its lease is kept over a short pause between two events. Partitions
-- that were active and are held are looked at within ten seconds, a part of them each time, chosen by their random
-- keys, unless the caller asks for all. The caller has locked the subscription's row, so that one check-in looks
-- while the others wait and need not look again. Returns whether it looked.
CREATE PROCEDURE survey(owner_id BIGINT, since DATETIME(6), is_whole BOOLEAN, present DATETIME(6), OUT looked BOOLEAN)
survey: BEGIN
    DECLARE turn, share DOUBLE;
    -- One that lies ahead was made before the clock was set back.
    SELECT COUNT(v.made_at) = 0 INTO looked
    FROM surveys AS v WHERE v.subscription_id = owner_id AND v.made_at BETWEEN since AND present;
    IF NOT looked THEN
        LEAVE survey;
    END IF;
    SELECT MAX(TIMESTAMPDIFF(MICROSECOND, '2000-01-01', v.made_at)) / 1e7 INTO turn
    FROM surveys AS v WHERE v.subscription_id = owner_id AND v.made_at <= present;
    SET share = IF(is_whole OR turn IS NULL, 1, TIMESTAMPDIFF(MICROSECOND, '2000-01-01', present) / 1e7 - turn);
    SET turn = COALESCE(turn - FLOOR(turn), 0);
    CREATE TEMPORARY TABLE IF NOT EXISTS looked_at (
        partition_id BIGINT NOT NULL PRIMARY KEY, is_active BOOLEAN NOT NULL, was_active BOOLEAN NOT NULL
    ) ENGINE = MEMORY;
    DELETE FROM looked_at;
    INSERT INTO looked_at (partition_id, is_active, was_active)
    SELECT STRAIGHT_JOIN n.partition_id,
           IF(n.holder IS NOT NULL AND GREATEST(p.at, n.acquired_at) > present - INTERVAL 30 SECOND, TRUE,
              high_watermark(n.partition_id) > p.position OR redriven_letters(owner_id, n.partition_id) > 0),
           n.was_active
    FROM (
        SELECT l.partition_id, l.holder, l.acquired_at, a.partition_id IS NOT NULL AS was_active, (
                   SELECT q.id
                   FROM positions AS q FORCE INDEX (positions_newest)
                   WHERE q.subscription_id = l.subscription_id AND q.partition_id = l.partition_id
                   ORDER BY q.subscription_id DESC, q.partition_id DESC, q.id DESC
                   LIMIT 1) AS newest
        FROM leases AS l FORCE INDEX (PRIMARY)
        LEFT JOIN active_partitions AS a ON a.subscription_id = owner_id AND a.partition_id = l.partition_id
        WHERE l.subscription_id = owner_id AND (
            a.partition_id IS NULL OR l.state = 'AVAILABLE' OR l.random_key - turn - FLOOR(l.random_key - turn) < share)
        LIMIT 1000000  -- Keeps it from being merged into the query.
    ) AS n
    JOIN positions AS p ON p.id = n.newest;
    DELETE a
    FROM looked_at AS f
    STRAIGHT_JOIN active_partitions AS a ON a.subscription_id = owner_id AND a.partition_id = f.partition_id
    WHERE NOT f.is_active;
    INSERT INTO active_partitions (subscription_id, partition_id)
    SELECT owner_id, f.partition_id FROM looked_at AS f WHERE f.is_active AND NOT f.was_active;
    INSERT INTO surveys (subscription_id, made_at, pace_seconds)
    SELECT s.id, present, (SELECT COUNT(*) FROM consumers AS c WHERE c.subscription_id = owner_id) / s.target_qps
    FROM subscriptions AS s
    WHERE s.id = owner_id
    ON DUPLICATE KEY UPDATE made_at = VALUES(made_at), pace_seconds = VALUES(pace_seconds);
END;

-- name: read_board
-- Fills the session's table board: every partition of a subscription, or of these topics (a JSON array of ids; NULL:
-- all topics), which consumer holds it, and whether it is active.
CREATE PROCEDURE read_board(owner_id BIGINT, topic_ids JSON)
BEGIN
    CREATE TEMPORARY TABLE IF NOT EXISTS board (
        partition_id BIGINT NOT NULL PRIMARY KEY, state VARCHAR(10) NOT NULL, holder_hash BINARY(32),
        random_key DOUBLE NOT NULL, is_active BOOLEAN NOT NULL, KEY board_holder (holder_hash)
    ) ENGINE = MEMORY;
    DELETE FROM board;
    INSERT INTO board (partition_id, state, holder_hash, random_key, is_active)
    SELECT l.partition_id, l.state, UNHEX(SHA2(l.holder, 256)), l.random_key, a.partition_id IS NOT NULL
    FROM leases AS l FORCE INDEX (PRIMARY)
    LEFT JOIN active_partitions AS a ON a.subscription_id = owner_id AND a.partition_id = l.partition_id
    WHERE l.subscription_id = owner_id
      AND (topic_ids IS NULL OR JSON_CONTAINS(topic_ids, CAST(l.partition_id >> 16 AS CHAR)));
END;

-- name: find_standings
-- Fills the session's table stands: how many active partitions of the board each consumer holds, and how many it
-- holds too few (below 0: too many). The fair shares are by weight, among the consumers that take this topic (NULL:
-- all topics), by the method of largest remainders (Hamilton); ties go by consumer id. So all active partitions are
-- held, consumers of equal weight differ by at most 1, and nothing moves in the steady state.
CREATE PROCEDURE find_standings(owner_id BIGINT, of_topic BIGINT, active BIGINT)
BEGIN
    CREATE TEMPORARY TABLE IF NOT EXISTS stands (
        consumer VARCHAR(255) NOT NULL PRIMARY KEY, shortage BIGINT NOT NULL, held BIGINT NOT NULL
    ) ENGINE = MEMORY;
    DELETE FROM stands;
    INSERT INTO stands (consumer, shortage, held)
    WITH exact AS (
        SELECT c.id, active * c.weight / SUM(c.weight) OVER () AS share, (
                   SELECT COUNT(*) FROM board AS b
                   WHERE b.holder_hash = UNHEX(SHA2(c.id, 256)) AND b.state = 'ACTIVE' AND b.is_active) AS held
        FROM consumers AS c
        WHERE c.subscription_id = owner_id AND (of_topic IS NULL OR may_hold(owner_id, c.id, of_topic))
    ), ranked AS (
        SELECT e.id, e.held, FLOOR(e.share) - e.held AS missing,
               ROW_NUMBER() OVER (ORDER BY e.share - FLOOR(e.share) DESC, e.id) AS place,
               active - SUM(FLOOR(e.share)) OVER () AS left_over
        FROM exact AS e
    )
    SELECT r.id, r.missing + (r.place <= r.left_over), r.held FROM ranked AS r;
END;

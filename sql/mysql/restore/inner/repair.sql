-- By design: what may lack its sequence is found by transaction numbers on PostgreSQL, by ids on MySQL.

-- name: find_doubtful
-- For a log that was loaded from a dump: the first id that has to be compared with the index. It is the lowest id
-- that waits, or the id of a day before the newest event, because a dump is inconsistent only about events that were
-- in flight while it was made. oldest_at: no event above the first id is older than this.
CREATE PROCEDURE find_doubtful(boundary BIGINT, OUT first_id BIGINT, OUT oldest_at DATETIME(6))
READS SQL DATA
BEGIN
    DECLARE low, middle, waiting BIGINT DEFAULT 0;
    DECLARE high BIGINT DEFAULT boundary;
    DECLARE here, since DATETIME(6);
    SELECT MAX(n.created_at) - INTERVAL 1 DAY INTO since
    FROM (SELECT e.created_at FROM events AS e ORDER BY e.id DESC LIMIT 1) AS n;
    WHILE high - low > 256 DO
        SET middle = (low + high) DIV 2;
        SELECT MAX(n.created_at) INTO here
        FROM (SELECT e.created_at FROM events AS e WHERE e.id >= middle ORDER BY e.id LIMIT 1) AS n;
        IF COALESCE(here >= since, TRUE) THEN
            SET high = middle;
        ELSE
            SET low = middle;
        END IF;
    END WHILE;
    SELECT COALESCE(MIN(p.block) * 256, low) INTO waiting FROM pending AS p WHERE p.event_count > 0;
    SET first_id = LEAST(low, waiting) DIV 256 * 256;
    SELECT MIN(n.created_at) INTO here
    FROM (SELECT e.created_at FROM events AS e WHERE e.id >= first_id ORDER BY e.id LIMIT 1) AS n;
    -- The clock may have been put back a little between a publish and its sequence.
    SET oldest_at = COALESCE(LEAST(here, since), '2000-01-02') - INTERVAL 1 HOUR;
END;

-- name: find_needs_repair
-- Whether events from before the last restore may lack their sequence although nothing waits: the new era has just
-- begun, or has yet to begin because no pass has noticed the restore.
CREATE PROCEDURE find_needs_repair(OUT is_needed BOOLEAN)
READS SQL DATA
BEGIN
    DECLARE server_now VARCHAR(200);
    DECLARE made_now BIGINT;
    CALL log_identity(server_now, made_now);
    SELECT COUNT(*) INTO is_needed
    FROM (SELECT e.* FROM eras AS e ORDER BY e.era DESC LIMIT 1) AS n
    WHERE n.repaired_id < n.boundary_id OR n.server <> server_now OR n.made <> made_now;
END;

-- name: claim_doubtful
-- Locks the waiting blocks in a range of ids and puts them into claimed: the repair removes them from pending,
-- whether they were sequenced or not. A block that is already locked belongs to an open publisher, and waits for an
-- ordinary pass.
CREATE PROCEDURE claim_doubtful(after_id BIGINT, last_id BIGINT)
BEGIN
    CREATE TEMPORARY TABLE IF NOT EXISTS claimed (
        block BIGINT NOT NULL PRIMARY KEY, event_count INT NOT NULL, taken INT NOT NULL, used INT NOT NULL
    ) ENGINE = MEMORY;
    DELETE FROM claimed;
    INSERT INTO claimed (block, event_count, taken, used)
    SELECT p.block, p.event_count, p.taken, p.event_count - p.taken
    FROM pending AS p
    WHERE p.block > after_id DIV 256 AND p.block <= last_id DIV 256
    FOR UPDATE SKIP LOCKED;
END;

-- name: look_at_events
-- Puts the events of a range of ids into the session's table looked, and their partitions into looked_partitions.
-- They are read after the claim: a publisher that commits in between keeps its row in pending, and its events wait
-- for an ordinary pass. from_sequence is that of the first chunk that can hold one of the events. Events that
-- retention has removed from the index have ids up to gone_id.
CREATE PROCEDURE look_at_events(after_id BIGINT, last_id BIGINT, oldest_at DATETIME(6))
BEGIN
    CREATE TEMPORARY TABLE IF NOT EXISTS looked (
        id BIGINT NOT NULL PRIMARY KEY, partition_id BIGINT NOT NULL, due_at DATETIME(6), was_waiting BOOLEAN NOT NULL,
        is_known BOOLEAN NOT NULL
    ) ENGINE = MEMORY;
    CREATE TEMPORARY TABLE IF NOT EXISTS looked_partitions (
        partition_id BIGINT NOT NULL PRIMARY KEY, from_sequence BIGINT NOT NULL, gone_id BIGINT NOT NULL
    ) ENGINE = MEMORY;
    DELETE FROM looked;
    DELETE FROM looked_partitions;
    INSERT INTO looked (id, partition_id, due_at, was_waiting, is_known)
    SELECT e.id, e.partition_id, e.due_at, c.block IS NOT NULL, FALSE
    FROM events AS e
    LEFT JOIN claimed AS c ON c.block = e.id DIV 256
    LEFT JOIN pending AS p ON p.block = e.id DIV 256
    WHERE e.id > after_id AND e.id <= last_id AND (p.block IS NULL OR c.block IS NOT NULL);
    INSERT INTO looked_partitions (partition_id, from_sequence, gone_id)
    SELECT k.partition_id, COALESCE((
            SELECT c.first_sequence FROM chunks AS c
            WHERE c.partition_id = k.partition_id AND c.sequenced_at < oldest_at
            ORDER BY c.first_sequence DESC
            LIMIT 1), 0), COALESCE((
            SELECT IF(c.first_sequence > 1, c.last_id, 0) FROM chunks AS c
            WHERE c.partition_id = k.partition_id
            ORDER BY c.first_sequence
            LIMIT 1), 0)
    FROM (SELECT DISTINCT l.partition_id FROM looked AS l) AS k;
END;

-- name: mark_known
-- Marks those of the looked at events that are in their place: in the index of the log, among the delayed events that
-- are still to come, or removed with their topic or by retention. A delayed event that has its sequence already, or
-- was passed over, is removed from the delayed ones.
CREATE PROCEDURE mark_known(after_id BIGINT, last_id BIGINT, due_done DATETIME(6), id_done BIGINT)
BEGIN
    UPDATE looked_partitions AS o
    STRAIGHT_JOIN chunks AS c ON c.partition_id = o.partition_id AND c.first_sequence >= o.from_sequence
    STRAIGHT_JOIN places AS l ON l.size = 1 << CAST(CEIL(LOG2(c.event_count)) AS UNSIGNED) AND l.n < c.event_count
    STRAIGHT_JOIN looked AS k ON k.id = CAST(CONV(HEX(SUBSTR(c.event_ids, 8 * l.n + 1, 8)), 16, 10) AS SIGNED)
    SET k.is_known = TRUE
    WHERE c.last_id > after_id AND c.first_id <= last_id;
    DELETE d
    FROM looked AS k STRAIGHT_JOIN delayed_events AS d FORCE INDEX (PRIMARY) ON d.due = k.due_at AND d.id = k.id
    WHERE k.is_known OR d.due < due_done OR (d.due = due_done AND d.id <= id_done);
    UPDATE looked AS k STRAIGHT_JOIN delayed_events AS d FORCE INDEX (PRIMARY) ON d.due = k.due_at AND d.id = k.id
    SET k.is_known = TRUE
    WHERE NOT k.is_known;
    UPDATE looked AS k JOIN deleted_topics AS d ON d.topic_id = k.partition_id DIV 65536
    SET k.is_known = TRUE
    WHERE NOT k.was_waiting;
    UPDATE looked AS k JOIN looked_partitions AS o ON o.partition_id = k.partition_id
    SET k.is_known = TRUE
    WHERE NOT k.was_waiting AND k.id <= o.gone_id;
END;

-- name: repair_pass
-- One pass of the repair after the load of a dump. The next events from before the era, in id order, get their
-- sequences if they have none, whether or not they were in pending. No event is left to wait twice.
CREATE PROCEDURE repair_pass(
    max_events INT, present DATETIME(6), due_done DATETIME(6), id_done BIGINT, OUT sequenced BIGINT, OUT grown LONGTEXT
)
BEGIN
    DECLARE number INT;
    DECLARE after_id, boundary, reached, found BIGINT;
    DECLARE oldest DATETIME(6);
    SELECT e.era, e.repaired_id, e.boundary_id, e.oldest_at INTO number, after_id, boundary, oldest
    FROM eras AS e ORDER BY e.era DESC LIMIT 1;
    SELECT MAX(w.id), COUNT(*) INTO reached, found
    FROM (
        SELECT e.id FROM events AS e WHERE e.id > after_id AND e.id <= boundary ORDER BY e.id LIMIT max_events
    ) AS w;
    SET reached = IF(found < max_events, boundary, reached);
    CALL claim_doubtful(after_id, reached);
    CALL look_at_events(after_id, reached, oldest);
    CALL mark_known(after_id, reached, due_done, id_done);
    CALL collect_batch(0, present, due_done, id_done);
    INSERT INTO batch (id, partition_id, due)
    SELECT k.id, k.partition_id, IF(k.due_at > present, k.due_at, NULL)
    FROM looked AS k
    WHERE NOT k.is_known
    ORDER BY k.id;
    CALL put_off(present);
    CALL append_chunks(present, sequenced, grown);
    DELETE p FROM claimed AS c STRAIGHT_JOIN pending AS p FORCE INDEX (PRIMARY) ON p.block = c.block;
    UPDATE eras SET repaired_id = reached WHERE era = number;
END;

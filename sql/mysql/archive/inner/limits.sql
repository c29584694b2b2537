-- name: epochs_over_limit
-- Fills the table over_limit of the session with the log epochs for which a topic has no room by its limit max_bytes:
-- in each partition the youngest of them; those before it go too. The youngest of the topic stay that fit together.
-- size: how many bytes are sealed and not dropped.
CREATE PROCEDURE epochs_over_limit(of_topic BIGINT)
BEGIN
    CREATE TEMPORARY TABLE IF NOT EXISTS over_limit (
        partition_id BIGINT NOT NULL PRIMARY KEY, log_epoch INT NOT NULL, size BIGINT NOT NULL
    ) ENGINE = MEMORY;
    DELETE FROM over_limit;
    INSERT INTO over_limit (partition_id, log_epoch, size)
    SELECT k.partition_id, MAX(k.log_epoch), MAX(k.size)
    FROM (
        SELECT e.partition_id, e.log_epoch, r.max_bytes, SUM(e.event_bytes) OVER () AS size,
               SUM(e.event_bytes) OVER (
                   ORDER BY e.sealed_at DESC, e.partition_id DESC, e.log_epoch DESC) AS kept
        FROM retention_policies AS r
        JOIN partitions AS p ON p.topic_id = r.topic_id
        JOIN log_epochs AS e ON e.partition_id = p.id
        WHERE r.topic_id = of_topic AND r.max_bytes IS NOT NULL AND e.dropped_at IS NULL
    ) AS k
    WHERE k.kept > k.max_bytes
    GROUP BY k.partition_id;
END;

-- name: limit_hold
-- What keeps the first log epoch of a topic for which there is no room, and which it is; all NULL when the next run of
-- clean removes all of them, as far as the copies are whole.
CREATE PROCEDURE limit_hold(of_topic BIGINT, OUT number INT, OUT log_epoch INT, OUT hold TEXT)
BEGIN
    DECLARE part_id, minimum_age, lowest BIGINT;
    DECLARE part_number, epoch, copies INT;
    DECLARE targets VARCHAR(4000);
    DECLARE words TEXT;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE epochs CURSOR FOR
        SELECT e.partition_id, p.number, e.log_epoch
        FROM over_limit AS o
        JOIN partitions AS p ON p.id = o.partition_id
        JOIN log_epochs AS e ON e.partition_id = o.partition_id
        WHERE e.log_epoch <= o.log_epoch AND e.dropped_at IS NULL
        ORDER BY e.sealed_at, e.partition_id, e.log_epoch;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    SET number = NULL, log_epoch = NULL, hold = NULL;
    CALL epochs_over_limit(of_topic);
    SELECT r.copies, r.minimum_age_seconds, r.targets INTO copies, minimum_age, targets
    FROM retention_policies AS r WHERE r.topic_id = of_topic;
    SET done = FALSE;
    OPEN epochs;
    epoch: LOOP
        FETCH epochs INTO part_id, part_number, epoch;
        IF done THEN
            LEAVE epoch;
        END IF;
        CALL retention_hold(part_id, epoch, copies, minimum_age, targets, NULL, NULL, TRUE, lowest, words);
        IF words IS NOT NULL THEN
            SET number = part_number, log_epoch = epoch, hold = words;
            LEAVE epoch;
        END IF;
    END LOOP;
    CLOSE epochs;
END;

-- name: clean_over_limit
-- Drops what the limit max_bytes of a topic has no room for, and writes what holds the rest into the table cleaned of
-- the session.
CREATE PROCEDURE clean_over_limit(source_id BIGINT, token CHAR(36), begun DATETIME(6), damaged INT)
BEGIN
    DECLARE part_id, size BIGINT;
    DECLARE part_number, over_epoch INT;
    DECLARE hold TEXT;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE parts CURSOR FOR
        SELECT p.id, p.number, o.log_epoch, o.size
        FROM over_limit AS o JOIN partitions AS p ON p.id = o.partition_id
        ORDER BY p.number;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    CALL epochs_over_limit(source_id);
    SET done = FALSE;
    OPEN parts;
    part: LOOP
        FETCH parts INTO part_id, part_number, over_epoch, size;
        IF done THEN
            LEAVE part;
        END IF;
        CALL clean_partition(part_id, token, begun, damaged, over_epoch, size, hold);
        UPDATE cleaned AS c SET c.reason = hold WHERE c.number = part_number;
    END LOOP;
    CLOSE parts;
END;

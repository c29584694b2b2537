-- name: reads_archive
-- Whether retention need not wait for a subscription on a partition: it can read the archive, and does, because it
-- stands below the low sequence. It does not once it has caught up, or reads what was rehydrated.
CREATE FUNCTION reads_archive(of_subscription BIGINT, of_partition BIGINT) RETURNS BOOLEAN
READS SQL DATA
BEGIN
    DECLARE low, stands_at BIGINT;
    IF NOT can_read_archive(of_subscription, of_partition) THEN
        RETURN FALSE;
    END IF;
    SELECT MAX(p.low_sequence) INTO low FROM partitions AS p WHERE p.id = of_partition;
    SET stands_at = current_position(of_subscription, of_partition);
    RETURN stands_at < low - 1 AND NOT is_rehydrated(of_partition, stands_at + 1);
END;

-- name: can_read_archive
-- Whether a subscription misses nothing of a partition that retention drops now: the policy demands copies, and who
-- holds the lease, or held it last, has read the archive (see note_archive_reads).
CREATE FUNCTION can_read_archive(of_subscription BIGINT, of_partition BIGINT) RETURNS BOOLEAN
READS SQL DATA
BEGIN
    DECLARE found INT;
    SELECT COUNT(*) INTO found
    FROM archive_readers AS a
    JOIN leases AS l ON l.subscription_id = a.subscription_id AND l.partition_id = a.partition_id
    JOIN partitions AS p ON p.id = a.partition_id
    JOIN retention_policies AS r ON r.topic_id = p.topic_id
    WHERE a.subscription_id = of_subscription AND a.partition_id = of_partition AND a.lease_epoch = l.lease_epoch
      AND r.copies > 0;
    RETURN found > 0;
END;

-- name: lowest_position
-- The subscription that is furthest behind on a partition, and where it stands; NULL when nobody reads the topic. Those
-- whose policy lets nothing wait that was sealed so many seconds ago (NULL: at any time) are left out, and those that
-- read the archive. Any other one that stands below the low sequence counts: it gets an error, and it must not miss
-- more than was recorded. With NULL nobody is left out. The sinks of a relay that retains for its quorum stand where it
-- stands.
CREATE PROCEDURE lowest_position(part_id BIGINT, age DOUBLE, OUT subscription VARCHAR(500), OUT position BIGINT)
READS SQL DATA
BEGIN
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    SET subscription = NULL, position = NULL;
    SELECT n.name, n.position INTO subscription, position
    FROM (
        SELECT s.id, s.name, retained_for(s.id, part_id) AS position
        FROM partitions AS p
        JOIN subscription_topics AS t ON t.topic_id = p.topic_id
        JOIN subscriptions AS s ON s.id = t.subscription_id
        WHERE p.id = part_id AND (age IS NULL OR s.max_lag_seconds = 0 OR age < s.max_lag_seconds)
    ) AS n
    WHERE age IS NULL OR NOT reads_archive(n.id, part_id)
    ORDER BY n.position, n.name
    LIMIT 1;
END;

-- name: retention_hold
-- What keeps a log epoch from being dropped, in words; NULL when nothing does. The one place that decides it. copies is
-- how many the policy wants (NULL without one) on its targets, a JSON array: copies elsewhere do not count. In a run
-- only those count that the run has read back, and that were recorded before it began; without one (token NULL) it says
-- what a run has to read. Subscriptions count unless their own policy lets nothing wait for so long (max_lag_seconds);
-- lowest is the position of the slowest of those that count. Where there is no room for the log epoch (is_over: see
-- epochs_over_limit) neither they nor its age count; holds and copies always do.
CREATE PROCEDURE retention_hold(
    part_id BIGINT, log_epoch INT, copies INT, minimum_age BIGINT, targets VARCHAR(4000), token CHAR(36),
    begun DATETIME(6), is_over BOOLEAN, OUT lowest BIGINT, OUT hold TEXT
)
READS SQL DATA
BEGIN
    DECLARE slowest, held_by VARCHAR(500);
    DECLARE first, last BIGINT;
    DECLARE age DOUBLE;
    DECLARE verified, whole INT;
    SELECT e.first_sequence, e.last_sequence, TIMESTAMPDIFF(MICROSECOND, e.sealed_at, UTC_TIMESTAMP(6)) / 1e6
    INTO first, last, age
    FROM log_epochs AS e WHERE e.partition_id = part_id AND e.log_epoch = log_epoch;
    CALL lowest_position(part_id, age, slowest, lowest);
    CALL find_hold_over(part_id, first, last, held_by);
    SELECT COUNT(*), COUNT(r.run) INTO verified, whole
    FROM epoch_copies AS c
    LEFT JOIN clean_readings AS r
        ON r.run = token AND r.partition_id = c.partition_id AND r.log_epoch = c.log_epoch AND r.target = c.target
           AND c.changed_at <= begun
    WHERE c.partition_id = part_id AND c.log_epoch = log_epoch AND c.state = 'verified'
      AND JSON_CONTAINS(targets, JSON_QUOTE(c.target));
    SET hold = CASE
        WHEN copies IS NULL THEN 'no retention policy'
        WHEN JSON_LENGTH(targets) = 0 AND copies > 0 THEN 'the retention policy names no archive target'
        WHEN held_by IS NOT NULL THEN CONCAT('legal hold "', LEFT(held_by, 200), '" covers log epoch ', log_epoch)
        WHEN lowest < last AND NOT is_over
            THEN CONCAT('subscription "', slowest, '" stands at ', lowest, ', log epoch ', log_epoch, ' ends at ', last,
                        said_below(lowest, part_id))
        WHEN verified < copies
            THEN CONCAT('log epoch ', log_epoch, ' has ', verified, ' of ', copies, ' verified copies')
        WHEN age < minimum_age AND NOT is_over
            THEN CONCAT('log epoch ', log_epoch, ' is younger than ', minimum_age, ' s')
        WHEN token IS NOT NULL AND whole < copies
            THEN CONCAT('of log epoch ', log_epoch, ' this run has read back ', whole,
                                                              ' of ', copies, ' copies')
    END;
END;

-- name: said_below
-- What is said of a reader that holds retention although it gets none of the events that it waits for.
CREATE FUNCTION said_below(position BIGINT, of_partition BIGINT) RETURNS VARCHAR(200)
READS SQL DATA
BEGIN
    DECLARE low BIGINT;
    SELECT MAX(p.low_sequence) INTO low FROM partitions AS p WHERE p.id = of_partition;
    RETURN IF(position < low - 1,
              '; it stands below the low sequence, and nobody who holds the partition reads the archive', '');
END;

-- name: require_clean_run
-- A run of clean of this topic that this login has begun and not ended, locked: when it began and how many damaged
-- copies it has found. Raises PS017.
CREATE PROCEDURE require_clean_run(token TEXT, source_id BIGINT, OUT begun DATETIME(6), OUT damaged INT)
BEGIN
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    SET begun = NULL;
    SELECT r.begun_at, r.damaged INTO begun, damaged
    FROM clean_runs AS r
    WHERE r.run = token AND r.topic_id = source_id AND r.begun_by = principal() AND r.ended_at IS NULL
      AND r.begun_at >= UTC_TIMESTAMP(6) - INTERVAL 6 HOUR
    FOR UPDATE;
    IF begun IS NULL THEN
        CALL refuse(
            'PS017',
            'this login has no run of clean open on the topic under this token: use penstock clean');
    END IF;
END;

-- name: find_due
-- Fills the table due_log_epochs of the session: what log_epochs_due returns.
CREATE PROCEDURE find_due(source_id BIGINT, max_epochs INT)
BEGIN
    DECLARE part_id, lowest, minimum_age BIGINT;
    DECLARE epoch, copies, found_epochs, is_held, over_epoch INT DEFAULT 0;
    DECLARE targets VARCHAR(4000);
    DECLARE hold TEXT;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE epochs CURSOR FOR
        SELECT e.partition_id, e.log_epoch
        FROM (
            SELECT l.partition_id, l.log_epoch, p.number,
                   ROW_NUMBER() OVER (PARTITION BY l.partition_id ORDER BY l.log_epoch) AS place
            FROM partitions AS p JOIN log_epochs AS l ON l.partition_id = p.id
            WHERE p.topic_id = source_id AND l.dropped_at IS NULL
        ) AS e
        WHERE e.place <= max_epochs
        ORDER BY e.place, e.number;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    CREATE TEMPORARY TABLE IF NOT EXISTS due_log_epochs (
        partition_id BIGINT NOT NULL, log_epoch INT NOT NULL, PRIMARY KEY (partition_id, log_epoch)
    ) ENGINE = MEMORY;
    CREATE TEMPORARY TABLE IF NOT EXISTS held_partitions (partition_id BIGINT NOT NULL PRIMARY KEY) ENGINE = MEMORY;
    DELETE FROM due_log_epochs;
    DELETE FROM held_partitions;
    CALL epochs_over_limit(source_id);
    SET copies = NULL;
    SELECT r.copies, r.minimum_age_seconds, r.targets INTO copies, minimum_age, targets
    FROM retention_policies AS r WHERE r.topic_id = source_id;
    SET done = FALSE;
    OPEN epochs;
    epoch: LOOP
        FETCH epochs INTO part_id, epoch;
        IF done OR found_epochs >= max_epochs THEN
            LEAVE epoch;
        END IF;
        SELECT COUNT(h.partition_id) INTO is_held FROM held_partitions AS h WHERE h.partition_id = part_id;
        IF is_held = 0 THEN
            SELECT MAX(o.log_epoch) INTO over_epoch FROM over_limit AS o WHERE o.partition_id = part_id;
            CALL retention_hold(part_id, epoch, copies, minimum_age, targets, NULL, NULL,
                                COALESCE(epoch <= over_epoch, FALSE), lowest, hold);
            IF hold IS NULL THEN
                INSERT INTO due_log_epochs (partition_id, log_epoch) VALUES (part_id, epoch);
                SET found_epochs = found_epochs + 1;
            ELSE
                INSERT INTO held_partitions (partition_id) VALUES (part_id);
            END IF;
        END IF;
    END LOOP;
    CLOSE epochs;
END;

-- name: record_skips
-- Records which subscriptions have not read a log epoch that is dropped now, and cannot read the archive: their
-- policies let it not wait for them, or the topic had no room for it: size_then is how many bytes it held, NULL when
-- that was not why. It does not ask the policies again: one may have been changed since the decision.
CREATE PROCEDURE record_skips(
    part_id BIGINT, log_epoch INT, first BIGINT, last BIGINT, policy_version INT, token CHAR(36), max_bytes BIGINT,
    size_then BIGINT
)
BEGIN
    REPLACE INTO skips (
        subscription_id, partition_id, log_epoch, first_sequence, last_sequence, max_lag_seconds, policy_version, run,
        skipped_at, reason, limit_bytes, size_bytes)
    SELECT n.id, part_id, log_epoch, GREATEST(first, n.position + 1), last, n.max_lag_seconds, policy_version, token,
           UTC_TIMESTAMP(6), IF(size_then IS NULL, 'max_lag', 'max_bytes'), IF(size_then IS NULL, NULL, max_bytes),
           size_then
    FROM (
        SELECT s.id, s.max_lag_seconds, current_position(s.id, part_id) AS position
        FROM partitions AS p
        JOIN subscription_topics AS t ON t.topic_id = p.topic_id
        JOIN subscriptions AS s ON s.id = t.subscription_id
        WHERE p.id = part_id
        LIMIT 1000000  -- Keeps it from being merged into the query.
    ) AS n
    WHERE n.position < last AND NOT can_read_archive(n.id, part_id) AND is_retained_for_quorum(n.id, part_id) IS NULL;
END;

-- name: record_passed
-- Records what a queue passes over because it was dropped before it was dealt: what follows reached, up to the low
-- sequence. What retention has recorded already stays as it is.
CREATE PROCEDURE record_passed(owner_id BIGINT, part_id BIGINT, reached BIGINT, low BIGINT)
BEGIN
    INSERT INTO skips (
        subscription_id, partition_id, log_epoch, first_sequence, last_sequence, max_lag_seconds, policy_version, run,
        skipped_at, reason)
    SELECT s.id, e.partition_id, e.log_epoch, GREATEST(e.first_sequence, reached + 1), e.last_sequence,
           s.max_lag_seconds, 0, '00000000-0000-0000-0000-000000000000', UTC_TIMESTAMP(6), 'passed'
    FROM subscriptions AS s
    JOIN log_epochs AS e ON e.partition_id = part_id AND e.last_sequence > reached AND e.first_sequence < low
    WHERE s.id = owner_id
    ON DUPLICATE KEY UPDATE max_lag_seconds = skips.max_lag_seconds;
END;

-- name: clean_partition
-- Drops the oldest log epochs of a partition logically, as long as nothing holds them: the low sequence moves up, each
-- drop is recorded. For those up to over_epoch (NULL: for none) the topic, which holds size bytes, has no room. Returns
-- what holds the first epoch that stays. token, begun and damaged are the run's.
CREATE PROCEDURE clean_partition(
    part_id BIGINT, token CHAR(36), begun DATETIME(6), damaged INT, over_epoch INT, size BIGINT, OUT hold TEXT
)
BEGIN
    DECLARE locked_id, first, last, lowest, minimum_age, max_bytes, size_then BIGINT;
    DECLARE epoch, copies, policy_version INT;
    DECLARE targets VARCHAR(4000);
    DECLARE slowest VARCHAR(500);
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE epochs CURSOR FOR
        SELECT e.log_epoch, e.first_sequence, e.last_sequence
        FROM log_epochs AS e
        WHERE e.partition_id = part_id AND e.dropped_at IS NULL
        ORDER BY e.log_epoch
        LIMIT 1000;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    SET locked_id = (SELECT p.id FROM partitions AS p WHERE p.id = part_id FOR UPDATE);
    SELECT r.copies, r.minimum_age_seconds, r.version, r.targets, r.max_bytes
    INTO copies, minimum_age, policy_version, targets, max_bytes
    FROM retention_policies AS r JOIN partitions AS p ON p.topic_id = r.topic_id
    WHERE p.id = part_id;
    SET done = FALSE;
    OPEN epochs;
    epoch: LOOP
        FETCH epochs INTO epoch, first, last;
        IF done THEN
            SET hold = 'nothing sealed is left';
            LEAVE epoch;
        END IF;
        CALL retention_hold(part_id, epoch, copies, minimum_age, targets, token, begun, FALSE, lowest, hold);
        SET size_then = IF(hold IS NOT NULL AND epoch <= over_epoch, size, NULL);
        IF size_then IS NOT NULL THEN
            CALL retention_hold(part_id, epoch, copies, minimum_age, targets, token, begun, TRUE, lowest, hold);
        END IF;
        IF hold IS NULL AND damaged > 0 THEN
            SET hold = CONCAT('this run has found ', damaged, ' damaged copies, which have to be made again first');
        END IF;
        IF hold IS NOT NULL THEN
            LEAVE epoch;
        END IF;
        CALL lowest_position(part_id, NULL, slowest, lowest);
        CALL record_skips(part_id, epoch, first, last, policy_version, token, max_bytes, size_then);
        INSERT INTO retention_drops (
            partition_id, log_epoch, first_sequence, last_sequence, lowest_position, copies, policy_version, dropped_by,
            run, limit_bytes, size_bytes)
        VALUES (part_id, epoch, first, last, lowest, copies, policy_version, principal(), token,
                IF(size_then IS NULL, NULL, max_bytes), size_then);
        UPDATE log_epochs AS e
        SET e.dropped_at = UTC_TIMESTAMP(6)
        WHERE e.partition_id = part_id AND e.log_epoch = epoch;
        UPDATE partitions AS p SET p.low_sequence = last + 1 WHERE p.id = part_id;
    END LOOP;
    CLOSE epochs;
END;

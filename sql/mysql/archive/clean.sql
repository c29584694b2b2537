-- name: begin_clean
-- Opens a run of clean and returns its token: what is read back under it may be dropped under it, once, by the same
-- login, within six hours. Forgets runs that began more than a week ago; what they dropped stays recorded. Raises
-- PS002.
CREATE PROCEDURE begin_clean(topic LONGTEXT)
BEGIN
    DECLARE source_id, locked BIGINT;
    DECLARE token CHAR(36) DEFAULT UUID();
    DECLARE old_run CHAR(36);
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE old_runs CURSOR FOR
        SELECT r.run FROM clean_runs AS r WHERE r.begun_at < UTC_TIMESTAMP(6) - INTERVAL 7 DAY ORDER BY r.begun_at;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    {{on error: CALL undo_call()}}
    CALL begin_call('begin_clean()');
    CALL require_topic_for(topic, 'operate', source_id);
    -- Waits for whoever records copies: see hold_off_clean.
    SELECT COUNT(*) INTO locked FROM retention_policies AS r WHERE r.topic_id = source_id FOR UPDATE;
    SET done = FALSE;
    OPEN old_runs;
    old: LOOP
        FETCH old_runs INTO old_run;
        IF done THEN
            LEAVE old;
        END IF;
        DELETE r FROM clean_runs AS r WHERE r.run = old_run;
        DELETE r FROM clean_readings AS r WHERE r.run = old_run;
    END LOOP;
    CLOSE old_runs;
    INSERT INTO clean_runs (run, topic_id, begun_by, begun_at) VALUES (token, source_id, principal(),
                                                                       UTC_TIMESTAMP(6));
    SELECT token AS run;
    CALL end_call();
END;

-- name: log_epochs_due
-- The log epochs of a topic that a run of clean has to read back, oldest first and by turns over the partitions, at
-- most max_epochs (1 to 1,000) of them; targets, a JSON array, are those of the policy that hold a verified copy. Some
-- that the limit max_bytes lets go may stay after all: what goes by its age makes room first. Raises PS002, PS006.
CREATE PROCEDURE log_epochs_due(topic LONGTEXT, max_epochs INT)
BEGIN
    DECLARE source_id BIGINT;
    DECLARE limit_before BIGINT UNSIGNED DEFAULT @@SESSION.group_concat_max_len;
    {{on error: SET SESSION group_concat_max_len = limit_before}}
    CALL refuse_serializable('log_epochs_due()');
    CALL require_topic_for(topic, 'operate', source_id);
    IF NOT COALESCE(max_epochs BETWEEN 1 AND 1000, FALSE) THEN
        CALL refuse('PS006',
                    CONCAT('max_epochs cannot be ', COALESCE(max_epochs, 'NULL'), ': use 1 to 1,000'));
    END IF;
    CALL find_due(source_id, max_epochs);
    SET SESSION group_concat_max_len = 4294967295;
    SELECT p.number AS `partition`, e.log_epoch, e.first_sequence, e.last_sequence, e.event_count, e.checksum,
           e.sealed_at, e.dropped_at, COALESCE((
               SELECT JSON_ARRAYAGG(c.target) FROM epoch_copies AS c
               WHERE c.partition_id = e.partition_id AND c.log_epoch = e.log_epoch AND c.state = 'verified'
                 AND JSON_CONTAINS(r.targets, JSON_QUOTE(c.target))), '[]') AS targets,
           t.known_as
    FROM due_log_epochs AS d
    JOIN log_epochs AS e ON e.partition_id = d.partition_id AND e.log_epoch = d.log_epoch
    JOIN partitions AS p ON p.id = e.partition_id
    JOIN topics AS t ON t.id = p.topic_id
    JOIN retention_policies AS r ON r.topic_id = t.id
    ORDER BY e.log_epoch, p.number;
    SET SESSION group_concat_max_len = limit_before;
END;

-- name: record_reading
-- Records under the token of a run what was read back of a copy: true when it is what was sealed. A copy that is not,
-- or that has damage, is marked as missing, backfill makes it again, and the run drops nothing at all. Raises PS002,
-- PS005, PS017, PS019.
CREATE PROCEDURE record_reading(
    topic LONGTEXT, token TEXT, `partition` INT, log_epoch INT, target VARCHAR(255), event_count BIGINT, checksum TEXT,
    damage TEXT
)
BEGIN
    DECLARE source_id, topic_id, sealed_count BIGINT;
    DECLARE sealed_checksum VARCHAR(200);
    DECLARE begun DATETIME(6);
    DECLARE damaged INT;
    DECLARE is_whole BOOLEAN;
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    {{on error: CALL undo_call()}}
    CALL begin_call('record_reading()');
    CALL require_partition_for(topic, `partition`, 'operate', source_id);
    SELECT p.topic_id INTO topic_id FROM partitions AS p WHERE p.id = source_id;
    CALL require_clean_run(token, topic_id, begun, damaged);
    SELECT e.event_count, e.checksum INTO sealed_count, sealed_checksum
    FROM log_epochs AS e WHERE e.partition_id = source_id AND e.log_epoch = log_epoch;
    IF sealed_count IS NULL THEN
        CALL refuse('PS019',
                    CONCAT('partition ', `partition`, ' has no sealed log epoch ', COALESCE(log_epoch, 'NULL')));
    END IF;
    SET is_whole = COALESCE(damage, '') = '' AND sealed_count <=> event_count AND sealed_checksum <=> checksum;
    IF is_whole THEN
        REPLACE INTO clean_readings (run, partition_id, log_epoch, target, event_count, checksum, read_at)
        VALUES (token, source_id, log_epoch, target, event_count, checksum, UTC_TIMESTAMP(6));
    ELSE
        UPDATE clean_runs AS r SET r.damaged = r.damaged + 1 WHERE r.run = token;
        UPDATE epoch_copies AS c
        SET c.state = 'missing', c.changed_at = UTC_TIMESTAMP(6), c.detail = LEFT(COALESCE(NULLIF(damage, ''), CONCAT(
            COALESCE(event_count, 'NULL'), ' events and checksum ', COALESCE(checksum, 'NULL'), ' instead of ',
            sealed_count, ' and ', sealed_checksum)), 2000)
        WHERE c.partition_id = source_id AND c.log_epoch = log_epoch AND c.target = target;
    END IF;
    SELECT is_whole AS is_whole;
    CALL end_call();
END;

-- name: clean
-- Logical retention of a topic, by its policy, of what was read back under the token of this run (begin_clean), which
-- ends here; a row for each partition with its low sequence before and after and what holds the rest. What goes by its
-- age and because everybody has read it goes first; only then what the limit max_bytes still has no room for. Subscribe
-- locks the same topic row, so no new subscription can begin below a drop. Raises PS002, PS017, PS018.
CREATE PROCEDURE clean(topic LONGTEXT, token TEXT)
BEGIN
    DECLARE source_id, part_id, low BIGINT;
    DECLARE part_number, partitions, damaged INT;
    DECLARE begun DATETIME(6);
    DECLARE hold TEXT;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE parts CURSOR FOR
        SELECT p.id, p.number, p.low_sequence FROM partitions AS p WHERE p.topic_id = source_id ORDER BY p.number;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    {{on error: CALL undo_call()}}
    CALL begin_call('clean()');
    CALL require_read_committed('clean()');
    CALL lock_topic(topic, 'operate', source_id, partitions);
    CALL require_clean_run(token, source_id, begun, damaged);
    UPDATE clean_runs AS r SET r.ended_at = UTC_TIMESTAMP(6) WHERE r.run = token;
    CREATE TEMPORARY TABLE IF NOT EXISTS cleaned (
        number INT NOT NULL PRIMARY KEY, old_low_sequence BIGINT NOT NULL, reason VARCHAR(1000) NOT NULL
    ) ENGINE = MEMORY;
    DELETE FROM cleaned;
    SET done = FALSE;
    OPEN parts;
    part: LOOP
        FETCH parts INTO part_id, part_number, low;
        IF done THEN
            LEAVE part;
        END IF;
        CALL clean_partition(part_id, token, begun, damaged, NULL, NULL, hold);
        INSERT INTO cleaned (number, old_low_sequence, reason) VALUES (part_number, low, hold);
    END LOOP;
    CLOSE parts;
    CALL clean_over_limit(source_id, token, begun, damaged);
    SELECT c.number AS `partition`, c.old_low_sequence, p.low_sequence, c.reason
    FROM cleaned AS c JOIN partitions AS p ON p.topic_id = source_id AND p.number = c.number
    ORDER BY c.number;
    CALL end_call();
END;

-- name: list_skips
-- What retention removed before a subscription had read it, and what a queue passed over: of one subscription, or of
-- all (NULL) that the login may see. unread says whether the subscription still stands before the end of it. reason:
-- max_lag (its policy max_lag_seconds), max_bytes (the topic held size_bytes, and its limit was limit_bytes) or passed
-- (it was gone when the queue came to it).
CREATE PROCEDURE list_skips(subscription LONGTEXT)
READS SQL DATA
BEGIN
    CALL refuse_serializable('list_skips()');
    SELECT s.name AS subscription, t.address AS topic, p.number AS `partition`, k.log_epoch, k.first_sequence,
           k.last_sequence, k.max_lag_seconds, k.skipped_at,
           COALESCE(current_position(k.subscription_id, k.partition_id) < k.last_sequence, FALSE) AS unread,
           k.reason, k.limit_bytes, k.size_bytes
    FROM skips AS k
    JOIN subscriptions AS s ON s.id = k.subscription_id
    JOIN partitions AS p ON p.id = k.partition_id
    JOIN topics AS t ON t.id = p.topic_id
    WHERE (subscription IS NULL OR s.name_hash = UNHEX(SHA2(subscription, 256))) AND NOT reads_hidden(s.id)
    ORDER BY CAST(s.name AS BINARY), CAST(t.address AS BINARY), p.number, k.log_epoch;
END;

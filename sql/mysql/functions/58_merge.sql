-- name: mergeable_partitions
-- The partitions of topics whose part of the index of the log may become smaller: they have chunks, besides the
-- newest, that no reader can read, or small chunks that follow each other.
CREATE PROCEDURE mergeable_partitions()
READS SQL DATA
BEGIN
    CALL refuse_serializable('mergeable_partitions()');
    SELECT c.partition_id
    FROM partitions AS p STRAIGHT_JOIN chunks AS c ON c.partition_id = p.id
    GROUP BY c.partition_id
    HAVING SUM(c.event_count < 500) >= 2
        OR COUNT(*) >= 2 AND MIN(c.first_sequence + c.event_count) <= MAX(p.low_sequence);
END;

-- name: find_run
-- The first run of small chunks of a partition, at most 1,000 of them, that together make a full chunk, or at least
-- twice the largest of them. So an event is moved only a few times in its life. NULL when there is no such run.
CREATE PROCEDURE find_run(part_id BIGINT, low BIGINT, OUT run_first BIGINT, OUT run_last BIGINT)
READS SQL DATA
BEGIN
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    SET run_first = NULL, run_last = NULL;
    SELECT MIN(r.first_sequence), MAX(r.first_sequence) INTO run_first, run_last
    FROM (
        SELECT c.first_sequence, c.event_count, SUM(c.event_count >= 500) OVER (ORDER BY c.first_sequence) AS island
        FROM chunks AS c
        WHERE c.partition_id = part_id AND c.first_sequence + c.event_count > low
    ) AS r
    WHERE r.event_count < 500
    GROUP BY r.island
    HAVING COUNT(*) >= 2 AND SUM(r.event_count) >= LEAST(1000, 2 * MAX(r.event_count))
    ORDER BY MIN(r.first_sequence)
    LIMIT 1;
    SELECT MAX(s.first_sequence) INTO run_last
    FROM (
        SELECT c.first_sequence
        FROM chunks AS c
        WHERE c.partition_id = part_id AND c.first_sequence BETWEEN run_first AND run_last
        ORDER BY c.first_sequence
        LIMIT 1000
    ) AS s;
END;

-- name: fill_merged
-- Writes the events of a run into new chunks, in the session's table merged. An event keeps the time of its
-- sequencing.
CREATE PROCEDURE fill_merged(part_id BIGINT, run_first BIGINT, run_last BIGINT)
BEGIN
    DECLARE limit_before BIGINT UNSIGNED DEFAULT @@SESSION.group_concat_max_len;
    {{on error: SET SESSION group_concat_max_len = limit_before}}
    SET SESSION group_concat_max_len = 4194304;
    CREATE TEMPORARY TABLE IF NOT EXISTS merged (
        first_sequence BIGINT NOT NULL PRIMARY KEY, event_count INT NOT NULL, first_id BIGINT NOT NULL,
        last_id BIGINT NOT NULL, event_ids LONGBLOB NOT NULL, sequenced_at DATETIME(6) NOT NULL, sequenced_ats LONGBLOB
    ) ENGINE = InnoDB;
    DELETE FROM merged;
    INSERT INTO merged (first_sequence, event_count, first_id, last_id, event_ids, sequenced_at, sequenced_ats)
    SELECT MIN(e.sequence), COUNT(*), MIN(e.id), MAX(e.id),
           GROUP_CONCAT(UNHEX(LPAD(HEX(e.id), 16, '0')) ORDER BY e.sequence SEPARATOR ''),
           TIMESTAMP'1970-01-01 00:00:00' + INTERVAL MAX(e.at) MICROSECOND,
           IF(MIN(e.at) = MAX(e.at), NULL,
              GROUP_CONCAT(UNHEX(LPAD(HEX(e.at), 16, '0')) ORDER BY e.sequence SEPARATOR ''))
    FROM (
        SELECT STRAIGHT_JOIN c.first_sequence + l.n AS sequence,
               CAST(CONV(HEX(SUBSTR(c.event_ids, 8 * l.n + 1, 8)), 16, 10) AS SIGNED) AS id,
               COALESCE(CAST(CONV(HEX(SUBSTR(c.sequenced_ats, 8 * l.n + 1, 8)), 16, 10) AS SIGNED),
                        TIMESTAMPDIFF(MICROSECOND, '1970-01-01', c.sequenced_at)) AS at
        FROM chunks AS c
        JOIN places AS l ON l.size = 1 << CAST(CEIL(LOG2(c.event_count)) AS UNSIGNED) AND l.n < c.event_count
        WHERE c.partition_id = part_id AND c.first_sequence BETWEEN run_first AND run_last
    ) AS e
    GROUP BY (e.sequence - run_first) DIV 1000;
    SET SESSION group_concat_max_len = limit_before;
END;

-- name: merge_chunks
-- Makes the index of one partition smaller. It removes chunks that no reader can read, at most 10,000 and never the
-- newest, which carries the high watermark. It merges one run of small chunks into chunks of up to 1,000 events.
-- Readers see the log either before or after this, because they find a chunk and read it in one statement. Returns by
-- how many chunks the index shrank. Seal and clean lock the same row of the partition. Raises PS018.
CREATE PROCEDURE merge_chunks(partition_id BIGINT)
BEGIN
    DECLARE low, newest, run_first, run_last, events_before, events_after BIGINT;
    DECLARE gone INT DEFAULT 0;
    {{on error: CALL undo_call()}}
    CALL begin_call('merge_chunks()');
    CALL require_read_committed('merge_chunks()');
    SELECT p.low_sequence INTO low FROM partitions AS p WHERE p.id = partition_id FOR UPDATE;
    SELECT MAX(c.first_sequence) INTO newest FROM chunks AS c WHERE c.partition_id = partition_id;
    DELETE FROM chunks
    WHERE chunks.partition_id = partition_id AND chunks.first_sequence < LEAST(low, newest)
      AND chunks.first_sequence + chunks.event_count <= low
    ORDER BY chunks.first_sequence
    LIMIT 10000;
    SET gone = ROW_COUNT();
    CALL find_run(partition_id, low, run_first, run_last);
    IF run_last > run_first THEN
        CALL fill_merged(partition_id, run_first, run_last);
        SELECT SUM(c.event_count) INTO events_before
        FROM chunks AS c WHERE c.partition_id = partition_id AND c.first_sequence BETWEEN run_first AND run_last;
        DELETE FROM chunks
        WHERE chunks.partition_id = partition_id AND chunks.first_sequence BETWEEN run_first AND run_last;
        SET gone = gone + ROW_COUNT();
        INSERT INTO chunks (
            partition_id, first_sequence, event_count, first_id, last_id, event_ids, sequenced_at, sequenced_ats)
        SELECT partition_id, m.first_sequence, m.event_count, m.first_id, m.last_id, m.event_ids, m.sequenced_at,
               m.sequenced_ats
        FROM merged AS m;
        SET gone = gone - ROW_COUNT();
        SELECT SUM(m.event_count) INTO events_after FROM merged AS m;
        IF NOT events_before <=> events_after THEN
            CALL refuse('PS019', 'the index of the log was merged only in part');
        END IF;
    END IF;
    SELECT gone AS gone;
    CALL end_call();
END;

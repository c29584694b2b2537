-- By design: PostgreSQL puts a new table in the place of slices of the index, MySQL writes chunks again.

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

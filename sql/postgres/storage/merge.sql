-- By design: PostgreSQL puts a new table in the place of slices of the index, MySQL writes chunks again.

-- name: merge_chunks
-- Fills the table chunks_merged with what is needed of some full slices of the index, in chunks of up to 1,000
-- events. Returns the range of ids, or no row when there is nothing to merge. It takes no lock that other sessions
-- need. If an earlier merge still waits to be swapped in, it returns that one again. While a repair after a restore is
-- under way it does nothing, because an event that is no longer in the index would get a second sequence. Raises PS018.
CREATE OR REPLACE FUNCTION merge_chunks() RETURNS TABLE (first_id bigint, last_id bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET jit = off AS $$
DECLARE
    range record;
    part record;
BEGIN
    PERFORM require_read_committed('merge_chunks()');
    LOCK TABLE merges IN SHARE ROW EXCLUSIVE MODE;
    RETURN QUERY SELECT m.first_id, m.last_id FROM merges AS m;
    IF FOUND THEN
        RETURN;
    END IF;
    IF repair_is_under_way() THEN
        RETURN;
    END IF;
    SELECT * INTO range FROM next_merge();
    IF range.first_id IS NULL THEN
        RETURN;
    END IF;
    CREATE TABLE chunks_merged (LIKE chunks INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING STORAGE);
    FOR part IN
        SELECT p.id, p.low_sequence, high_watermark(p.id) AS watermark
        FROM (SELECT DISTINCT c.partition_id FROM chunks AS c
              WHERE c.chunk_id BETWEEN range.first_id AND range.last_id) AS found
        JOIN partitions AS p ON p.id = found.partition_id
        ORDER BY p.id
    LOOP
        INSERT INTO chunks_merged (
            partition_id, first_sequence, event_count, first_id, last_id, event_ids, sequenced_at, sequenced_ats,
            chunk_id)
        SELECT part.id, m.first_sequence, cardinality(m.event_ids), m.first_id, m.last_id, m.event_ids, m.sequenced_at,
               m.sequenced_ats, range.first_id
        FROM merged_chunks(part.id, range.first_id, range.last_id, LEAST(part.low_sequence, part.watermark)) AS m;
    END LOOP;
    CREATE UNIQUE INDEX chunks_merged_sequence ON chunks_merged (partition_id, first_sequence);
    -- States the constraint that ATTACH would otherwise check by reading the table, under a lock that all
    -- others wait for.
    EXECUTE format(
        'ALTER TABLE chunks_merged ADD CONSTRAINT chunks_merged_range CHECK (chunk_id >= %s AND chunk_id < %s)',
        range.first_id, range.last_id + 1);
    INSERT INTO merges (first_id, last_id, built_tx) VALUES (range.first_id, range.last_id, pg_current_xact_id());
    RETURN QUERY SELECT range.first_id, range.last_id;
END
$$;

-- name: swap_merged_slice
-- Puts the table chunks_merged in the place of the slices from which it was filled, in one short transaction: readers
-- see either the old slices or the new table. It waits at most 100 ms for a lock; after that the caller gets the
-- database's error, and tries again later. Returns false while a session has a snapshot from before the table was
-- filled, because that session would see neither; and when a chunk came into the slices since: then the table is thrown
-- away, and the next call of merge_chunks fills it anew. Raises PS018.
CREATE OR REPLACE FUNCTION swap_merged_slice() RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET lock_timeout = '100ms' AS $$
DECLARE
    merge merges%ROWTYPE;
    old slices%ROWTYPE;
    new_name text;
BEGIN
    PERFORM commit_durably();
    PERFORM require_read_committed('swap_merged_slice()');
    SELECT * INTO merge FROM merges AS m FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    ELSIF merge.built_tx >= pg_snapshot_xmax(pg_current_snapshot()) THEN
        -- After a restore, this is a number of another cluster.
        UPDATE merges SET built_tx = pg_current_xact_id();
        RETURN false;
    ELSIF merge.built_tx >= oldest_snapshot() THEN
        RETURN false;
    END IF;
    -- In the order in which add_slice locks them. From here on no pass writes a chunk.
    LOCK TABLE slices IN ROW EXCLUSIVE MODE;
    LOCK TABLE ONLY chunks IN ACCESS EXCLUSIVE MODE;
    IF NOT merge_is_whole(merge) THEN
        DROP TABLE chunks_merged;
        DELETE FROM merges;
        RETURN false;
    END IF;
    FOR old IN
        DELETE FROM slices AS s
        WHERE s.parent = 'chunks' AND s.first_id BETWEEN merge.first_id AND merge.last_id
        RETURNING *
    LOOP
        EXECUTE format('ALTER TABLE chunks DETACH PARTITION %I', old.slice);
        EXECUTE format('DROP TABLE %I', old.slice);
    END LOOP;
    IF EXISTS (SELECT FROM chunks_merged) THEN
        new_name := format('chunks_%s', merge.first_id);
        EXECUTE format('ALTER TABLE chunks ATTACH PARTITION chunks_merged FOR VALUES FROM (%s) TO (%s)',
                       merge.first_id, merge.last_id + 1);
        EXECUTE format('ALTER INDEX chunks_merged_sequence RENAME TO %I', new_name || '_sequence');
        ALTER TABLE chunks_merged DROP CONSTRAINT chunks_merged_range;
        EXECUTE format('ALTER TABLE chunks_merged RENAME TO %I', new_name);
        INSERT INTO slices (parent, slice, first_id, last_id)
        VALUES ('chunks', new_name, merge.first_id, merge.last_id);
    ELSE
        DROP TABLE chunks_merged;
    END IF;
    DELETE FROM merges;
    RETURN true;
END
$$;

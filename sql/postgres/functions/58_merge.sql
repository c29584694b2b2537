-- name: chunk_slices
-- The full slices of the index of the log, oldest first: how many rows each has, and about how many it would have
-- after a merge. A row whose chunk is below the low sequence is not needed, except the newest of a partition, which
-- carries the high watermark. A slice is full when a chunk was committed in a later slice, because sequencers work
-- one after another.
CREATE OR REPLACE FUNCTION chunk_slices()
RETURNS TABLE (first_id bigint, last_id bigint, chunks bigint, needed bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT SET jit = off AS $$
    SELECT s.first_id, s.last_id, COALESCE(sum(part.chunks), 0)::bigint, COALESCE(sum(
        CASE WHEN part.events > 0 THEN (part.events + 999) / 1000 + part.islands - 1
             ELSE (part.last_sequence = high_watermark(part.partition_id))::integer END), 0)::bigint
    FROM slices AS s
    LEFT JOIN LATERAL (
        SELECT c.partition_id, count(*) AS chunks, max(c.first_sequence + c.event_count - 1) AS last_sequence,
               sum(c.event_count) FILTER (WHERE c.is_readable) AS events,
               count(*) FILTER (WHERE c.is_readable AND c.first_sequence IS DISTINCT FROM c.expected) AS islands
        FROM (
            SELECT k.partition_id, k.first_sequence, k.event_count,
                   k.first_sequence + k.event_count > p.low_sequence AS is_readable,
                   lag(k.first_sequence + k.event_count) OVER (
                       PARTITION BY k.partition_id, k.first_sequence + k.event_count > p.low_sequence
                       ORDER BY k.first_sequence) AS expected
            FROM chunks AS k JOIN partitions AS p ON p.id = k.partition_id
            WHERE k.chunk_id BETWEEN s.first_id AND s.last_id
        ) AS c
        GROUP BY c.partition_id
    ) AS part ON true
    WHERE s.parent = 'chunks' AND EXISTS (SELECT FROM chunks AS next WHERE next.chunk_id > s.last_id)
    GROUP BY s.first_id, s.last_id
    ORDER BY s.first_id
$$;

-- name: next_merge
-- The slices to merge next: the first slice that would shrink to half, or that has a smaller one before it,
-- together with those before it that are smaller. So the number of slices grows with the logarithm of what
-- they hold. NULL when there is nothing to do.
CREATE OR REPLACE FUNCTION next_merge(OUT first_id bigint, OUT last_id bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    present record;
    firsts bigint[] := '{}';
    sizes bigint[] := '{}';
    total bigint;
BEGIN
    FOR present IN SELECT * FROM chunk_slices() LOOP
        total := present.needed;
        IF present.chunks >= 2 * total OR total >= sizes[cardinality(sizes)] THEN
            first_id := present.first_id;
            last_id := present.last_id;
            FOR place IN REVERSE cardinality(sizes) .. 1 LOOP
                EXIT WHEN sizes[place] > total;
                first_id := firsts[place];
                total := total + sizes[place];
            END LOOP;
            RETURN;
        END IF;
        firsts := firsts || present.first_id;
        sizes := sizes || present.needed;
    END LOOP;
END
$$;

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

-- name: merged_chunks
-- New chunks for one partition, made of those of its chunks in a range of chunk ids that reach to a sequence or
-- beyond it. An event keeps the time of its sequencing.
CREATE OR REPLACE FUNCTION merged_chunks(
    partition_id bigint, lowest_chunk bigint, highest_chunk bigint, from_sequence bigint
) RETURNS TABLE (
    first_sequence bigint, first_id bigint, last_id bigint, event_ids bigint[], sequenced_at timestamptz,
    sequenced_ats timestamptz[]
)
LANGUAGE sql STABLE AS $$
    SELECT min(p.sequence), min(p.id), max(p.id), array_agg(p.id ORDER BY p.sequence), max(p.at),
           CASE WHEN min(p.at) < max(p.at) THEN array_agg(p.at ORDER BY p.sequence) END
    FROM (
        SELECT e.sequence, e.id, e.at, e.island,
               row_number() OVER (PARTITION BY e.island ORDER BY e.sequence) - 1 AS place
        FROM (
            SELECT c.first_sequence + i.n - 1 AS sequence, i.id, COALESCE(i.at, c.sequenced_at) AS at,
                   c.first_sequence + i.n - row_number() OVER (ORDER BY c.first_sequence + i.n) AS island
            FROM chunks AS c
            CROSS JOIN LATERAL unnest(c.event_ids, c.sequenced_ats) WITH ORDINALITY AS i (id, at, n)
            WHERE c.partition_id = merged_chunks.partition_id
              AND c.chunk_id BETWEEN merged_chunks.lowest_chunk AND merged_chunks.highest_chunk
              AND c.first_sequence + c.event_count > merged_chunks.from_sequence
        ) AS e
    ) AS p
    GROUP BY p.island, p.place / 1000
$$;

-- name: merge_is_whole
-- Whether the table chunks_merged still has all that is needed of some slices of the index. If the counter of the index
-- was set back after it was filled, a pass may have written a chunk into one of them: always the newest chunk of its
-- partition.
CREATE OR REPLACE FUNCTION merge_is_whole(merge merges) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
BEGIN
    RETURN NOT EXISTS (
        SELECT FROM partitions AS p
        CROSS JOIN LATERAL (
            SELECT c.first_sequence + c.event_count AS next_sequence
            FROM chunks AS c
            WHERE c.partition_id = p.id
              AND c.chunk_id BETWEEN (merge_is_whole.merge).first_id AND (merge_is_whole.merge).last_id
            ORDER BY c.first_sequence DESC
            LIMIT 1) AS newest
        WHERE newest.next_sequence > LEAST(p.low_sequence, high_watermark(p.id))
          AND newest.next_sequence > COALESCE((
              SELECT m.first_sequence + m.event_count
              FROM chunks_merged AS m
              WHERE m.partition_id = p.id
              ORDER BY m.first_sequence DESC
              LIMIT 1), 0));
END
$$;

-- name: swap_chunks
-- Puts the table chunks_merged in the place of the slices from which it was filled, in one short transaction: readers
-- see either the old slices or the new table. It waits at most 100 ms for a lock; after that the caller gets the
-- database's error, and tries again later. Returns false while a session has a snapshot from before the table was
-- filled, because that session would see neither; and when a chunk came into the slices since: then the table is thrown
-- away, and the next call of merge_chunks fills it anew. Raises PS018.
CREATE OR REPLACE FUNCTION swap_chunks() RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET lock_timeout = '100ms' AS $$
DECLARE
    merge merges%ROWTYPE;
    old slices%ROWTYPE;
    new_name text;
BEGIN
    PERFORM commit_durably();
    PERFORM require_read_committed('swap_chunks()');
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

-- By design: PostgreSQL puts a new table in the place of slices of the index, MySQL writes chunks again.

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

-- By design: PostgreSQL numbers what is in a tick, MySQL what it has claimed of the waiting blocks.

-- name: append_chunks
-- Numbers the batch per partition and appends it to the index of the log in chunks of at most 1,000. Events of a
-- deleted topic are only counted. Returns how many events got a sequence, and the partitions that grew. The query for
-- the head of a partition, here and elsewhere, orders by the whole key: with a part of the key, MySQL reads all
-- chunks of the partition and sorts them.
CREATE PROCEDURE append_chunks(present DATETIME(6), OUT sequenced BIGINT, OUT grown LONGTEXT)
BEGIN
    DECLARE limit_before BIGINT UNSIGNED DEFAULT @@SESSION.group_concat_max_len;
    {{on error: SET SESSION group_concat_max_len = limit_before}}
    -- Room for 65,536 partitions and for the ids of a chunk; chunks_whole refuses a list that was cut off in spite of
    -- this.
    SET SESSION group_concat_max_len = 4194304;
    CREATE TEMPORARY TABLE IF NOT EXISTS heads (
        partition_id BIGINT NOT NULL PRIMARY KEY, event_count INT NOT NULL, next_sequence BIGINT NOT NULL,
        is_gone BOOLEAN NOT NULL
    ) ENGINE = MEMORY;
    DELETE FROM heads;
    INSERT INTO heads (partition_id, event_count, next_sequence, is_gone)
    SELECT t.partition_id, t.event_count, COALESCE((
            -- It overflows beyond 10^18, the last sequence that can be read: no event gets a sequence that no reader
            -- can fetch.
            SELECT c.first_sequence + c.event_count + 8223372036854775807 - 8223372036854775807
            FROM chunks AS c
            WHERE c.partition_id = t.partition_id
            ORDER BY c.partition_id DESC, c.first_sequence DESC
            LIMIT 1), 1),
        EXISTS (SELECT * FROM deleted_topics AS d WHERE d.topic_id = t.partition_id DIV 65536)
    FROM (SELECT b.partition_id, COUNT(*) AS event_count FROM batch AS b GROUP BY b.partition_id) AS t;
    INSERT INTO chunks (partition_id, first_sequence, event_count, first_id, last_id, event_ids, sequenced_at)
    SELECT r.partition_id, MIN(r.sequence), COUNT(*), MIN(r.id), MAX(r.id),
           GROUP_CONCAT(UNHEX(LPAD(HEX(r.id), 16, '0')) ORDER BY r.sequence SEPARATOR ''), present
    FROM (
        SELECT b.id, b.partition_id, ROW_NUMBER() OVER (PARTITION BY b.partition_id ORDER BY b.place) - 1 AS place,
               h.next_sequence + ROW_NUMBER() OVER (PARTITION BY b.partition_id ORDER BY b.place) - 1 AS sequence
        FROM batch AS b JOIN heads AS h ON h.partition_id = b.partition_id
        WHERE NOT h.is_gone
    ) AS r
    GROUP BY r.partition_id, r.place DIV 1000;
    -- In this order and by the key: a scan of deleted_topics would lock all of them.
    UPDATE (
        SELECT h.partition_id DIV 65536 AS topic_id, SUM(h.event_count) AS event_count
        FROM heads AS h
        WHERE h.is_gone
        GROUP BY h.partition_id DIV 65536
    ) AS g
    STRAIGHT_JOIN deleted_topics AS d FORCE INDEX (PRIMARY) ON d.topic_id = g.topic_id
    SET d.discarded = d.discarded + g.event_count;
    SELECT COALESCE(SUM(h.event_count), 0), COALESCE(JSON_ARRAYAGG(h.partition_id), '[]') INTO sequenced, grown
    FROM heads AS h
    WHERE NOT h.is_gone;
    SET SESSION group_concat_max_len = limit_before;
END;

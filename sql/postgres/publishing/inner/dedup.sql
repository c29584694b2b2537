-- name: claim_dedup_keys
-- Claims the dedup keys of a batch for its events; both arrays have the same order. Each place of the result is NULL
-- when the event is to be published, else the id of the event that already has the key; that can be an earlier one of
-- the same batch. Keys are claimed in sorted order, so that two batches never deadlock. The first read locks both
-- tables against turn_dedup until the caller's transaction ends, so that no key is forgotten between the read and the
-- claim. It also means that a duplicate does not prolong a key's life.
CREATE OR REPLACE FUNCTION claim_dedup_keys(topics text[], dedup_keys text[], event_ids uuid[]) RETURNS uuid[]
LANGUAGE plpgsql SET enable_hashjoin = off AS $$
DECLARE
    claimed integer[];
    originals uuid[];
BEGIN
    WITH firsts AS MATERIALIZED (
        SELECT DISTINCT ON (t.id, g.key) t.id AS topic_id, g.key, g.event_id, g.place
        FROM (SELECT unnest(topics) AS topic, unnest(dedup_keys) COLLATE "C" AS key, unnest(event_ids) AS event_id,
                     generate_subscripts(topics, 1) AS place) AS g
        JOIN topics AS t ON t.address = g.topic
        WHERE g.key IS NOT NULL
        ORDER BY t.id, g.key, g.place
    ), in_even AS (
        INSERT INTO dedup_even (topic_id, key, event_id)
        SELECT f.topic_id, f.key, f.event_id
        FROM firsts AS f
        WHERE NOT EXISTS (SELECT FROM dedup_even AS e WHERE e.topic_id = f.topic_id AND e.key = f.key)
          AND NOT EXISTS (SELECT FROM dedup_odd AS o WHERE o.topic_id = f.topic_id AND o.key = f.key)
        ORDER BY f.topic_id, f.key
        ON CONFLICT DO NOTHING
        RETURNING topic_id, key, event_id, at
    ), in_odd AS (
        INSERT INTO dedup_odd (topic_id, key, event_id, at)
        SELECT e.topic_id, e.key, e.event_id, e.at FROM in_even AS e ORDER BY e.topic_id, e.key
        ON CONFLICT DO NOTHING
        RETURNING topic_id, key
    )
    SELECT COALESCE(array_agg(f.place), '{}') INTO claimed
    FROM firsts AS f JOIN in_odd AS o ON o.topic_id = f.topic_id AND o.key = f.key;
    -- This is a separate statement: at READ COMMITTED it sees what the transactions that it waited for have
    -- written.
    SELECT array_agg(
        CASE WHEN g.key IS NULL OR c.place IS NOT NULL THEN NULL ELSE COALESCE(e.event_id, o.event_id) END
        ORDER BY g.place)
    INTO originals
    FROM (SELECT unnest(topics) AS topic, unnest(dedup_keys) COLLATE "C" AS key,
                 generate_subscripts(topics, 1) AS place) AS g
    LEFT JOIN unnest(claimed) AS c (place) ON c.place = g.place
    LEFT JOIN topics AS t ON t.address = g.topic
    LEFT JOIN dedup_even AS e ON e.topic_id = t.id AND e.key = g.key
    LEFT JOIN dedup_odd AS o ON o.topic_id = t.id AND o.key = g.key;
    RETURN originals;
END
$$;

-- name: lock_strictly
-- Waits until no other open transaction has published strictly to the same keys, and makes later ones wait for this
-- one. Events without a key wait for each other. The buckets are locked in sorted order, so that two batches do not
-- deadlock. Each topic has buckets of its own, so that publishers of different topics do not wait for each other.
-- WHERE false makes ON CONFLICT lock the row without writing it.
CREATE OR REPLACE FUNCTION lock_strictly(topics text[], keys text[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO strict_locks (topic_id, bucket)
    SELECT DISTINCT t.id, mod(crc32(convert_to(COALESCE(g.key, ''), 'UTF8')), 16384)::integer AS bucket
    FROM (SELECT unnest(topics) AS topic, unnest(keys) AS key) AS g JOIN topics AS t ON t.address = g.topic
    ORDER BY t.id, bucket
    ON CONFLICT ON CONSTRAINT strict_locks_pkey DO UPDATE SET topic_id = excluded.topic_id WHERE false;
END
$$;

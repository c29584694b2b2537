-- name: publish_batch
-- Publishes many events in one statement, in array order. Returns how many, and the duplicates: their places (from 0)
-- and, in the same order, the ids of the earlier events with the same dedup keys. If one event is wrong, none is
-- published, and the error names its place. Raises PS002, PS004, PS005, PS006, PS022, PS052.
CREATE OR REPLACE FUNCTION publish_batch(
    topics text[], payloads bytea[], keys text[], types text[], content_types text[],
    headers text[], event_ids uuid[], partitions integer[], not_befores timestamptz[] DEFAULT NULL,
    dedup_keys text[] DEFAULT NULL, strict boolean DEFAULT false,
    OUT published bigint, OUT duplicates integer[], OUT original_ids uuid[]
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    originals uuid[];
    latest timestamptz;
    earliest timestamptz;
BEGIN
    duplicates := '{}'; original_ids := '{}';
    IF not_befores IS NOT NULL THEN
        latest := latest_due();
        earliest := clock_timestamp();
    END IF;
    IF dedup_keys IS NOT NULL OR strict
       OR GREATEST(cardinality(payloads), cardinality(keys), cardinality(types), cardinality(content_types),
                   cardinality(publish_batch.headers), cardinality(event_ids), cardinality(publish_batch.partitions),
                   cardinality(not_befores)) > COALESCE(cardinality(publish_batch.topics), 0)
       OR EXISTS (
           SELECT FROM topics AS t
           WHERE t.max_unsequenced_events IS NOT NULL OR t.max_unsequenced_bytes IS NOT NULL)
    THEN
        PERFORM require_events(publish_batch.topics, payloads, keys, types, content_types, publish_batch.headers,
                               publish_batch.partitions, not_befores, dedup_keys, true);
        publish_batch.partitions := relieved_partitions(publish_batch.topics, keys, publish_batch.partitions);
        IF strict THEN
            PERFORM lock_strictly(publish_batch.topics, keys);
        END IF;
        IF dedup_keys IS NOT NULL THEN
            SELECT array_agg(COALESCE(g.event_id, new_event_id()) ORDER BY g.place) INTO event_ids
            FROM (SELECT unnest(event_ids) AS event_id, generate_subscripts(publish_batch.topics, 1) AS place) AS g;
            originals := claim_dedup_keys(publish_batch.topics, dedup_keys, event_ids);
            SELECT COALESCE(array_agg(o.n - 1 ORDER BY o.n), '{}'), COALESCE(array_agg(o.id ORDER BY o.n), '{}')
            INTO duplicates, original_ids
            FROM unnest(originals) WITH ORDINALITY AS o (id, n)
            WHERE o.id IS NOT NULL;
        END IF;
    END IF;
    INSERT INTO events (partition_id, event_id, key, type, content_type, headers, payload, due_at)
    SELECT choose_partition(t.id, t.partitions, t.strategy, i.key, i.partition), COALESCE(i.event_id, new_event_id()),
           i.key, COALESCE(i.type, ''), COALESCE(i.content_type, 'application/octet-stream'), i.headers, i.payload,
           CASE WHEN i.not_before > earliest THEN i.not_before END
    FROM (
        -- Next to each other in a SELECT they are expanded element by element; in FROM each would be written to a
        -- table first.
        SELECT unnest(publish_batch.topics) AS topic, unnest(payloads) AS payload, unnest(keys) AS key,
               unnest(types) AS type, unnest(content_types) AS content_type,
               unnest(publish_batch.headers)::jsonb AS headers, unnest(event_ids) AS event_id,
               unnest(publish_batch.partitions) AS partition, unnest(not_befores) AS not_before,
               unnest(originals) AS original, generate_subscripts(publish_batch.topics, 1) AS n
    ) AS i
    JOIN publishable_topics(publish_batch.topics) AS t ON t.address = i.topic
    WHERE i.original IS NULL
      AND event_problem(
          octet_length(i.payload), i.key, i.type, i.content_type, i.headers, i.partition, i.not_before, NULL,
          t.partitions, t.strategy, t.max_payload_bytes, latest) IS NULL
    ORDER BY i.n;
    GET DIAGNOSTICS published = ROW_COUNT;
    IF published + cardinality(duplicates) < cardinality(publish_batch.topics) THEN
        PERFORM require_events(publish_batch.topics, payloads, keys, types, content_types, publish_batch.headers,
                               publish_batch.partitions, not_befores, dedup_keys, true);
    END IF;
    IF acts_within_quota() THEN
        PERFORM charge_account(published, (SELECT sum(octet_length(p)) FROM unnest(payloads) AS p));
    END IF;
END
$$;

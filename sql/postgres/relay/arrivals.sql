-- name: publish_relayed
-- Publishes the next events of a partition of another database, as one of its relays sends them, if the partition has
-- come as far as expected here; else it changes nothing. moved says which, and the others where the partition stands
-- now. In the same statement it moves to history and sequence, whose event is last_event_id. Events are given as to
-- publish_batch; without them only the place moves. Raises PS002, PS004, PS005, PS006, PS018, PS022.
CREATE OR REPLACE FUNCTION publish_relayed(
    topic text, installation text, relay text, known_as text, source_partition integer, expected_history integer,
    expected_sequence bigint, to_history integer, to_sequence bigint, last_event_id uuid, payloads bytea[],
    keys text[], types text[], content_types text[], headers text[], event_ids uuid[], partitions integer[],
    OUT moved boolean, OUT history integer, OUT sequence bigint, OUT event_id uuid
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    target_id bigint := require_topic_for(topic, 'publish');
    source relay_arrivals%ROWTYPE;
BEGIN
    PERFORM commit_durably();
    PERFORM require_read_committed('publish_relayed()');
    PERFORM require_source_place(installation, relay, known_as, source_partition, to_history, to_sequence);
    INSERT INTO relay_arrivals (topic_id, installation, relay, known_as, partition)
    VALUES (target_id, publish_relayed.installation, publish_relayed.relay, publish_relayed.known_as, source_partition)
    ON CONFLICT DO NOTHING;
    SELECT a.* INTO source
    FROM relay_arrivals AS a
    WHERE a.topic_id = target_id AND a.installation = publish_relayed.installation
      AND a.relay = publish_relayed.relay AND a.known_as = publish_relayed.known_as
      AND a.partition = source_partition
    FOR UPDATE;
    moved := COALESCE((source.history, source.sequence) = (expected_history, expected_sequence), false);
    IF moved THEN
        IF cardinality(payloads) > 0 THEN
            PERFORM publish_batch(array_fill(publish_relayed.topic, ARRAY[cardinality(payloads)]), payloads, keys,
                                  types, content_types, headers, event_ids, partitions);
        END IF;
        UPDATE relay_arrivals AS a
        SET history = to_history, sequence = to_sequence, event_id = last_event_id, moved_at = clock_timestamp()
        WHERE a.topic_id = target_id AND a.installation = publish_relayed.installation
          AND a.relay = publish_relayed.relay AND a.known_as = publish_relayed.known_as
          AND a.partition = source_partition
        RETURNING a.* INTO source;
    END IF;
    history := source.history;
    sequence := source.sequence;
    event_id := source.event_id;
END
$$;

-- name: relayed_to
-- How far a relay of another database has brought a partition into a topic, which installation this is, and how many
-- partitions the topic has. History and sequence are 0 when nothing has come. Raises PS002.
CREATE OR REPLACE FUNCTION relayed_to(
    topic text, installation text, relay text, known_as text, source_partition integer
) RETURNS TABLE (history integer, sequence bigint, event_id uuid, here text, partitions integer)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    target_id bigint := require_topic_for(topic, 'publish');
BEGIN
    RETURN QUERY
    SELECT COALESCE(a.history, 0), COALESCE(a.sequence, 0), a.event_id, installation_id()::text, t.partitions
    FROM topics AS t
    LEFT JOIN relay_arrivals AS a
        ON a.topic_id = t.id AND a.installation = relayed_to.installation AND a.relay = relayed_to.relay
       AND a.known_as = relayed_to.known_as AND a.partition = source_partition
    WHERE t.id = target_id;
END
$$;

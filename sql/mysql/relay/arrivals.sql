-- name: publish_relayed
-- Publishes the next events of a partition of another database, as one of its relays sends them, if the partition has
-- come as far as expected here; else it changes nothing. moved says which, and the others where the partition stands
-- now. In the same transaction it moves to history and sequence, whose event is last_event_id. Events are given as to
-- publish_batch; without them only the place moves. Raises PS002, PS004, PS005, PS006, PS018, PS022.
CREATE PROCEDURE publish_relayed(
    topic LONGTEXT, installation LONGTEXT, relay LONGTEXT, known_as LONGTEXT, source_partition INT,
    expected_history INT, expected_sequence BIGINT, to_history INT, to_sequence BIGINT, last_event_id LONGTEXT,
    events JSON
)
BEGIN
    DECLARE id_before BIGINT DEFAULT LAST_INSERT_ID();
    DECLARE target_id, at_sequence, published BIGINT;
    DECLARE at_history INT;
    DECLARE at_event_id VARCHAR(36);
    DECLARE duplicates JSON;
    DECLARE is_expected BOOLEAN;
    DECLARE of_source BINARY(32);
    {{on error: CALL undo_call(); DO LAST_INSERT_ID(id_before)}}
    CALL begin_call('publish_relayed()');
    CALL require_read_committed('publish_relayed()');
    CALL require_topic_for(topic, 'publish', target_id);
    CALL require_source_place(installation, relay, known_as, source_partition, to_history, to_sequence);
    SET of_source = source_of(installation, relay, known_as, source_partition);
    INSERT IGNORE INTO relay_arrivals (topic_id, source_hash, installation, relay, known_as, `partition`, moved_at)
    VALUES (target_id, of_source, installation, relay, known_as, source_partition, UTC_TIMESTAMP(6));
    SELECT a.history, a.sequence, a.event_id INTO at_history, at_sequence, at_event_id
    FROM relay_arrivals AS a
    WHERE a.topic_id = target_id AND a.source_hash = of_source
    FOR UPDATE;
    SET is_expected = COALESCE(at_history = expected_history AND at_sequence = expected_sequence, FALSE);
    IF is_expected THEN
        IF events IS NOT NULL THEN
            CALL insert_batch(events, FALSE, published, duplicates);
        END IF;
        UPDATE relay_arrivals AS a
        SET a.history = to_history, a.sequence = to_sequence, a.event_id = last_event_id, a.moved_at = UTC_TIMESTAMP(6)
        WHERE a.topic_id = target_id AND a.source_hash = of_source;
        SET at_history = to_history, at_sequence = to_sequence, at_event_id = last_event_id;
    END IF;
    DO LAST_INSERT_ID(id_before);
    SELECT is_expected AS moved, at_history AS history, at_sequence AS sequence, at_event_id AS event_id;
    CALL end_call();
END;

-- name: relayed_to
-- How far a relay of another database has brought a partition into a topic, which installation this is, and how many
-- partitions the topic has. History and sequence are 0 when nothing has come. Raises PS002.
CREATE PROCEDURE relayed_to(
    topic LONGTEXT, installation LONGTEXT, relay LONGTEXT, known_as LONGTEXT, source_partition INT
)
READS SQL DATA
BEGIN
    DECLARE target_id BIGINT;
    DECLARE of_source BINARY(32) DEFAULT source_of(installation, relay, known_as, source_partition);
    CALL refuse_serializable('relayed_to()');
    CALL require_topic_for(topic, 'publish', target_id);
    SELECT COALESCE(a.history, 0) AS history, COALESCE(a.sequence, 0) AS sequence, a.event_id,
           (SELECT i.id FROM installation AS i) AS here, t.partitions
    FROM topics AS t
    LEFT JOIN relay_arrivals AS a ON a.topic_id = t.id AND a.source_hash = of_source
    WHERE t.id = target_id;
END;

-- name: set_schema
-- Puts a schema in force for a topic's events of a type, as the version after after_version (0: there is none). The
-- caller has compared it with that version; when there is a newer one, it is refused. kind is 'json' or 'avro'. Returns
-- the new version. Raises PS002, PS006, PS018.
CREATE PROCEDURE set_schema(
    topic LONGTEXT, type LONGTEXT, kind LONGTEXT, definition LONGTEXT, compatibility LONGTEXT, after_version INT
)
BEGIN
    DECLARE own BIGINT;
    DECLARE newest, topic_partitions INT;
    {{on error: CALL undo_call()}}
    CALL begin_call('set_schema()');
    CALL require_read_committed('set_schema()');
    CALL lock_topic(topic, 'operate', own, topic_partitions);
    IF NOT COALESCE(kind IN ('json', 'avro') AND compatibility IN ('none', 'backward', 'forward', 'full')
                    AND CHAR_LENGTH(type) <= 255 AND LENGTH(definition) BETWEEN 1 AND 1048576, FALSE) THEN
        CALL refuse('PS006', 'a schema has a kind, a compatibility, a type of up to 255 characters and 1 MiB');
    END IF;
    SELECT COALESCE(MAX(s.version), 0) INTO newest
    FROM topic_schemas AS s
    WHERE s.topic_id = own AND s.type = type;
    IF NOT newest <=> after_version THEN
        CALL refuse('PS006', CONCAT('version ', newest, ' of the schema is in force, and ',
                                    COALESCE(after_version, 'none'), ' was compared'));
    END IF;
    INSERT INTO topic_schemas (topic_id, type, version, kind, definition, compatibility, set_at, set_by)
    VALUES (own, type, newest + 1, kind, definition, compatibility, UTC_TIMESTAMP(6), principal());
    SELECT newest + 1 AS version;
    CALL end_call();
END;

-- name: schemas_of
-- The schemas of a topic: of a type, or of every type (NULL); with all_versions the older ones too. The newest of each
-- type comes first. Raises PS002.
CREATE PROCEDURE schemas_of(topic LONGTEXT, of_type LONGTEXT, all_versions BOOLEAN)
READS SQL DATA
BEGIN
    DECLARE of_topic BIGINT;
    CALL refuse_serializable('schemas_of()');
    CALL require_topic_for(topic, 'any', of_topic);
    SELECT s.type, s.version, s.kind, s.definition, s.compatibility, s.set_at, s.set_by
    FROM topic_schemas AS s
    WHERE s.topic_id = of_topic AND (of_type IS NULL OR s.type = of_type)
      AND (all_versions OR s.version = (
          SELECT MAX(n.version) FROM topic_schemas AS n WHERE n.topic_id = of_topic AND n.type = s.type))
    ORDER BY s.type, s.version DESC
    LIMIT 1000;
END;

-- name: delete_schema
-- Removes all versions of a topic's schema for a type. Returns how many there were. Raises PS002, PS018.
CREATE PROCEDURE delete_schema(topic LONGTEXT, type LONGTEXT)
BEGIN
    DECLARE own BIGINT;
    DECLARE topic_partitions, gone INT;
    {{on error: CALL undo_call()}}
    CALL begin_call('delete_schema()');
    CALL lock_topic(topic, 'operate', own, topic_partitions);
    DELETE s FROM topic_schemas AS s FORCE INDEX (PRIMARY) WHERE s.topic_id = own AND s.type = type;
    SET gone = ROW_COUNT();
    SELECT gone AS gone;
    CALL end_call();
END;

-- name: set_schema
-- Puts a schema in force for a topic's events of a type, as the version after after_version (0: there is none). The
-- caller has compared it with that version; when there is a newer one, it is refused. kind is 'json' or 'avro'. Returns
-- the new version. Raises PS002, PS006, PS018.
CREATE OR REPLACE FUNCTION set_schema(
    topic text, type text, kind text, definition text, compatibility text, after_version integer
) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    own topics%ROWTYPE;
    newest integer;
BEGIN
    PERFORM commit_durably();
    PERFORM require_read_committed('set_schema()');
    own := lock_topic(topic, 'operate');
    IF NOT COALESCE(kind IN ('json', 'avro') AND compatibility IN ('none', 'backward', 'forward', 'full')
                    AND length(type) <= 255 AND octet_length(definition) BETWEEN 1 AND 1048576, false) THEN
        PERFORM refuse('PS006', 'a schema has a kind, a compatibility, a type of up to 255 characters and 1 MiB',
                       'The kinds are json and avro; compatibility is none, backward, forward or full.');
    END IF;
    SELECT COALESCE(max(s.version), 0) INTO newest
    FROM topic_schemas AS s
    WHERE s.topic_id = own.id AND s.type = set_schema.type;
    IF newest IS DISTINCT FROM after_version THEN
        PERFORM refuse('PS006', format('version %s of the schema is in force, and %s was compared', newest,
                                       after_version), 'Somebody has set another one: compare again.');
    END IF;
    INSERT INTO topic_schemas (topic_id, type, version, kind, definition, compatibility, set_by)
    VALUES (own.id, set_schema.type, newest + 1, set_schema.kind, set_schema.definition, set_schema.compatibility,
            principal());
    RETURN newest + 1;
END
$$;

-- name: schemas_of
-- The schemas of a topic: of a type, or of every type (NULL); with all_versions the older ones too. The newest of each
-- type comes first. Raises PS002.
CREATE OR REPLACE FUNCTION schemas_of(topic text, of_type text DEFAULT NULL, all_versions boolean DEFAULT false)
RETURNS TABLE (
    type text, version integer, kind text, definition text, compatibility text, set_at timestamptz, set_by text
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    of_topic bigint := require_topic_for(topic, 'any');
BEGIN
    RETURN QUERY
    SELECT s.type, s.version, s.kind, s.definition, s.compatibility, s.set_at, s.set_by
    FROM topic_schemas AS s
    WHERE s.topic_id = of_topic AND (of_type IS NULL OR s.type = of_type)
      AND (all_versions OR s.version = (
          SELECT max(n.version) FROM topic_schemas AS n WHERE n.topic_id = of_topic AND n.type = s.type))
    ORDER BY s.type, s.version DESC
    LIMIT 1000;
END
$$;

-- name: delete_schema
-- Removes all versions of a topic's schema for a type. Returns how many there were. Raises PS002.
CREATE OR REPLACE FUNCTION delete_schema(topic text, type text) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    own topics%ROWTYPE := lock_topic(topic, 'operate');
    gone integer;
BEGIN
    PERFORM commit_durably();
    DELETE FROM topic_schemas AS s WHERE s.topic_id = own.id AND s.type = delete_schema.type;
    GET DIAGNOSTICS gone = ROW_COUNT;
    RETURN gone;
END
$$;

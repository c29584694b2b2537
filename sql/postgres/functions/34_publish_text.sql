-- name: publish_text
-- Publishes a text, as publish does. The payload is the text in UTF-8, whatever the encoding of the session. It is
-- for clients without binary parameters: in '...'::bytea a backslash starts an escape, in a text it is a plain
-- backslash. Raises what publish raises.
CREATE OR REPLACE FUNCTION publish_text(
    topic text,
    payload text,
    key text DEFAULT NULL,
    type text DEFAULT '',
    content_type text DEFAULT 'text/plain; charset=utf-8',
    headers jsonb DEFAULT NULL,
    INOUT event_id uuid DEFAULT NULL,
    partition integer DEFAULT NULL,
    not_before timestamptz DEFAULT NULL,
    dedup_key text DEFAULT NULL,
    strict boolean DEFAULT false,
    OUT duplicate boolean
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    SELECT p.event_id, p.duplicate INTO publish_text.event_id, publish_text.duplicate
    FROM publish(
        publish_text.topic, convert_to(publish_text.payload, 'UTF8'), publish_text.key, publish_text.type,
        COALESCE(publish_text.content_type, 'text/plain; charset=utf-8'), publish_text.headers, publish_text.event_id,
        publish_text.partition, publish_text.not_before, publish_text.dedup_key, publish_text.strict) AS p;
END
$$;

-- name: publish_json
-- Publishes JSON, as publish does. The payload is the text as it was given, in UTF-8, with its blanks and the order
-- of its keys. The database refuses a text that is not JSON (22P02). Raises what publish raises.
CREATE OR REPLACE FUNCTION publish_json(
    topic text,
    payload json,
    key text DEFAULT NULL,
    type text DEFAULT '',
    content_type text DEFAULT 'application/json',
    headers jsonb DEFAULT NULL,
    INOUT event_id uuid DEFAULT NULL,
    partition integer DEFAULT NULL,
    not_before timestamptz DEFAULT NULL,
    dedup_key text DEFAULT NULL,
    strict boolean DEFAULT false,
    OUT duplicate boolean
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    SELECT p.event_id, p.duplicate INTO publish_json.event_id, publish_json.duplicate
    FROM publish(
        publish_json.topic, convert_to(publish_json.payload::text, 'UTF8'), publish_json.key, publish_json.type,
        COALESCE(publish_json.content_type, 'application/json'), publish_json.headers, publish_json.event_id,
        publish_json.partition, publish_json.not_before, publish_json.dedup_key, publish_json.strict) AS p;
END
$$;

-- name: publish
-- Publishes one event in the caller's transaction: it exists if and only if that transaction commits. Returns the
-- event's id; for a duplicate (an event with the same dedup_key in the window), the id of the earlier event. With
-- not_before, readers get the event at that time or later. With strict, events of one key are ordered by their
-- commits. It locks neither topic nor partition. Raises PS002, PS004, PS005, PS006, PS022, PS052.
CREATE OR REPLACE FUNCTION publish(
    topic text,
    payload bytea,
    key text DEFAULT NULL,
    type text DEFAULT '',
    content_type text DEFAULT 'application/octet-stream',
    headers jsonb DEFAULT NULL,
    INOUT event_id uuid DEFAULT NULL,
    partition integer DEFAULT NULL,
    not_before timestamptz DEFAULT NULL,
    dedup_key text DEFAULT NULL,
    strict boolean DEFAULT false,
    OUT duplicate boolean
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    turn bigint;
BEGIN
    event_id := COALESCE(event_id, new_event_id());
    -- A plain event that is certainly valid takes one statement, without anything that costs another node of its
    -- plan: checks of the arguments alone are outside the statement. All other events go through the path of a batch.
    IF publish.not_before IS NULL AND publish.dedup_key IS NULL AND publish.strict IS NOT TRUE
       AND GREATEST(char_length(publish.key), char_length(publish.type), char_length(publish.content_type)) <= 255
       AND has_plain_headers(publish.headers)
    THEN
        IF publish.key IS NULL AND publish.partition IS NULL THEN
            turn := nextval('round_robin');
        END IF;
        INSERT INTO events (partition_id, event_id, key, type, content_type, headers, payload)
        SELECT (t.id << 16) | COALESCE(publish.partition, mod(turn, t.partitions)::integer,
                                       partition_of(publish.key, t.partitions)),
               publish.event_id, publish.key, COALESCE(publish.type, ''),
               COALESCE(publish.content_type, 'application/octet-stream'), publish.headers, publish.payload
        FROM topics AS t
        WHERE t.address = publish.topic AND t.strategy = 'crc32' AND (
              NOT t.restricted AND COALESCE(current_setting('penstock.acting', true), '') = ''
              AND NOT EXISTS (SELECT FROM installed_gateways AS g WHERE g.login = session_user)
              OR has_right(t.namespace_id, 'publish'))
          AND t.max_unsequenced_events IS NULL AND t.max_unsequenced_bytes IS NULL
          AND octet_length(publish.payload) <= t.max_payload_bytes
          AND (publish.partition IS NULL OR publish.partition >= 0 AND publish.partition < t.partitions)
        RETURNING false INTO duplicate;
    END IF;
    IF duplicate IS NULL THEN
        PERFORM require_events(
            ARRAY[publish.topic], ARRAY[publish.payload], ARRAY[publish.key], ARRAY[publish.type],
            ARRAY[publish.content_type], ARRAY[publish.headers::text], ARRAY[publish.partition],
            ARRAY[publish.not_before], ARRAY[publish.dedup_key], false);
        SELECT COALESCE(b.original_ids[1], publish.event_id), b.published = 0 INTO event_id, duplicate
        FROM publish_batch(
            ARRAY[publish.topic], ARRAY[publish.payload], ARRAY[publish.key], ARRAY[publish.type],
            ARRAY[publish.content_type], ARRAY[publish.headers::text], ARRAY[publish.event_id],
            ARRAY[publish.partition], ARRAY[publish.not_before], ARRAY[publish.dedup_key], publish.strict) AS b;
    ELSIF acts_within_quota() THEN
        PERFORM charge_account(1, octet_length(publish.payload));
    END IF;
END
$$;

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

-- By design: PostgreSQL's fast way for plain events takes arrays; MySQL's is publish_packed.

-- name: publish_columns
-- Publishes plain events of one topic in array order, all or nothing, at less than publish_batch costs: nothing is
-- joined or sorted. types and content_types may be NULL: then every event has type and content_type. Returns how
-- many, or NULL when the topic needs publish_batch: it has a strategy of its own or a limit of back pressure, or does
-- not exist. The error names the place of the first wrong event. Raises PS002, PS004, PS005, PS006, PS052.
CREATE OR REPLACE FUNCTION publish_columns(
    topic text, type text, content_type text, payloads bytea[], keys text[] DEFAULT NULL, types text[] DEFAULT NULL,
    content_types text[] DEFAULT NULL, headers text[] DEFAULT NULL, event_ids uuid[] DEFAULT NULL,
    partitions integer[] DEFAULT NULL
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    events_given integer := COALESCE(cardinality(payloads), 0);
    base bigint;
    parts integer;
    most_bytes integer;
    published bigint;
BEGIN
    SELECT t.id << 16, t.partitions, t.max_payload_bytes INTO base, parts, most_bytes
    FROM topics AS t
    WHERE t.address = publish_columns.topic AND t.strategy = 'crc32' AND (
          NOT t.restricted AND COALESCE(current_setting('penstock.acting', true), '') = ''
          AND NOT EXISTS (SELECT FROM installed_gateways AS g WHERE g.login = session_user)
          OR has_right(t.namespace_id, 'publish'))
      AND t.max_unsequenced_events IS NULL AND t.max_unsequenced_bytes IS NULL;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    IF GREATEST(cardinality(keys), cardinality(types), cardinality(content_types), cardinality(publish_columns.headers),
                cardinality(event_ids), cardinality(publish_columns.partitions)) > events_given THEN
        PERFORM refuse('PS006', 'a column has more values than there are payloads', 'Give columns of one length.');
    END IF;
    -- The order of the arrays is that of the ids: nothing stands between them and the table that could change it.
    INSERT INTO events (partition_id, event_id, key, type, content_type, headers, payload)
    SELECT base | COALESCE(i.partition, partition_of(i.key, parts), mod(nextval('round_robin'), parts)::integer),
           COALESCE(i.event_id, new_event_id()), i.key, COALESCE(i.type, publish_columns.type, ''),
           COALESCE(i.content_type, publish_columns.content_type, 'application/octet-stream'), i.headers, i.payload
    FROM (
        SELECT unnest(payloads) AS payload, unnest(keys) AS key, unnest(types) AS type,
               unnest(content_types) AS content_type, unnest(publish_columns.headers)::jsonb AS headers,
               unnest(event_ids) AS event_id, unnest(publish_columns.partitions) AS partition
    ) AS i
    -- 255 bytes are at most 255 characters. What is not certainly valid is asked about by the one rule for all.
    WHERE octet_length(i.payload) <= most_bytes AND i.partition IS NULL AND has_plain_headers(i.headers)
      AND GREATEST(octet_length(i.key), octet_length(COALESCE(i.type, publish_columns.type, '')),
                   octet_length(COALESCE(i.content_type, publish_columns.content_type, ''))) <= 255
       OR event_problem(
           octet_length(i.payload), i.key, COALESCE(i.type, publish_columns.type),
           COALESCE(i.content_type, publish_columns.content_type), i.headers, i.partition, NULL, NULL, parts, 'crc32',
           most_bytes, NULL) IS NULL;
    GET DIAGNOSTICS published = ROW_COUNT;
    IF published < events_given THEN
        PERFORM require_events(
            array_fill(publish_columns.topic, ARRAY[events_given]), payloads, keys,
            COALESCE(types, array_fill(publish_columns.type, ARRAY[events_given])),
            COALESCE(content_types, array_fill(publish_columns.content_type, ARRAY[events_given])),
            publish_columns.headers, publish_columns.partitions, NULL, NULL, true);
        PERFORM refuse('PS006', 'the topic was changed while the batch was published', 'Publish it again.');
    END IF;
    IF acts_within_quota() THEN
        PERFORM charge_account(published, (SELECT sum(octet_length(p)) FROM unnest(payloads) AS p));
    END IF;
    RETURN published;
END
$$;

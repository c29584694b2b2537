-- name: publish_for_accounts
-- Publishes plain events of many accounts in one transaction: for a gateway, so that tenants share a commit. Each event
-- has a line, counted from 1: an account, a key that its caller has shown, and a topic. Each line is checked by itself,
-- as act_as and publish would do. Returns the places (from 0) of the events that are not published: the key is not good
-- now, the account lacks the right or has used its quota, or topic or event are not plain or not good. In a transaction
-- of its own the account learns what it was. The others are published, in the order of the arrays. Raises PS006, PS051.
CREATE OR REPLACE FUNCTION publish_for_accounts(
    accounts text[], key_ids text[], topics text[], lines integer[], payloads bytea[], keys text[], types text[],
    content_types text[], headers text[], event_ids uuid[], partitions integer[]
) RETURNS SETOF integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    events_given integer := COALESCE(cardinality(lines), 0);
    bases bigint[];
    parts integer[];
    longest integer[];
    published integer;
    -- The lines of the events, NULL for one that is not published.
    written integer[] := lines;
BEGIN
    PERFORM require_own_gateway();
    IF GREATEST(cardinality(payloads), cardinality(keys), cardinality(types), cardinality(content_types),
                cardinality(publish_for_accounts.headers), cardinality(event_ids),
                cardinality(publish_for_accounts.partitions)) > events_given THEN
        PERFORM refuse('PS006', 'a column has more values than there are lines', 'Give columns of one length.');
    END IF;
    -- NULL where nothing is published. From here on it is known, and the events are compared with nothing else: so
    -- those that are written and those that are returned are never the same.
    SELECT array_agg(t.id << 16 ORDER BY l.n), array_agg(t.partitions ORDER BY l.n),
           array_agg(t.max_payload_bytes ORDER BY l.n)
    INTO bases, parts, longest
    FROM (SELECT unnest(accounts) AS account, unnest(key_ids) AS key_id, unnest(publish_for_accounts.topics) AS topic,
                 generate_subscripts(accounts, 1) AS n) AS l
    LEFT JOIN topics AS t
        ON t.address = l.topic AND t.strategy = 'crc32' AND t.max_unsequenced_events IS NULL
        AND t.max_unsequenced_bytes IS NULL AND account_may_publish(l.account, l.key_id, t.namespace_id);
    -- The order of the arrays is that of the ids: nothing stands between them and the table that could change it.
    INSERT INTO events (partition_id, event_id, key, type, content_type, headers, payload)
    SELECT bases[i.line] | COALESCE(i.partition, partition_of(i.key, parts[i.line]),
                                    mod(nextval('round_robin'), parts[i.line])::integer),
           COALESCE(i.event_id, new_event_id()), i.key, COALESCE(i.type, ''),
           COALESCE(i.content_type, 'application/octet-stream'), i.headers, i.payload
    FROM (
        SELECT unnest(lines) AS line, unnest(payloads) AS payload, unnest(keys) AS key, unnest(types) AS type,
               unnest(content_types) AS content_type, unnest(publish_for_accounts.headers)::jsonb AS headers,
               unnest(event_ids) AS event_id, unnest(publish_for_accounts.partitions) AS partition
    ) AS i
    WHERE fits_line(parts[i.line], longest[i.line], octet_length(i.payload), i.key, i.type, i.content_type, i.headers,
                    i.partition);
    GET DIAGNOSTICS published = ROW_COUNT;
    IF published < events_given THEN
        SELECT array_agg(CASE WHEN fits_line(parts[i.line], longest[i.line], octet_length(i.payload), i.key, i.type,
                                             i.content_type, i.headers, i.partition) THEN i.line END ORDER BY i.n)
        INTO written
        FROM (
            SELECT unnest(lines) AS line, unnest(payloads) AS payload, unnest(keys) AS key, unnest(types) AS type,
                   unnest(content_types) AS content_type, unnest(publish_for_accounts.headers)::jsonb AS headers,
                   unnest(publish_for_accounts.partitions) AS partition, generate_subscripts(lines, 1) AS n
        ) AS i;
    END IF;
    IF published > 0 THEN
        PERFORM charge_lines(accounts, written, payloads);
    END IF;
    RETURN QUERY
    SELECT (i.n - 1)::integer
    FROM (SELECT unnest(written) AS line, generate_subscripts(written, 1) AS n) AS i
    WHERE published < events_given AND i.line IS NULL
    ORDER BY i.n;
END
$$;

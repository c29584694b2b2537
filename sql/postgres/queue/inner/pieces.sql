-- name: free_pieces
-- Puts pieces back into the window, at its end: nothing that is dealt later is handed out before them.
CREATE OR REPLACE FUNCTION free_pieces(owner_id bigint, pieces queue_piece[], uncounted integer) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO queue_ranges (
        subscription_id, partition_id, first_sequence, last_sequence, deliveries, waiting_id)
    SELECT owner_id, p.partition_id, s.first, s.last, GREATEST(p.deliveries - uncounted, 0), p.waiting_id
    FROM unnest(pieces) WITH ORDINALITY AS p
    CROSS JOIN LATERAL (
        SELECT p.first_sequence, p.last_sequence WHERE p.finished IS NULL
        UNION ALL
        SELECT u, u FROM unfinished(p.first_sequence, p.last_sequence, p.finished) AS u WHERE p.finished IS NOT NULL
    ) AS s (first, last)
    ORDER BY p.ordinality, s.first;
END
$$;

-- name: bury_pieces
-- Makes events dead letters. An event that is in the log no longer has nothing to bury.
CREATE OR REPLACE FUNCTION bury_pieces(queue queues, pieces queue_piece[], reason text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    ids bigint[];
    buried bigint[];
BEGIN
    IF COALESCE(cardinality(pieces), 0) = 0 THEN
        RETURN;
    END IF;
    PERFORM finish_keys(queue, pieces);
    ids := ARRAY(SELECT c.waiting_id FROM unnest(copy_out(queue, pieces)) AS c);
    WITH stored AS (
        INSERT INTO dead_letters AS d (
            subscription_id, partition_id, sequence, history, event_id, key, type, content_type, headers, payload,
            created_at, reason, attempts, attempts_before)
        SELECT w.subscription_id, w.partition_id, w.sequence, w.history, w.event_id, w.key, w.type, w.content_type,
               w.headers, COALESCE(w.body, w.payload), w.created_at,
               CASE WHEN is_tombstone(w.payload, w.headers) THEN w.reason ELSE left(bury_pieces.reason, 2000) END,
               w.deliveries_before + GREATEST((
                   SELECT max(p.deliveries) FROM unnest(pieces) AS p
                   WHERE p.partition_id = w.partition_id AND w.sequence BETWEEN p.first_sequence AND p.last_sequence),
                   1),
               w.deliveries_before
        FROM queue_waiting AS w
        WHERE w.id = ANY (ids)
        ON CONFLICT ON CONSTRAINT dead_letters_pkey DO UPDATE
        SET reason = EXCLUDED.reason, attempts = GREATEST(d.attempts, EXCLUDED.attempts), died_at = EXCLUDED.died_at,
            redriven_at = NULL, forwarded_to = NULL, forwarded_as = NULL, not_forwarded = NULL
        RETURNING d.id
    )
    SELECT array_agg(s.id) INTO buried FROM stored AS s;
    DELETE FROM queue_waiting AS w WHERE w.id = ANY (ids);
    PERFORM forward_letters(queue.subscription_id, buried);
END
$$;

-- name: backoff_seconds
-- How long an event waits after so many failures: twice as long each time, up to the longest, less a random share.
CREATE OR REPLACE FUNCTION backoff_seconds(queue queues, failures integer) RETURNS double precision
LANGUAGE sql VOLATILE AS $$
    SELECT LEAST(queue.first_backoff_seconds * 2 ^ LEAST(failures - 1, 40), queue.longest_backoff_seconds)
           * (1 - queue.jitter * random())
$$;

-- name: require_body
-- Checks the length of a body that an event gets in place of its payload: the topic's limit holds. Raises PS004.
CREATE OR REPLACE FUNCTION require_body(part_id bigint, body bytea) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    longest integer := (SELECT t.max_payload_bytes FROM topics AS t WHERE t.id = part_id >> 16);
BEGIN
    IF octet_length(body) > longest THEN
        PERFORM refuse('PS004', format('the body has %s bytes, the limit of the topic is %s', octet_length(body),
                                       longest), 'Keep large data elsewhere and say where it is.');
    END IF;
END
$$;

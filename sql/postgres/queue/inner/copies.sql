-- name: copy_out
-- Copies the events of pieces out of the log, so that they can leave the window; returns them piece by piece, each with
-- its copy. An event that is in the log no longer is left out: retention has recorded that it was skipped.
CREATE OR REPLACE FUNCTION copy_out(queue queues, pieces queue_piece[]) RETURNS queue_piece[]
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
DECLARE
    copied queue_piece[];
BEGIN
    PERFORM await_erasures(queue.subscription_id, pieces);
    WITH stored AS (
        INSERT INTO queue_waiting (
            subscription_id, partition_id, sequence, history, deliveries, failures, reason, event_id, key, type,
            content_type, headers, payload, created_at, sequenced_at)
        SELECT queue.subscription_id, p.partition_id, l.sequence, current_history(), p.deliveries, 0, '',
               l.event_id, l.key, l.type, l.content_type, l.headers, l.payload, l.created_at, l.sequenced_at
        FROM unnest(pieces) AS p
        CROSS JOIN LATERAL read_log(p.partition_id, p.first_sequence,
                                    (p.last_sequence - p.first_sequence + 1)::integer) AS l
        WHERE p.waiting_id IS NULL
          AND l.sequence IN (SELECT u FROM unfinished(p.first_sequence, p.last_sequence, p.finished) AS u)
        RETURNING *
    )
    SELECT array_agg(ROW(p.entry, p.claim, p.partition_id, s.sequence, s.sequence, p.deliveries, p.deadline, NULL,
                         s.id)::queue_piece)
    INTO copied
    FROM stored AS s
    JOIN unnest(pieces) AS p
        ON p.waiting_id IS NULL AND p.partition_id = s.partition_id
        AND s.sequence BETWEEN p.first_sequence AND p.last_sequence;
    PERFORM carry_keys(queue, pieces, copied);
    RETURN COALESCE(copied, '{}') || ARRAY(SELECT p FROM unnest(pieces) AS p WHERE p.waiting_id IS NOT NULL);
END
$$;

-- name: drop_copies
-- Deletes the copies of events that are finished.
CREATE OR REPLACE FUNCTION drop_copies(pieces queue_piece[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    ids bigint[] := ARRAY(SELECT p.waiting_id FROM unnest(pieces) AS p WHERE p.waiting_id IS NOT NULL);
BEGIN
    IF ids <> '{}' THEN
        PERFORM await_erasures((SELECT w.subscription_id FROM queue_waiting AS w WHERE w.id = ids[1]), pieces);
        DELETE FROM queue_waiting AS w WHERE w.id = ANY (ids);
    END IF;
END
$$;

-- name: record_copies
-- Records the events out of the window that a purge is about to throw away and that its record of the log would not
-- have: the position has passed them.
CREATE OR REPLACE FUNCTION record_copies(owner_id bigint) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO queue_purges (subscription_id, partition_id, first_sequence, last_sequence, purged_by)
    SELECT owner_id, n.partition_id, min(n.sequence), max(n.sequence), principal()
    FROM (
        SELECT w.partition_id, w.sequence,
               w.sequence - dense_rank() OVER (PARTITION BY w.partition_id ORDER BY w.sequence) AS island
        FROM leases AS l
        CROSS JOIN LATERAL (SELECT current_position(l.subscription_id, l.partition_id) AS position) AS stands
        JOIN queue_waiting AS w
            ON w.subscription_id = l.subscription_id AND w.partition_id = l.partition_id
            AND w.sequence <= stands.position
        WHERE l.subscription_id = owner_id
    ) AS n
    GROUP BY n.partition_id, n.island
$$;

-- name: erase_copies
-- What erase_letters does, for the copies that queues have of events that wait or have a body of their own. Returns how
-- many. Raises PS027.
CREATE OR REPLACE FUNCTION erase_copies(held erasures, key text, max_rows integer) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    copy record;
    done bigint := 0;
BEGIN
    FOR copy IN
        SELECT w.id, w.partition_id, w.sequence
        FROM queue_waiting AS w
        WHERE w.partition_id BETWEEN held.topic_id << 16 AND (held.topic_id << 16) + 65535
          AND (w.event_id = held.event_id OR w.key = erase_copies.key)
          AND NOT EXISTS (
              SELECT FROM erasures AS z
              WHERE z.topic_id = held.topic_id AND w.payload = '' AND w.body IS NULL
                AND w.headers = erasure_mark(z.erasure) AND w.reason IN ('', erased_reason(z.erasure)))
        ORDER BY w.id
        LIMIT max_rows
        FOR UPDATE
    LOOP
        PERFORM require_unheld(copy.partition_id, ARRAY[copy.sequence]);
        UPDATE queue_waiting AS w
        SET payload = '', body = NULL, headers = erasure_mark(held.erasure), reason = erased_reason(held.erasure),
            key = CASE WHEN NOT held.replace_key THEN w.key END
        WHERE w.id = copy.id;
        done := done + 1;
    END LOOP;
    RETURN done;
END
$$;

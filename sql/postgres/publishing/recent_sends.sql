-- By design: MySQL gives the claim of an event that was refused back by a call; here the caller's savepoint does it.

-- name: claim_sends
-- Claims texts for events that the same transaction publishes next, for so many seconds. sends is an array of objects
-- with topic, send_key (1 to 64 letters of ASCII) and event_id, at most 1,000. Each place of the result is NULL when
-- the event is to be published, else the id of the event that has the text still; that can be an earlier one of the
-- same call. It does not prolong its time. Texts are claimed in sorted order, so that two calls never deadlock. A
-- claim that is over is overwritten in place. For a transaction that has a text open, it waits 100 ms.
-- Raises PS002, PS006, PS018.
CREATE OR REPLACE FUNCTION claim_sends(sends jsonb, seconds double precision) RETURNS uuid[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET lock_timeout = '100ms'
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off AS $$
DECLARE
    source_ids bigint[];
    send_keys text[];
    event_ids uuid[];
    is_known boolean;
    claimed integer[];
    originals uuid[];
BEGIN
    PERFORM require_read_committed('claim_sends()');
    PERFORM require_sends(sends, seconds);
    WITH given AS MATERIALIZED (
        SELECT g.send ->> 'topic' AS topic, g.send ->> 'send_key' AS send_key,
               (g.send ->> 'event_id')::uuid AS event_id, g.n
        FROM jsonb_array_elements(sends) WITH ORDINALITY AS g (send, n)
    ), asked AS MATERIALIZED (
        SELECT d.topic, require_topic_for(d.topic, 'publish') AS topic_id FROM (SELECT DISTINCT topic FROM given) AS d
    )
    SELECT array_agg(a.topic_id ORDER BY i.n), array_agg(i.send_key ORDER BY i.n), array_agg(i.event_id ORDER BY i.n),
           bool_and(a.topic_id IS NOT NULL AND i.event_id IS NOT NULL AND i.send_key ~ '^[!-~]{1,64}$')
    INTO source_ids, send_keys, event_ids, is_known
    FROM given AS i LEFT JOIN asked AS a ON a.topic = i.topic;
    IF NOT is_known THEN
        PERFORM refuse('PS006', 'a send has no topic, no event_id or no send_key of 1 to 64 letters of ASCII',
                       'Give all three to each.');
    END IF;
    WITH firsts AS MATERIALIZED (
        SELECT DISTINCT ON (g.topic_id, g.send_key) g.topic_id, g.send_key, g.event_id, g.n
        FROM (SELECT unnest(source_ids) AS topic_id, unnest(send_keys) COLLATE "C" AS send_key,
                     unnest(event_ids) AS event_id, generate_subscripts(source_ids, 1) AS n) AS g
        ORDER BY g.topic_id, g.send_key, g.n
    ), taken AS (
        INSERT INTO recent_sends AS r (topic_id, send_key, event_id, ends_at)
        SELECT f.topic_id, f.send_key, f.event_id, clock_timestamp() + make_interval(secs => seconds)
        FROM firsts AS f
        ORDER BY f.topic_id, f.send_key
        ON CONFLICT ON CONSTRAINT recent_sends_pkey DO UPDATE
        SET event_id = EXCLUDED.event_id, ends_at = clock_timestamp() + make_interval(secs => seconds)
        -- The clock is read after the wait for the row. A row that is not taken stays locked all the same.
        WHERE r.ends_at <= clock_timestamp()
        RETURNING r.topic_id, r.send_key
    )
    SELECT COALESCE(array_agg(f.n), '{}') INTO claimed
    FROM firsts AS f JOIN taken AS t ON t.topic_id = f.topic_id AND t.send_key = f.send_key;
    -- A separate statement: it sees what the transactions that it waited for have written.
    SELECT array_agg(CASE WHEN g.n <> ALL (claimed) THEN r.event_id END ORDER BY g.n) INTO originals
    FROM (SELECT unnest(source_ids) AS topic_id, unnest(send_keys) COLLATE "C" AS send_key,
                 generate_subscripts(source_ids, 1) AS n) AS g
    LEFT JOIN recent_sends AS r ON r.topic_id = g.topic_id AND r.send_key = g.send_key;
    RETURN COALESCE(originals, '{}');
END
$$;

-- name: forget_sends
-- Deletes claims that are over, at most max_rows (1 to 10,000), and returns how many. It goes on where the last call
-- ended, so that it does not step again over deleted rows that an old snapshot still keeps; once an hour it begins
-- anew, for claims of transactions that were open for longer than the claim. While another one is at it, it does
-- nothing. Raises PS006, PS018.
CREATE OR REPLACE FUNCTION forget_sends(max_rows integer DEFAULT 1000) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    present timestamptz := clock_timestamp();
    forgotten forgotten_sends%ROWTYPE;
    is_new_round boolean;
    removed bigint;
    newest timestamptz;
BEGIN
    PERFORM commit_durably();
    PERFORM require_read_committed('forget_sends()');
    IF max_rows IS NULL OR max_rows NOT BETWEEN 1 AND 10000 THEN
        PERFORM refuse('PS006', format('%s claims at once', max_rows), 'Use 1 to 10,000.');
    END IF;
    SELECT f.* INTO forgotten FROM forgotten_sends AS f FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    is_new_round := forgotten.begun_at <= present - interval '1 hour';
    IF is_new_round OR forgotten.up_to > present THEN
        forgotten.up_to := '-infinity';
    END IF;
    WITH due AS MATERIALIZED (
        SELECT r.topic_id, r.send_key, r.ends_at
        FROM recent_sends AS r
        WHERE r.ends_at >= forgotten.up_to AND r.ends_at <= present
        ORDER BY r.ends_at
        LIMIT max_rows
        FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM recent_sends AS r USING due AS d WHERE r.topic_id = d.topic_id AND r.send_key = d.send_key
        RETURNING d.ends_at
    )
    SELECT count(*), max(g.ends_at) INTO removed, newest FROM gone AS g;
    IF removed > 0 OR is_new_round THEN
        UPDATE forgotten_sends AS f
        SET up_to = CASE WHEN removed < max_rows THEN present ELSE newest END,
            begun_at = CASE WHEN is_new_round THEN present ELSE f.begun_at END;
    END IF;
    RETURN removed;
END
$$;

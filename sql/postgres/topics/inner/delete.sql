-- name: hold_sequencer
-- Waits for the pass of the sequencer that is under way and keeps the next one from beginning until the transaction
-- ends. The server ends a transaction that would delay the whole log for more than half a minute.
CREATE OR REPLACE FUNCTION hold_sequencer() RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM limit_transaction(30);
    PERFORM FROM sequencer FOR UPDATE;
END
$$;

-- name: lock_readers
-- The subscriptions that read one of the topics, locked so that none of them is deleted meanwhile: an unsubscribe
-- that is under way has to end first, or what is written for the subscription would remain after it. The caller has
-- locked the topics, so no subscription is added.
CREATE OR REPLACE FUNCTION lock_readers(topic_ids bigint[]) RETURNS bigint[]
LANGUAGE plpgsql AS $$
BEGIN
    RETURN ARRAY(
        SELECT s.id
        FROM subscriptions AS s
        WHERE s.id IN (SELECT r.subscription_id FROM subscription_topics AS r WHERE r.topic_id = ANY (topic_ids))
        ORDER BY s.id
        FOR KEY SHARE);
END
$$;

-- name: drop_topics
-- Deletes topics that the caller has locked. Their subscriptions continue without them. Their events are logically
-- gone at once, and the sequencer discards what transactions that still saw the topics publish to them. The sequencer
-- is held last, so that the log never waits for a consumer. Refused for a topic under a legal hold, and for one that a
-- subscription publishes its dead letters to. Raises PS020.
CREATE OR REPLACE FUNCTION drop_topics(topic_ids bigint[], with_subscriptions boolean) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    readers bigint[] := lock_readers(topic_ids);
    held record;
BEGIN
    SELECT h.name, t.address INTO held
    FROM legal_holds AS h JOIN topics AS t ON t.id = h.topic_id
    WHERE h.topic_id = ANY (topic_ids) AND h.released_at IS NULL
    ORDER BY h.placed_at, h.name
    LIMIT 1;
    IF FOUND THEN
        PERFORM refuse('PS020', format('the legal hold "%s" is on the topic "%s"', left(held.name, 200),
                                       left(held.address, 200)),
                       'Its events have to stay until the hold is released: penstock hold release.');
    END IF;
    PERFORM refuse_forwarding(topic_ids);
    IF readers <> '{}' AND with_subscriptions IS NOT TRUE THEN
        PERFORM refuse('PS020', told_subscription(readers[1]) || ' reads the topic',
                       'Unsubscribe first, or pass with_subscriptions => true: they go on without the topic.');
    END IF;
    PERFORM FROM subscriptions AS s WHERE s.id = ANY (readers) ORDER BY s.id FOR NO KEY UPDATE;
    PERFORM FROM leases AS l
    WHERE l.subscription_id = ANY (readers)
      AND l.partition_id IN (SELECT p.id FROM partitions AS p WHERE p.topic_id = ANY (topic_ids))
    ORDER BY l.subscription_id, l.partition_id
    FOR UPDATE;
    DELETE FROM leases AS l
    WHERE l.subscription_id = ANY (readers)
      AND l.partition_id IN (SELECT p.id FROM partitions AS p WHERE p.topic_id = ANY (topic_ids));
    DELETE FROM archive_readers AS a
    WHERE a.subscription_id = ANY (readers)
      AND a.partition_id IN (SELECT p.id FROM partitions AS p WHERE p.topic_id = ANY (topic_ids));
    DELETE FROM attempts AS a
    WHERE a.subscription_id = ANY (readers)
      AND a.partition_id IN (SELECT p.id FROM partitions AS p WHERE p.topic_id = ANY (topic_ids));
    DELETE FROM relay_marks AS k
    WHERE k.subscription_id = ANY (readers)
      AND k.partition_id IN (SELECT p.id FROM partitions AS p WHERE p.topic_id = ANY (topic_ids));
    DELETE FROM relay_floors AS f
    WHERE f.partition_id IN (SELECT p.id FROM partitions AS p WHERE p.topic_id = ANY (topic_ids));
    DELETE FROM left_out AS o
    WHERE o.subscription_id = ANY (readers)
      AND o.partition_id IN (SELECT p.id FROM partitions AS p WHERE p.topic_id = ANY (topic_ids));
    PERFORM forget_queue(r, ARRAY(SELECT p.id FROM partitions AS p WHERE p.topic_id = ANY (topic_ids)))
    FROM unnest(readers) AS r;
    -- After what the workers of queues have rejected until now.
    PERFORM FROM dead_letters AS d
    WHERE d.subscription_id = ANY (readers)
      AND d.partition_id IN (SELECT p.id FROM partitions AS p WHERE p.topic_id = ANY (topic_ids))
    ORDER BY d.subscription_id, d.partition_id, d.sequence, d.history  -- as lock_letters
    FOR UPDATE OF d;
    DELETE FROM dead_letters AS d
    WHERE d.subscription_id = ANY (readers)
      AND d.partition_id IN (SELECT p.id FROM partitions AS p WHERE p.topic_id = ANY (topic_ids));
    DELETE FROM letter_copies AS c WHERE c.topic_id = ANY (topic_ids);
    DELETE FROM letter_copies AS c
    USING unnest(topic_ids) AS g (id)
    WHERE c.partition_id BETWEEN g.id << 16 AND (g.id << 16) + 65535;
    DELETE FROM relay_arrivals AS a WHERE a.topic_id = ANY (topic_ids);
    DELETE FROM subscription_topics AS s WHERE s.topic_id = ANY (topic_ids);
    DELETE FROM retention_policies AS r WHERE r.topic_id = ANY (topic_ids);
    DELETE FROM bookmarks AS b WHERE b.topic_id = ANY (topic_ids);
    DELETE FROM topic_schemas AS s WHERE s.topic_id = ANY (topic_ids);
    DELETE FROM history_starts AS s
    WHERE s.partition_id IN (SELECT p.id FROM partitions AS p WHERE p.topic_id = ANY (topic_ids));
    DELETE FROM suspected_copies AS s
    WHERE s.partition_id IN (SELECT p.id FROM partitions AS p WHERE p.topic_id = ANY (topic_ids));
    -- The requests first: when they are gone, nothing is rehydrated any more.
    DELETE FROM backfill_requests AS b WHERE b.topic_id = ANY (topic_ids);
    DELETE FROM rehydrated_epochs AS e
    WHERE e.partition_id IN (SELECT p.id FROM partitions AS p WHERE p.topic_id = ANY (topic_ids));
    DELETE FROM rehydrated_events AS e
    WHERE e.partition_id IN (SELECT p.id FROM partitions AS p WHERE p.topic_id = ANY (topic_ids));
    -- This does not wait for publishers: a row that one still locks is left as it is.
    DELETE FROM strict_locks AS l WHERE (l.topic_id, l.bucket) IN (
        SELECT o.topic_id, o.bucket FROM strict_locks AS o WHERE o.topic_id = ANY (topic_ids) FOR UPDATE SKIP LOCKED);
    PERFORM forget_policies('topic', topic_ids);
    PERFORM refresh_policy(r) FROM unnest(readers) AS r;
    PERFORM hold_sequencer();
    INSERT INTO deleted_topics (topic_id, address, deleted_by)
    SELECT t.id, t.address, principal() FROM topics AS t WHERE t.id = ANY (topic_ids);
    UPDATE partitions AS p SET low_sequence = high_watermark(p.id) + 1 WHERE p.topic_id = ANY (topic_ids);
    DELETE FROM topics AS t WHERE t.id = ANY (topic_ids);
END
$$;

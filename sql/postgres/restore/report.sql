-- name: report_positions
-- Reports the positions that a program outside the database has seen: a sink, an archive, a registry or a client. If
-- a position lies beyond the log of the same history, a restore has lost commits, and the partition is stopped until
-- reconcile is called. It is stopped for all readers if the login may operate the topic, else for the subscription
-- that the caller names. Returns for each partition whether it is stopped, where the log ends, and the current
-- history: a caller that has another history has to find out where to continue. There is no row for a partition that
-- is gone, or that the login may not operate and the subscription does not read. Raises PS006, PS013, PS018.
CREATE OR REPLACE FUNCTION report_positions(
    partition_ids bigint[], sequences bigint[], histories integer[], source text, subscription text DEFAULT NULL
) RETURNS TABLE (partition_id bigint, stopped boolean, high_watermark bigint, present_history integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    given record;
    owner_id bigint := 0;
    may_operate boolean;
BEGIN
    PERFORM commit_durably();
    PERFORM require_read_committed('report_positions()');
    IF COALESCE(source, '') = '' OR EXISTS (
        SELECT FROM unnest(partition_ids, sequences, report_positions.histories) AS g (id, sequence, history)
        WHERE NOT COALESCE(g.id >= 0 AND g.sequence >= 0 AND g.history >= 1, false))
    THEN
        PERFORM refuse('PS006', format('cannot record positions %s of histories %s, seen by "%s"',
                                       left(sequences::text, 200), left(report_positions.histories::text, 200),
                                       left(source, 200)),
                       'For each partition, give the last sequence that was seen and its history. Name who saw it.');
    END IF;
    IF subscription IS NOT NULL THEN
        owner_id := (require_subscription(subscription)).id;
    END IF;
    present_history := current_history();
    FOR given IN
        SELECT p.id, g.sequence, g.history, t.restricted, t.namespace_id,
               EXISTS (SELECT FROM leases AS l WHERE l.subscription_id = owner_id AND l.partition_id = p.id) AS is_read
        FROM unnest(partition_ids, sequences, report_positions.histories) AS g (id, sequence, history)
        JOIN partitions AS p ON p.id = g.id
        JOIN topics AS t ON t.id = p.topic_id
        ORDER BY p.id
    LOOP
        may_operate := NOT given.restricted AND (SELECT as_login()) OR has_right(given.namespace_id, 'operate');
        CONTINUE WHEN NOT may_operate AND NOT given.is_read;
        partition_id := given.id;
        high_watermark := high_watermark(given.id);
        IF given.history > present_history OR (given.history = present_history AND given.sequence > high_watermark) THEN
            INSERT INTO stops AS s (partition_id, subscription_id, sequence, history, source)
            VALUES (given.id, CASE WHEN may_operate THEN 0 ELSE owner_id END, given.sequence, given.history,
                    left(report_positions.source, 500))
            ON CONFLICT ON CONSTRAINT stops_pkey DO UPDATE
            SET sequence = EXCLUDED.sequence, history = EXCLUDED.history, source = EXCLUDED.source
            WHERE (EXCLUDED.history, EXCLUDED.sequence) > (s.history, s.sequence);
        END IF;
        stopped := EXISTS (
            SELECT FROM stops AS s
            WHERE s.partition_id = given.id AND s.subscription_id IN (0, owner_id) AND s.history >= present_history);
        RETURN NEXT;
    END LOOP;
END
$$;

-- name: restore_status
-- What is beyond the end of the log after a restore: stopped partitions, and positions of subscriptions. Without those
-- of topics and subscriptions that the login may not see.
CREATE OR REPLACE FUNCTION restore_status()
RETURNS TABLE (
    topic text, partition integer, high_watermark bigint, sequence bigint, history integer, source text,
    reported_at timestamptz
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT t.address, p.number, high_watermark(p.id), beyond.sequence, beyond.history, beyond.source, beyond.reported_at
    FROM (
        SELECT s.partition_id, s.sequence, s.history,
               s.source || COALESCE(' (stops "' || o.name || '" alone)', '') AS source, s.reported_at
        FROM stops AS s LEFT JOIN subscriptions AS o ON o.id = s.subscription_id
        WHERE s.history >= current_history() AND (o.id IS NULL OR NOT reads_hidden(o.id))
        UNION ALL
        SELECT l.partition_id, current_position(l.subscription_id, l.partition_id), current_history(),
               format('subscription "%s"', o.name), NULL
        FROM leases AS l JOIN subscriptions AS o ON o.id = l.subscription_id
        WHERE current_position(l.subscription_id, l.partition_id) > high_watermark(l.partition_id)
          AND NOT reads_hidden(o.id)
    ) AS beyond
    JOIN partitions AS p ON p.id = beyond.partition_id
    JOIN topics AS t ON t.id = p.topic_id
    WHERE NOT t.restricted AND (SELECT as_login()) OR has_right(t.namespace_id, 'any')
    ORDER BY t.address, p.number, beyond.source
$$;

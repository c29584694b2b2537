-- name: open_history
-- Begins the next line of history. What was read in the one before may be another event now: so everybody who holds a lease loses
-- it, and learns position and history anew; positions beyond the log are brought back to its end; what was stopped goes on.
-- lease_epoch rises above all that the lost time can have given out. The caller holds the sequencer's row.
CREATE OR REPLACE FUNCTION open_history(reason text) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    opened integer;
    lease record;
BEGIN
    -- No id of a topic is given twice, whatever became of the counter: a topic with that of a deleted one would have its events
    -- discarded, and be taken for it outside.
    PERFORM setval('topics_id_seq', known.id)
    FROM (SELECT GREATEST((SELECT max(t.id) FROM topics AS t), (SELECT max(d.topic_id) FROM deleted_topics AS d)) AS id) AS known,
         topics_id_seq AS counter
    WHERE known.id >= counter.last_value;
    INSERT INTO histories (history, reason) SELECT max(h.history) + 1, left(open_history.reason, 2000) FROM histories AS h
    RETURNING histories.history INTO opened;
    FOR lease IN
        SELECT l.* FROM leases AS l ORDER BY l.subscription_id, l.partition_id FOR UPDATE
    LOOP
        lease.lease_epoch := GREATEST(lease.lease_epoch, opened::bigint << 32) + 1;
        UPDATE leases AS l
        SET state = 'AVAILABLE', holder = NULL, acquired_at = NULL, release_deadline = NULL, lease_epoch = lease.lease_epoch
        WHERE l.subscription_id = lease.subscription_id AND l.partition_id = lease.partition_id;
        IF lease.holder IS NOT NULL THEN
            INSERT INTO lease_history (subscription_id, partition_id, lease_epoch, holder, change, at)
            VALUES (lease.subscription_id, lease.partition_id, lease.lease_epoch, lease.holder, 'history', clock_timestamp());
        END IF;
        INSERT INTO positions (subscription_id, partition_id, position, lease_epoch, reason)
        SELECT lease.subscription_id, lease.partition_id, high_watermark(lease.partition_id), lease.lease_epoch, 'history'
        WHERE current_position(lease.subscription_id, lease.partition_id) > high_watermark(lease.partition_id);
    END LOOP;
    DELETE FROM stops;
    RETURN opened;
END
$$;

-- name: reconcile
-- After a restore that lost commits: opens the next history, so that no sequence stands for two events within one, and lets
-- stopped partitions go on. Answers its number. Raises PS006, PS018.
CREATE OR REPLACE FUNCTION reconcile(reason text) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM require_read_committed('reconcile()');
    IF COALESCE(reason, '') ~ '^\s*$' THEN
        PERFORM refuse('PS006', 'a history without a reason', 'Say what was restored, and from when.');
    ELSIF char_length(reason) > 1000 THEN
        PERFORM refuse('PS006', format('the reason of a history has %s characters', char_length(reason)),
                       'Use at most 1,000 characters.');
    END IF;
    -- The sequencer last, as a deletion does: the log waits for no consumer that is inside a transaction.
    PERFORM FROM leases AS l ORDER BY l.subscription_id, l.partition_id FOR UPDATE;
    PERFORM FROM sequencer FOR UPDATE;
    RETURN open_history(reason);
END
$$;

-- name: report_positions
-- What somebody outside of the database has seen of some partitions: a sink, an archive, a registry, a client. If one lies beyond the
-- log of the same history, a restore lost commits, and the partition is stopped until it is reconciled: for all readers where the
-- login may operate the topic, else for the subscription that it reports for. Answers of each partition whether it is stopped,
-- where the log ends, and its present history: who comes with another one has to look where to go on. No row of a partition that is
-- gone, or that the login may not operate and the subscription does not read. Raises PS006, PS013, PS018.
CREATE OR REPLACE FUNCTION report_positions(
    partition_ids bigint[], sequences bigint[], histories integer[], source text, subscription text DEFAULT NULL
) RETURNS TABLE (partition_id bigint, stopped boolean, high_watermark bigint, present_history integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    given record;
    owner_id bigint := 0;
    may_operate boolean;
BEGIN
    PERFORM require_read_committed('report_positions()');
    IF COALESCE(source, '') = '' OR EXISTS (
        SELECT FROM unnest(partition_ids, sequences, report_positions.histories) AS g (id, sequence, history)
        WHERE NOT COALESCE(g.id >= 0 AND g.sequence >= 0 AND g.history >= 1, false))
    THEN
        PERFORM refuse('PS006', format('positions %s of histories %s, seen by "%s"', left(sequences::text, 200),
                                       left(report_positions.histories::text, 200), left(source, 200)),
                       'Report of each partition the last sequence that was seen and its history, and by whom.');
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
        may_operate := NOT given.restricted OR has_right(given.namespace_id, 'operate');
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
-- What lies beyond the log: partitions that are stopped, and positions of subscriptions.
CREATE OR REPLACE FUNCTION restore_status()
RETURNS TABLE (
    topic text, partition integer, high_watermark bigint, sequence bigint, history integer, source text,
    reported_at timestamptz
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT t.address, p.number, high_watermark(p.id), beyond.sequence, beyond.history, beyond.source, beyond.reported_at
    FROM (
        SELECT s.partition_id, s.sequence, s.history, s.source || COALESCE(' (stops "' || o.name || '" alone)', '') AS source,
               s.reported_at
        FROM stops AS s LEFT JOIN subscriptions AS o ON o.id = s.subscription_id
        WHERE s.history >= current_history()
        UNION ALL
        SELECT l.partition_id, current_position(l.subscription_id, l.partition_id), current_history(),
               format('subscription "%s"', o.name), NULL
        FROM leases AS l JOIN subscriptions AS o ON o.id = l.subscription_id
        WHERE current_position(l.subscription_id, l.partition_id) > high_watermark(l.partition_id)
    ) AS beyond
    JOIN partitions AS p ON p.id = beyond.partition_id
    JOIN topics AS t ON t.id = p.topic_id
    ORDER BY t.address, p.number, beyond.source
$$;

-- name: histories_of
-- The lines of the log's history, and why each began.
CREATE OR REPLACE FUNCTION histories_of() RETURNS TABLE (history integer, reason text, opened_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT h.history, h.reason, h.opened_at FROM histories AS h ORDER BY h.history
$$;

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
    IF COALESCE(btrim(reason), '') = '' THEN
        PERFORM refuse('PS006', 'a history without a reason', 'Say what was restored, and from when.');
    END IF;
    PERFORM FROM sequencer FOR UPDATE;
    RETURN open_history(reason);
END
$$;

-- name: report_position
-- What somebody outside of the database has seen of a partition: a sink, an archive, a registry, a client. If that lies beyond the
-- log of the same history, a restore lost commits, and nobody reads the partition until it is reconciled. Answers whether it
-- is stopped, where the log ends, and its present history: who comes with another one has to look where to go on.
-- Raises PS002, PS005, PS006, PS018.
CREATE OR REPLACE FUNCTION report_position(
    topic text, partition integer, sequence bigint, history integer, source text,
    OUT stopped boolean, OUT high_watermark bigint, OUT present_history integer
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    source_id bigint := require_partition(report_position.topic, report_position.partition);
BEGIN
    PERFORM require_read_committed('report_position()');
    IF sequence IS NULL OR sequence < 0 OR history IS NULL OR history < 1 OR COALESCE(source, '') = '' THEN
        PERFORM refuse('PS006', format('position %s of history %s, seen by "%s"', sequence, history, source),
                       'Report the last sequence that was seen, the history that came with it, and by whom.');
    END IF;
    high_watermark := high_watermark(source_id);
    present_history := current_history();
    IF history > present_history OR (history = present_history AND sequence > high_watermark) THEN
        INSERT INTO stops AS s (partition_id, sequence, history, source)
        VALUES (source_id, report_position.sequence, report_position.history, left(report_position.source, 500))
        ON CONFLICT ON CONSTRAINT stops_pkey DO UPDATE
        SET sequence = EXCLUDED.sequence, history = EXCLUDED.history, source = EXCLUDED.source
        WHERE EXCLUDED.history > s.history OR EXCLUDED.sequence > s.sequence;
    END IF;
    stopped := EXISTS (SELECT FROM stops AS s WHERE s.partition_id = source_id AND s.history >= present_history);
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
        SELECT s.partition_id, s.sequence, s.history, s.source, s.reported_at FROM stops AS s
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

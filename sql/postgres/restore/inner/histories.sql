-- name: open_history
-- Begins the next history. A sequence that was read in the history before may be another event now. So every holder
-- loses its lease and has to ask for position and history again. Positions beyond the log are moved back to its end,
-- bookmarks beyond it are marked as lost, and stopped partitions continue. lease_epoch rises above every value that can
-- have been given out in the lost time. The caller has locked the sequencer's row.
CREATE OR REPLACE FUNCTION open_history(reason text) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    opened integer;
    lease record;
BEGIN
    PERFORM raise_counters(true);
    INSERT INTO histories (history, reason)
    SELECT max(h.history) + 1, left(open_history.reason, 2000)
    FROM histories AS h
    RETURNING histories.history INTO opened;
    INSERT INTO history_starts (partition_id, history, position)
    SELECT p.id, opened, high_watermark(p.id) FROM partitions AS p;
    FOR lease IN
        SELECT l.* FROM leases AS l ORDER BY l.subscription_id, l.partition_id FOR UPDATE
    LOOP
        lease.lease_epoch := GREATEST(lease.lease_epoch, opened::bigint << 32) + 1;
        UPDATE leases AS l
        SET state = 'AVAILABLE', holder = NULL, acquired_at = NULL, release_deadline = NULL,
            lease_epoch = lease.lease_epoch
        WHERE l.subscription_id = lease.subscription_id AND l.partition_id = lease.partition_id;
        IF lease.holder IS NOT NULL THEN
            INSERT INTO lease_history (subscription_id, partition_id, lease_epoch, holder, change, at)
            VALUES (lease.subscription_id, lease.partition_id, lease.lease_epoch, lease.holder, 'history',
                    clock_timestamp());
        END IF;
        INSERT INTO positions (subscription_id, partition_id, position, lease_epoch, reason, reached)
        SELECT o.subscription_id, o.partition_id, LEAST(o.position, w.watermark), lease.lease_epoch, 'history',
               w.watermark
        FROM positions AS o
        CROSS JOIN LATERAL (SELECT high_watermark(lease.partition_id) AS watermark) AS w
        WHERE o.id = (newest_row(lease.subscription_id, lease.partition_id)).id
          AND GREATEST(o.position, o.reached) > w.watermark;
        IF FOUND THEN
            PERFORM cut_back(lease.subscription_id, lease.partition_id, high_watermark(lease.partition_id));
            PERFORM send_after(lease.subscription_id, lease.partition_id, high_watermark(lease.partition_id));
        END IF;
    END LOOP;
    PERFORM cut_relays_back();
    UPDATE bookmarks AS b SET lost_in = opened
    WHERE b.lost_in IS NULL AND b.position > high_watermark(b.partition_id);
    DELETE FROM stops;
    RETURN opened;
END
$$;

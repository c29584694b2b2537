-- name: purge
-- Throws away all that a queue has not finished, what waits included; dead letters stay. Receipts that are out are good
-- no longer. Records what was thrown away of each partition. Returns how many events that were. Raises PS013, PS018,
-- PS042.
CREATE OR REPLACE FUNCTION purge(subscription text) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    queue queues%ROWTYPE := require_queue(subscription, 'operate');
    size bigint;
BEGIN
    PERFORM commit_durably();
    PERFORM require_read_committed('purge()');
    PERFORM FROM queues AS q WHERE q.subscription_id = queue.subscription_id FOR NO KEY UPDATE;
    PERFORM FROM leases AS l WHERE l.subscription_id = queue.subscription_id ORDER BY l.partition_id FOR NO KEY UPDATE;
    SELECT c.ready + c.in_flight + c.delayed INTO size FROM queue_counts(queue.subscription_id) AS c;
    -- In the order of workers, who lock the claims of a call by their ids.
    PERFORM FROM queue_ranges AS r WHERE r.subscription_id = queue.subscription_id ORDER BY r.id FOR UPDATE;
    DELETE FROM queue_ranges AS r WHERE r.subscription_id = queue.subscription_id;
    PERFORM record_copies(queue.subscription_id);
    -- In the order of an erasure.
    PERFORM FROM queue_waiting AS w WHERE w.subscription_id = queue.subscription_id ORDER BY w.id FOR UPDATE;
    DELETE FROM queue_waiting AS w WHERE w.subscription_id = queue.subscription_id;
    DELETE FROM queue_keys AS k WHERE k.subscription_id = queue.subscription_id;
    -- What was put back, or came to its turn, while the first DELETE waited. Who has it locked may wait for us.
    DELETE FROM queue_ranges AS r
    WHERE r.id IN (
        SELECT n.id FROM queue_ranges AS n WHERE n.subscription_id = queue.subscription_id FOR UPDATE SKIP LOCKED);
    WITH ended AS (
        SELECT l.partition_id, l.lease_epoch, stands.position, high_watermark(l.partition_id) AS watermark
        FROM leases AS l
        CROSS JOIN LATERAL (SELECT current_position(l.subscription_id, l.partition_id) AS position) AS stands
        WHERE l.subscription_id = queue.subscription_id AND high_watermark(l.partition_id) > stands.position
    ), recorded AS (
        INSERT INTO queue_purges (subscription_id, partition_id, first_sequence, last_sequence, purged_by)
        SELECT queue.subscription_id, e.partition_id, e.position + 1, e.watermark, principal() FROM ended AS e
    )
    INSERT INTO positions (subscription_id, partition_id, position, lease_epoch, reason, reached)
    SELECT queue.subscription_id, e.partition_id, e.watermark, e.lease_epoch, 'queue', e.watermark
    FROM ended AS e;
    RETURN size;
END
$$;

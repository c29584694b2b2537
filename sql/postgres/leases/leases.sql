-- name: held_leases
-- The leases that a consumer holds, each with the position after which to read.
CREATE OR REPLACE FUNCTION held_leases(subscription text, consumer text)
RETURNS TABLE (
    topic text, partition integer, partition_id bigint, lease_epoch bigint, state text, "position" bigint,
    history integer
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off AS $$
BEGIN
    RETURN QUERY
    SELECT t.address, p.number, p.id, l.lease_epoch, l.state, current_position(l.subscription_id, p.id),
           current_history()
    FROM leases AS l
    JOIN partitions AS p ON p.id = l.partition_id
    JOIN topics AS t ON t.id = p.topic_id
    -- A separate query comes first: in a join, the leases of all subscriptions may be read where statistics say that
    -- most belong to one.
    WHERE l.subscription_id = (SELECT s.id FROM subscriptions AS s WHERE s.name = held_leases.subscription)
      AND l.holder = held_leases.consumer
      AND (NOT t.restricted AND (SELECT as_login()) OR has_right(t.namespace_id, 'consume'))
    ORDER BY p.id;
END
$$;

-- name: release
-- Gives single leases back, in response to RELEASING or because a consumer has no use for them. A lease that is no
-- longer held is skipped. Returns how many were freed.
CREATE OR REPLACE FUNCTION release(subscription text, consumer text, partition_ids bigint[], lease_epochs bigint[])
RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner subscriptions%ROWTYPE := require_subscription(subscription);
    freed integer;
BEGIN
    WITH locked AS (
        SELECT l.partition_id, l.lease_epoch
        FROM leases AS l
        JOIN unnest(partition_ids, lease_epochs) AS given (partition_id, lease_epoch)
            ON given.partition_id = l.partition_id AND given.lease_epoch = l.lease_epoch
        WHERE l.subscription_id = owner.id AND l.holder = consumer
        ORDER BY l.partition_id
        FOR UPDATE OF l
    ), freed_rows AS (
        UPDATE leases AS l
        SET state = 'AVAILABLE', holder = NULL, acquired_at = NULL, release_deadline = NULL
        FROM locked
        WHERE l.subscription_id = owner.id AND l.partition_id = locked.partition_id
        RETURNING l.partition_id, l.lease_epoch
    )
    INSERT INTO lease_history (subscription_id, partition_id, lease_epoch, holder, change, at)
    SELECT owner.id, f.partition_id, f.lease_epoch, consumer, 'released', clock_timestamp() FROM freed_rows AS f;
    GET DIAGNOSTICS freed = ROW_COUNT;
    RETURN freed;
END
$$;

-- name: take_overs
-- How often another consumer acquired a lease after its holder's time had run out.
CREATE OR REPLACE FUNCTION take_overs(subscription text) RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT count(*)
    FROM lease_history AS lost
    JOIN subscriptions AS s ON s.id = lost.subscription_id
    JOIN lease_history AS taken
        ON taken.subscription_id = lost.subscription_id AND taken.partition_id = lost.partition_id
        AND taken.change = 'acquired' AND taken.lease_epoch = lost.lease_epoch + 1 AND taken.holder <> lost.holder
    WHERE s.name = take_overs.subscription AND lost.change = 'expired' AND NOT reads_hidden(s.id)
$$;

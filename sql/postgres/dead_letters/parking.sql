-- name: parked_keys
-- The keys whose events wait, in partitions that the subscription reads: later events of such a key must not
-- go to the handler.
CREATE OR REPLACE FUNCTION parked_keys(subscription text, partition_ids bigint[])
RETURNS TABLE (partition_id bigint, key text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner_id bigint := (require_subscription(subscription)).id;
BEGIN
    RETURN QUERY
    SELECT DISTINCT d.partition_id, d.key
    FROM dead_letters AS d
    WHERE d.subscription_id = owner_id AND d.partition_id = ANY (partition_ids) AND d.parked
    ORDER BY d.partition_id, d.key;
END
$$;

-- name: commit_parking
-- A commit of one partition that parks some of the events it passes, because their keys wait. after is the position
-- after which the events were read. Raises PS006, PS010, PS011, PS012, PS013, PS016, PS018, PS040.
CREATE OR REPLACE FUNCTION commit_parking(
    subscription text, consumer text, partition_id bigint, lease_epoch bigint, "position" bigint, after bigint,
    sequences bigint[]
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner_id bigint := (require_subscription(subscription)).id;
BEGIN
    PERFORM commit_durably();
    IF after IS NULL OR COALESCE(cardinality(sequences), 0) = 0 OR EXISTS (
        SELECT FROM unnest(sequences) AS s (sequence)
        GROUP BY s.sequence
        HAVING count(*) > 1 OR NOT COALESCE(s.sequence > after AND s.sequence <= commit_parking.position, false))
    THEN
        PERFORM refuse('PS006', 'a commit parks only events that it passes, each once',
                       'Pass the position that they were read after, and sequences between it and the new position.');
    END IF;
    PERFORM "commit"(subscription, consumer, ARRAY[commit_parking.partition_id], ARRAY[commit_parking.lease_epoch],
                     ARRAY[commit_parking.position], ARRAY[after]);
    PERFORM store_letters(owner_id, commit_parking.partition_id, sequences, 'waits behind an earlier event of its key',
                          0, true, true);
END
$$;

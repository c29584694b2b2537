-- name: commit
-- Moves positions forward, all or none, in the caller's transaction: what else that transaction writes takes effect
-- exactly once. positions are the last sequences that were handled. after are the positions after which the events
-- were read: a reader that lost its connection during the last COMMIT may read events again, but must not handle them
-- twice. Raises PS006, PS010, PS011, PS012, PS013, PS018, PS021.
CREATE OR REPLACE FUNCTION "commit"(
    subscription text, consumer text, partition_ids bigint[], lease_epochs bigint[], positions bigint[],
    after bigint[] DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner subscriptions%ROWTYPE := require_subscription(subscription);
    bad record;
BEGIN
    IF COALESCE(cardinality(partition_ids), 0) = 0 OR cardinality(partition_ids) <> cardinality(lease_epochs)
        OR cardinality(partition_ids) <> cardinality("commit".positions)
        OR cardinality(partition_ids) <> cardinality("commit".after) THEN
        PERFORM refuse('PS006', 'a commit needs one lease_epoch and one position for each of its partitions',
                       'Pass arrays of the same length, at least one long.');
    ELSIF cardinality(partition_ids) <> (SELECT count(DISTINCT p.id) FROM unnest(partition_ids) AS p (id)) THEN
        -- It would be chance which of two positions came last, and a position could move back.
        PERFORM refuse('PS006', 'a commit names a partition twice, or a NULL',
                       'Pass the last position of each partition.');
    END IF;
    PERFORM hold_leases(owner, consumer, partition_ids, lease_epochs);
    SELECT given.*, stored.position AS present, high_watermark(given.partition_id) AS watermark,
           stored.id > counter.given_id AS is_set_back INTO bad
    FROM (SELECT c.last_value - (NOT c.is_called)::integer AS given_id FROM positions_id AS c) AS counter,
        unnest(partition_ids, "commit".positions, "commit".after) AS given (partition_id, wanted, read_after)
    CROSS JOIN LATERAL newest_row(owner.id, given.partition_id) AS stored
    WHERE given.wanted IS NULL OR given.wanted <= stored.position OR given.read_after <> stored.position
       OR given.wanted > high_watermark(given.partition_id) OR stored.id > counter.given_id
    ORDER BY given.partition_id
    LIMIT 1;
    IF FOUND AND bad.is_set_back THEN
        PERFORM refuse_set_back('positions_id');
    ELSIF FOUND AND (bad.wanted IS NULL OR bad.wanted <= bad.present) THEN
        PERFORM refuse('PS011', format('position %s of partition %s is not after %s', bad.wanted,
                                       bad.partition_id & 65535, bad.present),
                       'Positions only move forward; use seek to go back.');
    ELSIF FOUND AND bad.read_after <> bad.present THEN
        PERFORM refuse('PS011', format('partition %s stands at %s, but the events were read after %s',
                                       bad.partition_id & 65535, bad.present, bad.read_after),
                       'The position was moved in between: roll back and read again.');
    ELSIF FOUND THEN
        PERFORM refuse('PS012', format('position %s of partition %s is beyond the high watermark %s', bad.wanted,
                                       bad.partition_id & 65535, bad.watermark),
                       'Commit only what was read.');
    END IF;
    INSERT INTO positions (subscription_id, partition_id, position, lease_epoch, reason)
    SELECT owner.id, given.partition_id, given.wanted, given.lease_epoch, 'commit'
    FROM unnest(partition_ids, lease_epochs, "commit".positions) AS given (partition_id, lease_epoch, wanted);
END
$$;

-- name: rejected_commits
-- How many commits the fence has refused since the installation, for all subscriptions; NULL for a login that does
-- not pass the walls.
CREATE OR REPLACE FUNCTION rejected_commits() RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT CASE WHEN NOT sees_all() THEN NULL WHEN s.is_called THEN s.last_value + 1 ELSE 0 END
    FROM rejected_commits AS s
$$;

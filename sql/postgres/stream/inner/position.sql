-- name: current_position
-- The newest position in the ledger; NULL when the subscription does not read the partition.
CREATE OR REPLACE FUNCTION current_position(subscription_id bigint, partition_id bigint) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN p.position
    FROM positions AS p
    WHERE p.subscription_id = current_position.subscription_id AND p.partition_id = current_position.partition_id
    ORDER BY p.id DESC
    LIMIT 1;
END
$$;

-- name: newest_row
-- The newest position in the ledger and the number of its row; NULL when the subscription does not read the partition.
CREATE OR REPLACE FUNCTION newest_row(subscription_id bigint, partition_id bigint, OUT id bigint, OUT "position" bigint)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    SELECT p.id, p.position
    INTO id, "position"
    FROM positions AS p
    WHERE p.subscription_id = newest_row.subscription_id AND p.partition_id = newest_row.partition_id
    ORDER BY p.id DESC
    LIMIT 1;
END
$$;

-- name: refuse_set_back
-- Refuses to write a position that no reader would find (PS021): the newest row is the one with the highest
-- number, and the counter is below that.
CREATE OR REPLACE FUNCTION refuse_set_back(counter text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM refuse(
        'PS021',
        format('the counter %s is below numbers that it gave out before: something has set it back', counter),
        'After a restore or a failover: penstock restore reconcile raises it.');
END
$$;

-- name: move_position
-- Sets the position of a partition whose topic and lease row the caller has locked, raises lease_epoch and takes the
-- lease from its holder, whose later commits are refused as stale. Raises PS006, PS012, PS016, PS021.
CREATE OR REPLACE FUNCTION move_position(present leases, start text) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    wanted bigint;
    stood_at bigint := current_position(present.subscription_id, present.partition_id);
BEGIN
    IF (newest_row(present.subscription_id, present.partition_id)).id > (
        SELECT c.last_value - (NOT c.is_called)::integer FROM positions_id AS c)
    THEN
        PERFORM refuse_set_back('positions_id');
    END IF;
    SELECT start_position(p.id, p.low_sequence, start) INTO wanted
    FROM partitions AS p
    WHERE p.id = present.partition_id;
    UPDATE leases AS l
    SET state = 'AVAILABLE', holder = NULL, lease_epoch = l.lease_epoch + 1, acquired_at = NULL, release_deadline = NULL
    WHERE l.subscription_id = present.subscription_id AND l.partition_id = present.partition_id;
    INSERT INTO lease_history (subscription_id, partition_id, lease_epoch, holder, change, at)
    VALUES (present.subscription_id, present.partition_id, present.lease_epoch + 1, COALESCE(present.holder, ''),
            'seek', clock_timestamp());
    INSERT INTO positions (subscription_id, partition_id, position, lease_epoch, reason)
    VALUES (present.subscription_id, present.partition_id, wanted, present.lease_epoch + 1, 'seek');
    PERFORM send_after(present.subscription_id, present.partition_id, wanted);
    IF wanted < stood_at THEN
        PERFORM keep_passed(present.subscription_id, present.partition_id, stood_at);
        PERFORM end_block(present.subscription_id, present.partition_id, wanted + 1);
    END IF;
    -- A position that moves back gives its events new attempts.
    DELETE FROM attempts AS a
    WHERE a.subscription_id = present.subscription_id AND a.partition_id = present.partition_id;
    RETURN wanted;
END
$$;

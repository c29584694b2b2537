-- name: hold_leases
-- The fence. Locks the lease rows, in key order, to the end of the caller's transaction; take-over needs the same
-- lock. A check without the lock would allow a write skew: a zombie that checks before the take-over and commits
-- after it would be accepted. Counts a refusal in a sequence, which the refusal cannot roll back. Without a consumer
-- (NULL) the leases are those of another store: nobody may hold them here, and mark_low_water must have told of this
-- lease_epoch and of no higher one. Raises PS010, PS018.
CREATE OR REPLACE FUNCTION hold_leases(
    owner subscriptions, consumer text, partition_ids bigint[], lease_epochs bigint[]
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    held integer;
    left_seconds double precision;
BEGIN
    PERFORM require_read_committed('a commit');
    SELECT count(*) INTO held
    FROM (
        SELECT l.partition_id
        FROM leases AS l
        JOIN unnest(partition_ids, lease_epochs) AS given (partition_id, lease_epoch)
            ON given.partition_id = l.partition_id AND given.lease_epoch = l.lease_epoch
        WHERE l.subscription_id = owner.id AND l.holder IS NOT DISTINCT FROM consumer
        ORDER BY l.partition_id
        FOR NO KEY UPDATE OF l
    ) AS locked;
    IF consumer IS NULL THEN
        left_seconds := owner.lease_seconds;
    ELSE
        SELECT extract(epoch FROM c.deadline - clock_timestamp()) INTO left_seconds
        FROM consumers AS c
        WHERE c.subscription_id = owner.id AND c.id = consumer;
    END IF;
    IF held <> cardinality(partition_ids) OR left_seconds IS NULL OR left_seconds <= 0 THEN
        PERFORM nextval('rejected_commits');
        PERFORM refuse('PS010', COALESCE('consumer "' || consumer || '"', 'the holder in another store')
                                || format(' no longer holds these leases of "%s"', owner.name),
                       'Drop what was read, roll back, and check in: another consumer may already have taken over.');
    END IF;
    PERFORM limit_transaction(left_seconds);
END
$$;

-- name: limit_transaction
-- Sets a limit that ends the session if the transaction that now locks a lease row lasts longer than the lease.
-- Otherwise a paused consumer would make its successor wait without limit. It never raises a limit that the caller
-- has set.
CREATE OR REPLACE FUNCTION limit_transaction(left_seconds double precision) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    allowed double precision := GREATEST(floor(left_seconds * 950), 1);
    given text := current_setting('idle_in_transaction_session_timeout');
    set_to text;  -- an assignment costs a third of what PERFORM does, which begins a query
BEGIN
    IF given = '0' OR 1000 * extract(epoch FROM given::interval) > allowed THEN
        set_to := set_config('idle_in_transaction_session_timeout', allowed || 'ms', true);
    END IF;
    IF current_setting('server_version_num')::integer < 170000 THEN
        RETURN;
    END IF;
    given := current_setting('transaction_timeout');
    IF given = '0' THEN
        set_to := set_config('transaction_timeout', allowed || 'ms', true);
    ELSIF 1000 * extract(epoch FROM given::interval - (clock_timestamp() - transaction_timestamp())) > allowed THEN
        -- A new value does not restart a running timer; it has to be switched off first.
        set_to := set_config('transaction_timeout', '0', true);
        set_to := set_config('transaction_timeout', allowed || 'ms', true);
    END IF;
END
$$;

-- name: claim
-- Leases one partition that no live consumer holds, if lease_epoch is still the one that the caller has seen. Returns
-- the position, or NULL when another consumer was faster, a zombie's transaction still locks the lease, or the
-- subscription is paused. Raises PS013, PS014.
CREATE OR REPLACE FUNCTION claim(
    subscription text, consumer text, session uuid, partition_id bigint, lease_epoch bigint
)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner subscriptions%ROWTYPE := require_subscription(subscription);
    present leases%ROWTYPE;
    now timestamptz;
BEGIN
    PERFORM commit_durably();
    PERFORM FROM subscriptions AS s WHERE s.id = owner.id FOR NO KEY UPDATE;
    PERFORM require_member(owner, consumer, session);
    IF is_paused(owner.id) THEN
        RETURN NULL;
    END IF;
    SELECT * INTO present
    FROM leases AS l
    WHERE l.subscription_id = owner.id AND l.partition_id = claim.partition_id AND l.lease_epoch = claim.lease_epoch
    FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    now := clock_timestamp();
    -- Locked, because a heartbeat that is under way may keep the holder alive.
    PERFORM FROM consumers AS c
    WHERE c.subscription_id = owner.id AND c.id = present.holder AND c.deadline > now
    FOR UPDATE;
    IF FOUND THEN
        RETURN NULL;
    END IF;
    INSERT INTO lease_history (subscription_id, partition_id, lease_epoch, holder, change, at)
    SELECT owner.id, claim.partition_id, present.lease_epoch, present.holder, 'expired', now
    WHERE present.holder IS NOT NULL;
    UPDATE leases AS l
    SET state = 'ACTIVE', holder = consumer, lease_epoch = present.lease_epoch + 1, acquired_at = now,
        release_deadline = NULL
    WHERE l.subscription_id = owner.id AND l.partition_id = claim.partition_id;
    INSERT INTO lease_history (subscription_id, partition_id, lease_epoch, holder, change, at)
    VALUES (owner.id, claim.partition_id, present.lease_epoch + 1, consumer, 'acquired', now);
    RETURN current_position(owner.id, claim.partition_id);
END
$$;

-- name: lease_states
-- Every partition of a subscription: which consumer claimed it last and has not given it back, whether that
-- consumer is alive, and how far the partition was read. Raises PS013.
CREATE OR REPLACE FUNCTION lease_states(subscription text)
RETURNS TABLE (partition_id bigint, holder text, live boolean, lease_epoch bigint, "position" bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner subscriptions%ROWTYPE := require_subscription(subscription);
BEGIN
    RETURN QUERY
    SELECT l.partition_id, l.holder, c.id IS NOT NULL, l.lease_epoch, current_position(owner.id, l.partition_id)
    FROM leases AS l
    LEFT JOIN consumers AS c
        ON c.subscription_id = l.subscription_id AND c.id = l.holder AND c.deadline > clock_timestamp()
    WHERE l.subscription_id = owner.id
    ORDER BY l.partition_id;
END
$$;

-- name: active_consumers
-- The live members of a subscription with their weights. Raises PS013.
CREATE OR REPLACE FUNCTION active_consumers(subscription text) RETURNS TABLE (consumer text, weight double precision)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner subscriptions%ROWTYPE := require_subscription(subscription);
BEGIN
    RETURN QUERY
    SELECT c.id, c.weight FROM consumers AS c
    WHERE c.subscription_id = owner.id AND c.deadline > clock_timestamp()
    ORDER BY c.id;
END
$$;

-- name: lead_subscription
-- The term of this consumer as leader. It becomes the leader if no live consumer leads; NULL when another
-- consumer leads. Raises PS013, PS014.
CREATE OR REPLACE FUNCTION lead_subscription(subscription text, consumer text, session uuid) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner subscriptions%ROWTYPE := require_subscription(subscription);
    present leaders%ROWTYPE;
BEGIN
    PERFORM commit_durably();
    PERFORM FROM subscriptions AS s WHERE s.id = owner.id FOR NO KEY UPDATE;
    PERFORM require_member(owner, consumer, session);
    SELECT * INTO present FROM leaders AS l WHERE l.subscription_id = owner.id;
    IF present.session = lead_subscription.session THEN
        RETURN present.term;
    END IF;
    PERFORM FROM consumers AS c
    WHERE c.subscription_id = owner.id AND c.session = present.session AND c.deadline > clock_timestamp()
    FOR UPDATE;
    IF FOUND THEN
        RETURN NULL;
    END IF;
    INSERT INTO leaders (subscription_id, term, session)
    VALUES (owner.id, COALESCE(present.term, 0) + 1, lead_subscription.session)
    ON CONFLICT ON CONSTRAINT leaders_pkey DO UPDATE SET term = EXCLUDED.term, session = EXCLUDED.session;
    RETURN COALESCE(present.term, 0) + 1;
END
$$;

-- name: assign_partitions
-- Records a leader's decision (a JSON object: partition id to consumer), fenced by the leader's term. Raises
-- PS010, PS013, PS014.
CREATE OR REPLACE FUNCTION assign_partitions(subscription text, consumer text, session uuid, term bigint, holders text)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner subscriptions%ROWTYPE := require_subscription(subscription);
BEGIN
    PERFORM commit_durably();
    PERFORM FROM subscriptions AS s WHERE s.id = owner.id FOR NO KEY UPDATE;
    PERFORM require_member(owner, consumer, session);
    UPDATE leaders AS l
    SET decided_in = assign_partitions.term, holders = assign_partitions.holders
    WHERE l.subscription_id = owner.id AND l.term = assign_partitions.term AND l.session = assign_partitions.session;
    IF NOT FOUND THEN
        PERFORM refuse('PS010', format('term %s of leader "%s" is over', term, consumer), 'Another consumer leads.');
    END IF;
END
$$;

-- name: assignment_of
-- The last decision of a subscription's leader, and the term in which it was made; no row before the first
-- decision. Raises PS013.
CREATE OR REPLACE FUNCTION assignment_of(subscription text) RETURNS TABLE (term bigint, holders text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner subscriptions%ROWTYPE := require_subscription(subscription);
BEGIN
    RETURN QUERY SELECT l.decided_in, l.holders FROM leaders AS l WHERE l.subscription_id = owner.id;
END
$$;

-- name: mark_low_water
-- Copies positions from a registry outside the database into the ledger, on which retention is based; all or none. A
-- position that the ledger has reached already is skipped. It is fenced by lease_epoch: one that is older than any
-- seen here is refused, here and where the calls of dead letters are made without a consumer. A lease that a live
-- consumer holds here is refused too; that of a dead one ends. Returns how many positions moved. Raises PS006, PS010,
-- PS012, PS013, PS018.
CREATE OR REPLACE FUNCTION mark_low_water(
    subscription text, partition_ids bigint[], lease_epochs bigint[], positions bigint[]
) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner subscriptions%ROWTYPE := require_subscription(subscription);
    given record;
    is_held boolean;
    moved integer := 0;
BEGIN
    PERFORM commit_durably();
    PERFORM require_stream(owner);
    PERFORM require_read_committed('mark_low_water()');
    IF cardinality(partition_ids) <> cardinality(lease_epochs)
        OR cardinality(partition_ids) <> cardinality(mark_low_water.positions) THEN
        PERFORM refuse('PS006', 'each partition needs one lease_epoch and one position',
                       'Pass arrays of the same length.');
    END IF;
    FOR given IN
        SELECT l.partition_id, l.lease_epoch AS known_epoch, g.lease_epoch, g.position, l.holder
        FROM unnest(partition_ids, lease_epochs, mark_low_water.positions) AS g (partition_id, lease_epoch, position)
        JOIN leases AS l ON l.subscription_id = owner.id AND l.partition_id = g.partition_id
        ORDER BY l.partition_id
        FOR NO KEY UPDATE OF l
    LOOP
        is_held := given.holder IS NOT NULL AND (given.lease_epoch = given.known_epoch OR EXISTS (
            SELECT FROM consumers AS c
            WHERE c.subscription_id = owner.id AND c.id = given.holder AND c.deadline > clock_timestamp()));
        IF is_held OR given.lease_epoch < given.known_epoch THEN
            PERFORM refuse('PS010', format('lease_epoch %s of partition %s is over', given.lease_epoch,
                                           given.partition_id & 65535),
                           'The leases are in the database now, or were given out again.');
        ELSIF given.position > high_watermark(given.partition_id) THEN
            PERFORM refuse('PS012', format('position %s of partition %s is beyond the high watermark', given.position,
                                           given.partition_id & 65535),
                           'After a restore that lost commits: penstock restore reconcile.');
        END IF;
        INSERT INTO lease_history (subscription_id, partition_id, lease_epoch, holder, change, at)
        SELECT owner.id, given.partition_id, given.known_epoch, given.holder, 'expired', clock_timestamp()
        WHERE given.holder IS NOT NULL;
        UPDATE leases AS l
        SET state = 'AVAILABLE', holder = NULL, lease_epoch = given.lease_epoch, acquired_at = NULL,
            release_deadline = NULL
        WHERE l.subscription_id = owner.id AND l.partition_id = given.partition_id
          AND l.lease_epoch < given.lease_epoch;
        INSERT INTO positions (subscription_id, partition_id, position, lease_epoch, reason)
        SELECT owner.id, given.partition_id, given.position, given.lease_epoch, 'commit'
        WHERE given.position > current_position(owner.id, given.partition_id);
        moved := moved + FOUND::integer;
    END LOOP;
    RETURN moved;
END
$$;

-- name: note_archive_reads
-- Records that whoever holds these leases reads the archive, where the subscription stands below the low sequence. Then
-- retention does not wait for it there: what is dropped stays readable for it. That is good for these lease_epochs: the
-- next holder has to say so too, because he may have no targets. Until somebody says it, retention waits. An older
-- lease_epoch changes nothing. One of a registry outside the database counts once mark_low_water has told it here.
-- Raises PS013, PS042.
CREATE OR REPLACE FUNCTION note_archive_reads(subscription text, partition_ids bigint[], lease_epochs bigint[])
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner subscriptions%ROWTYPE := require_subscription(subscription);
BEGIN
    PERFORM commit_durably();
    PERFORM require_stream(owner);
    INSERT INTO archive_readers AS a (subscription_id, partition_id, lease_epoch)
    SELECT l.subscription_id, l.partition_id, max(g.lease_epoch)
    FROM unnest(partition_ids, lease_epochs) AS g (partition_id, lease_epoch)
    JOIN leases AS l
        ON l.subscription_id = owner.id AND l.partition_id = g.partition_id AND l.lease_epoch <= g.lease_epoch
    LEFT JOIN archive_readers AS n ON n.subscription_id = l.subscription_id AND n.partition_id = l.partition_id
    WHERE n.lease_epoch IS NULL OR n.lease_epoch < g.lease_epoch
       OR n.lease_epoch > g.lease_epoch AND g.lease_epoch = l.lease_epoch
    GROUP BY l.subscription_id, l.partition_id
    ORDER BY l.partition_id
    ON CONFLICT ON CONSTRAINT archive_readers_pkey DO UPDATE
    SET lease_epoch = EXCLUDED.lease_epoch, noted_at = clock_timestamp();
END
$$;

-- name: withdraw_archive_reads
-- Takes back what note_archive_reads has recorded: who reads these partitions from now on has no targets, and holds no
-- lease whose lease_epoch would say so. Then retention waits for the subscription again. Raises PS013, PS042.
CREATE OR REPLACE FUNCTION withdraw_archive_reads(subscription text, partition_ids bigint[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    owner subscriptions%ROWTYPE := require_subscription(subscription);
BEGIN
    PERFORM commit_durably();
    PERFORM require_stream(owner);
    DELETE FROM archive_readers AS a
    WHERE a.subscription_id = owner.id AND a.partition_id = ANY (withdraw_archive_reads.partition_ids);
END
$$;

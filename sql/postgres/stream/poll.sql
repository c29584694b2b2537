-- name: poll
-- Events of leased partitions, each after its own read position, at most max_events together and max_each of a
-- partition (NULL: no such limit), in the order of the arrays: a caller that rotates the arrays starves no partition.
-- A lease that is no longer held returns no rows; the next heartbeat or check-in tells why. A paused subscription
-- returns none. Raises PS013, PS016, PS021.
CREATE OR REPLACE FUNCTION poll(
    subscription text, consumer text, partition_ids bigint[], lease_epochs bigint[], after bigint[],
    max_events integer DEFAULT 500, max_each integer DEFAULT NULL
) RETURNS TABLE (
    partition_id bigint, sequence bigint, event_id uuid, key text, type text, content_type text, headers jsonb,
    payload bytea, created_at timestamptz, sequenced_at timestamptz
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    owner subscriptions%ROWTYPE := require_subscription(subscription);
    source record;
    wanted integer := LEAST(GREATEST(COALESCE(max_events, 500), 1), 100000);
    wanted_here integer;
    newest chunks%ROWTYPE;
    watermark bigint;
    nth integer;
    found_rows integer;
    is_below boolean;
BEGIN
    IF owner.paused_at IS NOT NULL THEN
        RETURN;
    END IF;
    FOR source IN
        SELECT l.partition_id AS id, LEAST(given.after, 1000000000000000000) + 1 AS from_sequence
        FROM unnest(partition_ids, lease_epochs, poll.after)
            WITH ORDINALITY AS given (partition_id, lease_epoch, after, place)
        JOIN leases AS l
            ON l.subscription_id = owner.id AND l.partition_id = given.partition_id
            AND l.lease_epoch = given.lease_epoch AND l.holder = consumer
        JOIN consumers AS c
            ON c.subscription_id = owner.id AND c.id = consumer AND c.deadline > clock_timestamp()
        ORDER BY given.place
    LOOP
        is_below := require_readable(source.id, source.from_sequence, owner.id);
        SELECT * INTO newest FROM chunks AS n WHERE n.partition_id = source.id ORDER BY n.first_sequence DESC LIMIT 1;
        watermark := COALESCE(newest.first_sequence + newest.event_count - 1, 0);
        IF watermark < source.from_sequence - 1 THEN
            -- A reader that waited for the log to reach its position would never see the events that the log
            -- then holds instead.
            PERFORM refuse('PS021', format('sequence %s of partition %s was read, but the log ends at %s',
                                           source.from_sequence - 1, source.id & 65535, watermark),
                           'A restore lost commits. Open the next history: penstock restore reconcile.');
        END IF;
        CONTINUE WHEN watermark < source.from_sequence;  -- Cheaper than to read and find nothing.
        wanted_here := LEAST(wanted, GREATEST(COALESCE(max_each, wanted), 1));
        IF is_below THEN
            RETURN QUERY SELECT source.id, r.* FROM read_rehydrated(source.id, source.from_sequence, wanted_here) AS r;
        ELSIF source.from_sequence >= newest.first_sequence THEN
            -- A reader that keeps up: what it wants is all in the chunk that was read just now.
            nth := source.from_sequence - newest.first_sequence + 1;
            RETURN QUERY
            SELECT source.id, p.sequence, e.event_id, e.key, e.type, e.content_type, e.headers, e.payload, e.created_at,
                   COALESCE(p.at, newest.sequenced_at)
            FROM (
                SELECT generate_series(source.from_sequence,
                                       LEAST(source.from_sequence + wanted_here - 1, watermark)) AS sequence,
                       unnest(newest.event_ids[nth:nth + wanted_here - 1]) AS id,
                       unnest(newest.sequenced_ats[nth:nth + wanted_here - 1]) AS at
            ) AS p
            CROSS JOIN LATERAL stored_event(p.id, newest.first_id, newest.last_id) AS e
            ORDER BY p.sequence;
        ELSE
            RETURN QUERY SELECT source.id, r.* FROM read_log(source.id, source.from_sequence, wanted_here) AS r;
        END IF;
        GET DIAGNOSTICS found_rows = ROW_COUNT;
        wanted := wanted - found_rows;
        EXIT WHEN wanted = 0;
    END LOOP;
END
$$;

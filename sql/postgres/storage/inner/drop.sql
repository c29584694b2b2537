-- By design: a slice is a table of its own on PostgreSQL, and a partition that only a program can drop on MySQL.

-- name: oldest_snapshot
-- No session of the database has a snapshot from before this transaction, as of the
-- last VACUUM (FREEZE) of snapshot_probe.
CREATE OR REPLACE FUNCTION oldest_snapshot() RETURNS xid8
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    present bigint := pg_current_xact_id()::text::bigint;
    frozen bigint;
BEGIN
    SELECT c.relfrozenxid::text::bigint INTO frozen FROM pg_class AS c WHERE c.oid = to_regclass('snapshot_probe');
    -- The catalog has the lower 32 bits of it.
    RETURN (present - mod(mod(present, 4294967296) - frozen + 4294967296, 4294967296))::text::xid8;
END
$$;

-- name: settled_events
-- No event with an id below the result can still come, or waits for its sequence. A transaction took its number
-- (tx) before an id, so once all that are older than the horizon of a tick have ended, nothing new appears below
-- that tick's highest id; what has ended must have been sequenced. Locks nothing: a tick that passes meanwhile only
-- makes the result smaller than it could be.
CREATE OR REPLACE FUNCTION settled_events() RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    done ticks%ROWTYPE;
    settled_id bigint;
    waiting_id bigint;
BEGIN
    SELECT * INTO done FROM ticks AS t ORDER BY t.id DESC LIMIT 1;
    IF NOT done.complete OR is_other_era(done) THEN
        RETURN 0;
    END IF;
    SELECT t.highest_id INTO settled_id
    FROM ticks AS t
    WHERE t.horizon <= pg_snapshot_xmin(pg_current_snapshot()) AND t.era = done.era
    ORDER BY t.id DESC
    LIMIT 1;
    SELECT min(f.id) INTO waiting_id
    FROM fresh_events(
        CASE WHEN done.repair THEN (current_era()).base ELSE done.target END, pg_current_snapshot(), 0) AS f;
    RETURN LEAST(COALESCE(settled_id, 0), waiting_id);
END
$$;

-- name: first_needed
-- The id from which on the rows of a ledger are needed: the ticks that the sequencer and clean compare with, the newest
-- position of each lease, the open blocks, the lowest unfinished range of each queue.
CREATE OR REPLACE FUNCTION first_needed(parent text) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    done ticks%ROWTYPE;
    found_id bigint;
BEGIN
    IF parent = 'ticks' THEN
        SELECT * INTO done FROM ticks AS t ORDER BY t.id DESC LIMIT 1;
        SELECT t.id INTO found_id
        FROM ticks AS t
        WHERE t.horizon <= LEAST(pg_snapshot_xmin(pg_current_snapshot()), pg_snapshot_xmax(done.base))
          AND t.era = done.era AND NOT is_other_era(done)
        ORDER BY t.id DESC
        LIMIT 1;
        RETURN COALESCE(found_id, 0);
    ELSIF parent = 'positions' THEN
        SELECT min(newest.id) INTO found_id
        FROM leases AS l
        CROSS JOIN LATERAL (
            SELECT p.id
            FROM positions AS p
            WHERE p.subscription_id = l.subscription_id AND p.partition_id = l.partition_id
            ORDER BY p.id DESC
            LIMIT 1
        ) AS newest;
    ELSIF parent = 'queue_ranges' THEN
        SELECT min(oldest.id) INTO found_id
        FROM queues AS q
        CROSS JOIN LATERAL (
            SELECT r.id FROM queue_ranges AS r WHERE r.subscription_id = q.subscription_id ORDER BY r.id LIMIT 1
        ) AS oldest;
    ELSE
        SELECT min((find_open_block(l.subscription_id, l.partition_id)).id) INTO found_id FROM leases AS l;
    END IF;
    RETURN COALESCE(found_id, 9223372036854775807);
END
$$;

-- name: unneeded_slices
-- The slices of every table but the index of the log that nobody needs, by what is
-- committed. Leases are remembered for a week.
CREATE OR REPLACE FUNCTION unneeded_slices() RETURNS TABLE (parent text, slice text, first_id bigint, last_id bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    settled_id bigint := settled_events();
    taken_due bigint;
BEGIN
    SELECT t.due INTO taken_due FROM ticks AS t ORDER BY t.id DESC LIMIT 1;
    RETURN QUERY
    WITH ledgers AS MATERIALIZED (
        SELECT l.parent, first_needed(l.parent) AS needed_id
        FROM (VALUES ('ticks'), ('positions'), ('blocks'), ('relay_failures'), ('queue_ranges')) AS l (parent)
    )
    SELECT s.parent, s.slice, s.first_id, s.last_id
    FROM slices AS s
    LEFT JOIN slice_sources() AS u ON u.parent = s.parent
    LEFT JOIN ledgers AS l ON l.parent = s.parent
    WHERE CASE
        WHEN s.kept THEN true
        WHEN s.parent IN ('events', 'events_kept')
            THEN s.last_id < settled_id AND NOT EXISTS (SELECT FROM needed_events(s.first_id, s.last_id))
        WHEN s.parent = 'delayed' THEN s.last_id < taken_due
        WHEN s.parent = 'chunks' OR s.last_id >= u.used THEN false
        -- Without its last turn a queue looks at its whole window once.
        WHEN s.parent = 'queue_turns' THEN true
        WHEN s.parent = 'lease_history' THEN NOT EXISTS (
            SELECT FROM lease_history AS h
            WHERE h.id BETWEEN s.first_id AND s.last_id AND h.at > clock_timestamp() - interval '7 days')
        ELSE s.last_id < l.needed_id
    END
    ORDER BY s.parent, s.first_id;
END
$$;

-- name: newest_position
-- The id of the newest row of the ledger for one partition of a subscription.
CREATE OR REPLACE FUNCTION newest_position(subscription_id bigint, partition_id bigint) RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT p.id
    FROM positions AS p
    WHERE p.subscription_id = newest_position.subscription_id AND p.partition_id = newest_position.partition_id
    ORDER BY p.id DESC
    LIMIT 1
$$;

-- name: refuse_closed
-- The trigger of a closed slice: only an id from a counter that was set back leads there.
CREATE OR REPLACE FUNCTION refuse_closed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM refuse_set_back('events_id');
    RETURN NULL;
END
$$;

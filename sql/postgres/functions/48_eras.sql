-- name: log_identity
-- The cluster, and its timeline: a restore changes one of the two. NULL is what the server refuses to tell the owner of
-- the schema, as a managed server may. An unknown cluster or timeline counts as the same. A block with an exception
-- handler that writes nothing takes no transaction number; the two cost a pass 1 to 3 microseconds.
CREATE OR REPLACE FUNCTION log_identity(OUT system_identifier bigint, OUT timeline text)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    BEGIN
        SELECT c.system_identifier INTO system_identifier FROM pg_control_system() AS c;
    EXCEPTION WHEN insufficient_privilege OR feature_not_supported OR undefined_function THEN
        system_identifier := NULL;
    END;
    BEGIN
        timeline := left(pg_walfile_name(pg_current_wal_insert_lsn()), 8);
    EXCEPTION WHEN insufficient_privilege OR feature_not_supported OR undefined_function THEN
        timeline := NULL;
    END;
END
$$;

-- name: current_era
-- The era that transaction numbers belong to now.
CREATE OR REPLACE FUNCTION current_era() RETURNS eras
LANGUAGE plpgsql STABLE AS $$
DECLARE
    present eras%ROWTYPE;
BEGIN
    SELECT e.* INTO present FROM eras AS e ORDER BY e.era DESC LIMIT 1;
    RETURN present;
END
$$;

-- name: learn_identity
-- Completes the present era by what the server refused to tell when the era began.
CREATE OR REPLACE FUNCTION learn_identity() RETURNS void
LANGUAGE sql VOLATILE AS $$
    UPDATE eras AS e
    SET system_identifier = COALESCE(e.system_identifier, i.system_identifier),
        timeline = COALESCE(e.timeline, i.timeline)
    FROM log_identity() AS i
    WHERE e.era = (current_era()).era
      AND (e.system_identifier IS NULL AND i.system_identifier IS NOT NULL
           OR e.timeline IS NULL AND i.timeline IS NOT NULL)
$$;

-- name: newest_chunk
-- No chunk of the index of the log has a higher number. The counter alone would not tell if it was set back a moment
-- ago; then sequences would be given twice.
CREATE OR REPLACE FUNCTION newest_chunk() RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN GREATEST(s.last_value, (SELECT t.chunk_id FROM ticks AS t ORDER BY t.id DESC LIMIT 1))
    FROM chunks_id AS s;
END
$$;

-- name: is_placed
-- Whether an event is in its place: in the index of the log, or among the delayed events.
CREATE OR REPLACE FUNCTION is_placed(partition_id bigint, id bigint, due_at timestamptz) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT FROM chunks AS c
        WHERE c.partition_id = is_placed.partition_id AND is_placed.id BETWEEN c.first_id AND c.last_id
          AND is_placed.id = ANY (c.event_ids))
        OR EXISTS (
        SELECT FROM delayed AS d
        WHERE d.due = (extract(epoch FROM is_placed.due_at) * 1000000)::bigint AND d.id = is_placed.id)
$$;

-- name: repair_is_under_way
-- Whether the sequencer still asks the index of the log which events have their sequences already: until a repair has
-- ended, and the tick that follows it.
CREATE OR REPLACE FUNCTION repair_is_under_way() RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT t.repair OR NOT t.complete AND t.base::text = (current_era()).base::text
    FROM ticks AS t
    ORDER BY t.id DESC
    LIMIT 1
$$;

-- name: is_over
-- Whether an event that is not in the index of the log needs no sequence any more: its topic is deleted, or retention
-- has removed that part of the index.
CREATE OR REPLACE FUNCTION is_over(partition_id bigint, id bigint) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM deleted_topics AS d WHERE d.topic_id = is_over.partition_id >> 16)
        OR EXISTS (
        SELECT FROM (
            SELECT c.first_sequence, c.last_id FROM chunks AS c
            WHERE c.partition_id = is_over.partition_id
            ORDER BY c.first_sequence
            LIMIT 1) AS f
        WHERE f.first_sequence > 1 AND is_over.id <= f.last_id)
$$;

-- name: full_number
-- The full number of the transaction that has written a row; the row itself carries only the lower half.
CREATE OR REPLACE FUNCTION full_number(written xid) RETURNS xid8
LANGUAGE plpgsql STABLE AS $$
DECLARE
    present bigint := pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
BEGIN
    RETURN GREATEST(present - mod(mod(present, 4294967296) - written::text::bigint + 4294967296, 4294967296),
                    0)::text::xid8;
END
$$;

-- name: is_own_number
-- Whether an event that no restore has loaded has this transaction number: then the transaction itself, or a
-- subtransaction of it, has written the event's row (written is its xmin). A restore wrote its rows before any
-- transaction that this is asked about began. Where the number may belong to an earlier cluster, this is not certain:
-- ask is_one_cluster() too.
CREATE OR REPLACE FUNCTION is_own_number(tx xid8, written xid) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT full_number(written) >= tx
$$;

-- name: is_loaded
-- Whether a restore has certainly written an event's row: the same number has written the row of a neighbour that
-- belongs to another transaction, which no publisher does. The neighbours are looked for within 1,000 ids.
CREATE OR REPLACE FUNCTION is_loaded(id bigint, tx xid8, written xid) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT FROM (
            (SELECT e.xmin AS written FROM events AS e
             WHERE e.id < is_loaded.id AND e.id > is_loaded.id - 1000 AND e.tx <> is_loaded.tx
             ORDER BY e.id DESC LIMIT 1)
            UNION ALL
            (SELECT e.xmin FROM events AS e
             WHERE e.id > is_loaded.id AND e.id < is_loaded.id + 1000 AND e.tx <> is_loaded.tx
             ORDER BY e.id LIMIT 1)) AS n
        WHERE n.written = is_loaded.written)
$$;

-- name: is_one_cluster
-- Whether all eras from this one on ran for certain in the present cluster. If not, a restore has written the rows of
-- older eras anew, maybe with higher numbers than those of the transactions that published them; is_own_number() may
-- then take such a row for one that its own transaction has written.
CREATE OR REPLACE FUNCTION is_one_cluster(since integer) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT NOT EXISTS (
        SELECT FROM eras AS e, log_identity() AS i
        WHERE e.era >= is_one_cluster.since AND (e.system_identifier = i.system_identifier) IS NOT TRUE)
$$;

-- name: straddles
-- Whether an event with an id from before the era waits for its sequence. Either a transaction that was open when the
-- era began has written it; or it was published since and took an id that a rolled-back publish had left free, from a
-- counter that was set back. In both cases that transaction has written the row itself. An older event may have a
-- number of another cluster that only looks like one of these, but a restore has written its row.
CREATE OR REPLACE FUNCTION straddles(
    tx xid8, written xid, partition_id bigint, id bigint, due_at timestamptz
) RETURNS boolean
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    present eras%ROWTYPE := current_era();
BEGIN
    RETURN NOT pg_visible_in_snapshot(tx, present.base)
        AND is_own_number(tx, written)
        AND NOT is_placed(partition_id, id, due_at);
END
$$;

-- name: is_other_era
-- Whether the transaction numbers of a tick belong to another cluster or timeline, or to a time that a restore has
-- undone. For a tick that repairs this is so, and already known. A counter that is below what the tick knows was set
-- back.
CREATE OR REPLACE FUNCTION is_other_era(tick ticks) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN COALESCE(i.system_identifier <> a.system_identifier OR i.timeline <> a.timeline, false)
        OR NOT tick.repair
        AND pg_snapshot_xmax(tick.target) > pg_snapshot_xmax(pg_current_snapshot())
        OR c.last_value < tick.chunk_id OR e.last_value < tick.highest_id
    FROM log_identity() AS i, current_era() AS a, chunks_id AS c, events_id AS e;
END
$$;

-- name: newest_transaction
-- A transaction number above every number that was given out before this call. It uses a block with an exception
-- handler: such a block takes a number as soon as it writes, and the row that it writes carries the lower half. xmax
-- of a snapshot would be too low: it is one above the last transaction that has ended.
CREATE OR REPLACE FUNCTION newest_transaction() RETURNS xid8
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    own bigint := pg_current_xact_id()::text::bigint;
    taken bigint;
BEGIN
    BEGIN
        UPDATE sequencer SET singleton = true RETURNING xmin::text::bigint INTO STRICT taken;
    EXCEPTION WHEN no_data_found THEN
        RAISE;
    END;
    RETURN (own + mod(taken - mod(own, 4294967296) + 4294967296, 4294967296))::text::xid8;
END
$$;

-- name: loaded_by
-- The number, in this cluster, of the transaction that loaded the row of the last tick: whoever has published since
-- has a higher one. NULL where the numbers of the tick itself tell what came later: in the tick's own cluster (whether
-- nothing but a counter was set back, or its writer is its horizon), and above all its numbers.
CREATE OR REPLACE FUNCTION loaded_by(tick ticks) RETURNS xid8
LANGUAGE sql STABLE AS $$
    SELECT w.tx
    FROM (SELECT full_number(t.xmin) AS tx FROM ticks AS t WHERE t.id = (loaded_by.tick).id) AS w,
        current_era() AS a, log_identity() AS i
    WHERE w.tx <> (loaded_by.tick).horizon AND w.tx < pg_snapshot_xmax((loaded_by.tick).target)
      AND (COALESCE(i.system_identifier <> a.system_identifier OR i.timeline <> a.timeline, false)
           OR pg_snapshot_xmax((loaded_by.tick).target) > pg_snapshot_xmax(pg_current_snapshot()))
$$;

-- name: take_boundary
-- The highest id of all events so far, given out or visible; a counter that is below it is raised to it. The counter
-- alone is not enough: somebody may have set it back, and a publisher that took higher ids before that may have
-- committed since the counters were raised.
CREATE OR REPLACE FUNCTION take_boundary() RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    boundary_id bigint;
BEGIN
    SELECT GREATEST(s.last_value - (NOT s.is_called)::integer, highest_number('events', 'id')) INTO boundary_id
    FROM events_id AS s;
    PERFORM setval('events_id', boundary_id)
    FROM events_id AS s
    WHERE boundary_id > s.last_value - (NOT s.is_called)::integer;
    RETURN boundary_id;
END
$$;

-- name: open_era
-- Begins a new era after a restore, with a tick that repairs: it numbers, by the old transaction numbers, the events
-- that the last tick of the old era had not reached. If that tick was itself a repair, the new one continues it, and
-- adds the events of that era. The order of the three reads matters, and each is a statement of its own, which sees
-- what was committed before. An event with an id above the boundary was not committed in base. One with an id up to
-- the boundary has a transaction number below settled, unless the counter is set back once more: then straddles()
-- knows it by its row.
CREATE OR REPLACE FUNCTION open_era(tick ticks) RETURNS ticks
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    before eras%ROWTYPE := current_era();
    opened eras%ROWTYPE;
BEGIN
    SELECT i.system_identifier, i.timeline INTO opened.system_identifier, opened.timeline FROM log_identity() AS i;
    opened.era := tick.era + 1;
    -- Events published since the restore have ids above the last tick's, or, from a counter that was set back, any
    -- ids that were free. Their transaction numbers are above that of the transaction that loaded the last tick.
    opened.doubtful_id := tick.highest_id;
    opened.reused_id := 0;
    opened.early_tx := loaded_by(tick);
    -- This raises the counters. It may wait for others, and they for publishers.
    PERFORM open_history(format('era %s: another cluster or timeline, or an earlier state of this one', opened.era));
    opened.base := committed_snapshot();
    opened.boundary_id := take_boundary();
    opened.settled := newest_transaction();
    INSERT INTO eras (era, system_identifier, timeline, boundary_id, base, settled, doubtful_id, reused_id, early_tx)
    VALUES (opened.era, opened.system_identifier, opened.timeline, opened.boundary_id, opened.base, opened.settled,
            opened.doubtful_id, opened.reused_id, opened.early_tx);
    IF tick.repair THEN
        tick.repaired_id := GREATEST(tick.repaired_id,
                                     CASE WHEN tick.complete THEN before.boundary_id ELSE tick.last_id END);
    ELSE
        tick.done_id := CASE WHEN tick.complete THEN 0 ELSE tick.last_id END;
        tick.base := CASE WHEN tick.complete THEN tick.target ELSE tick.base END;
        tick.repair_era := opened.era;
        tick.repaired_id := 0;
    END IF;
    tick.era := opened.era;
    tick.repair := true;
    tick.complete := false;
    tick.last_id := 0;
    tick.highest_id := opened.boundary_id;
    tick.horizon := opened.settled;
    RETURN tick;
END
$$;

-- name: repair_events
-- The events above the tick's last_id that eras ended by a restore have left without a sequence. There are five
-- groups. First: events of the era in which the very last tick ran that this tick did not count as committed or had
-- not reached. The transaction numbers of these rows and of that tick's snapshots belong to one cluster. Today's
-- numbers may belong to another cluster. So may the numbers of the eras before the one of that tick, whose events
-- have ids up to its boundary. Second: all that was published in the eras since, because none of them reached a tick.
-- Third: what straddles the beginning of one of these eras. Fourth: what was published after a restore and before its
-- first pass. It carries numbers of the new cluster, so only the index of the log tells whether it has a sequence.
-- Its ids are above the last tick's, or anywhere if the counter was set back; then it is recognized by its
-- transaction, which has written the row itself. (reused_id belongs to eras that an earlier version opened.) Fifth:
-- what took such an id, in the same cluster, during a repair that this one continues.
CREATE OR REPLACE FUNCTION repair_events(tick ticks) RETURNS TABLE (id bigint, partition_id bigint, due_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off ROWS 1000 AS $$
    WITH bounds AS MATERIALIZED (
        SELECT (SELECT e.boundary_id FROM eras AS e WHERE e.era = (repair_events.tick).repair_era - 1) AS begun_id,
               (SELECT e.boundary_id FROM eras AS e WHERE e.era = (repair_events.tick).repair_era) AS ended_id,
               (SELECT e.boundary_id FROM eras AS e WHERE e.era = (repair_events.tick).era) AS last_id,
               GREATEST((repair_events.tick).last_id, (repair_events.tick).repaired_id) AS after_id,
               is_one_cluster((repair_events.tick).repair_era - 1)
    )
    SELECT e.id, e.partition_id, e.due_at
    FROM events AS e
    WHERE (e.tx >= pg_snapshot_xmax((repair_events.tick).base)
           OR e.tx = ANY (ARRAY(SELECT pg_snapshot_xip((repair_events.tick).base))))
      AND NOT (pg_visible_in_snapshot(e.tx, (repair_events.tick).target) AND e.id <= (repair_events.tick).done_id)
      AND (e.id + 0 > (SELECT b.begun_id FROM bounds AS b)
           OR is_own_number(e.tx, e.xmin) AND NOT is_placed(e.partition_id, e.id, e.due_at)
              AND ((SELECT b.is_one_cluster FROM bounds AS b) OR NOT is_over(e.partition_id, e.id)))
      AND e.id + 0 <= (SELECT b.ended_id FROM bounds AS b)
      AND e.id + 0 > (SELECT b.after_id FROM bounds AS b)
    UNION
    SELECT e.id, e.partition_id, e.due_at
    FROM events AS e
    WHERE e.id > (SELECT GREATEST(b.ended_id, b.after_id) FROM bounds AS b)
      AND e.id <= (SELECT b.last_id FROM bounds AS b)
    UNION
    SELECT e.id, e.partition_id, e.due_at
    FROM eras AS o
    JOIN events AS e ON e.tx >= pg_snapshot_xmin(o.base) AND e.tx < o.settled AND e.id + 0 <= o.boundary_id
    WHERE o.era BETWEEN (repair_events.tick).repair_era - 1 AND (repair_events.tick).era - 1
      AND NOT pg_visible_in_snapshot(e.tx, o.base)
      AND (o.era >= (repair_events.tick).repair_era AND NOT is_over(e.partition_id, e.id)
           OR NOT pg_visible_in_snapshot(e.tx, (repair_events.tick).base)
              AND NOT (pg_visible_in_snapshot(e.tx, (repair_events.tick).target)
                       AND e.id <= (repair_events.tick).done_id))
      AND e.id + 0 > (repair_events.tick).last_id AND NOT is_placed(e.partition_id, e.id, e.due_at)
    UNION
    SELECT e.id, e.partition_id, e.due_at
    FROM eras AS o
    CROSS JOIN LATERAL (VALUES (o.doubtful_id, o.boundary_id), (0, o.reused_id)) AS d (after_id, last_id)
    JOIN events AS e ON e.id > GREATEST(d.after_id, (repair_events.tick).last_id) AND e.id <= d.last_id
    WHERE o.era BETWEEN (repair_events.tick).repair_era AND (repair_events.tick).era AND d.after_id IS NOT NULL
      AND NOT is_placed(e.partition_id, e.id, e.due_at) AND NOT is_over(e.partition_id, e.id)
    UNION
    SELECT e.id, e.partition_id, e.due_at
    FROM eras AS o
    JOIN events AS e ON e.tx >= o.early_tx AND e.tx < o.settled AND e.id + 0 <= o.boundary_id
    WHERE o.era BETWEEN (repair_events.tick).repair_era AND (repair_events.tick).era
      AND e.id + 0 > (repair_events.tick).last_id
      AND (is_own_number(e.tx, e.xmin) AND NOT (is_over(e.partition_id, e.id) AND is_loaded(e.id, e.tx, e.xmin))
           OR o.era < (repair_events.tick).era AND NOT is_over(e.partition_id, e.id))
      AND NOT is_placed(e.partition_id, e.id, e.due_at)
    UNION
    SELECT e.id, e.partition_id, e.due_at
    FROM eras AS o
    JOIN events AS e
        ON NOT pg_visible_in_snapshot(e.tx, o.base) AND e.tx >= pg_snapshot_xmin(o.base) AND e.id + 0 <= o.boundary_id
    WHERE o.era BETWEEN (repair_events.tick).repair_era AND (repair_events.tick).era - 1
      AND COALESCE(o.system_identifier = (SELECT a.system_identifier FROM current_era() AS a),
                   NOT is_over(e.partition_id, e.id))
      AND e.id + 0 > (repair_events.tick).last_id
      AND is_own_number(e.tx, e.xmin) AND NOT is_placed(e.partition_id, e.id, e.due_at)
$$;

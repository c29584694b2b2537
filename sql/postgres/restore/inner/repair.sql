-- By design: what may lack its sequence is found by transaction numbers on PostgreSQL, by ids on MySQL.

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

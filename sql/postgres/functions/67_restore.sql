-- name: counters
-- Every counter of the log, from the catalog: a sequence, and a column that takes its numbers. is_indexed: an index
-- gives the highest number in one look-up.
CREATE OR REPLACE FUNCTION counters()
RETURNS TABLE (counter regclass, source regclass, source_column name, is_indexed boolean)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT s.oid::regclass, t.oid::regclass, a.attname,
           EXISTS (SELECT FROM pg_index AS i WHERE i.indrelid = t.oid AND i.indkey[0] = a.attnum AND i.indpred IS NULL)
    FROM pg_class AS s
    CROSS JOIN LATERAL (
        SELECT d.refobjid AS source_id, d.refobjsubid AS place
        FROM pg_depend AS d
        WHERE d.classid = 'pg_class'::regclass AND d.objid = s.oid AND d.deptype IN ('i', 'a')
          AND d.refclassid = 'pg_class'::regclass
        UNION
        SELECT v.adrelid, v.adnum
        FROM pg_depend AS d JOIN pg_attrdef AS v ON v.oid = d.objid
        WHERE d.classid = 'pg_attrdef'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid = s.oid
    ) AS used
    JOIN pg_class AS t ON t.oid = used.source_id
    JOIN pg_attribute AS a ON a.attrelid = t.oid AND a.attnum = used.place
    WHERE s.relkind = 'S' AND s.relnamespace = current_schema()::regnamespace AND t.relnamespace = s.relnamespace
      AND NOT t.relispartition AND t.relname <> 'chunks_merged'
      AND NOT EXISTS (SELECT FROM slices AS l WHERE l.slice = t.relname)
$$;

-- name: numbers_elsewhere
-- The other columns in which numbers of a counter occur. The counter has to be above those too, not only above its
-- own table, because rows of that may have been deleted.
CREATE OR REPLACE FUNCTION numbers_elsewhere() RETURNS TABLE (counter name, source name, source_column name)
LANGUAGE sql IMMUTABLE AS $$
    VALUES ('events_id'::name, 'events_kept'::name, 'id'::name), ('events_id', 'delayed', 'id'),
        ('events_id', 'chunks', 'last_id'), ('events_id', 'ticks', 'highest_id'), ('chunks_id', 'ticks', 'chunk_id'),
        ('topics_id_seq', 'deleted_topics', 'topic_id'), ('blocks_id', 'relay_failures', 'block_id'),
        ('dead_letters_id_seq', 'dropped_letters', 'id'),
        ('subscriptions_id_seq', 'positions', 'subscription_id'),
        ('subscriptions_id_seq', 'lease_history', 'subscription_id'),
        ('subscriptions_id_seq', 'blocks', 'subscription_id'),
        ('subscriptions_id_seq', 'dropped_letters', 'subscription_id'),
        ('subscriptions_id_seq', 'removals', 'subscription_id'),
        ('queue_ranges_id', 'queue_turns', 'last_id')
$$;

-- name: highest_number
-- The highest number of a counter in a column. A table that is cut into slices by the counter is read from its newest
-- slice back; all numbers below its first slice were given out.
CREATE OR REPLACE FUNCTION highest_number(source regclass, source_column name) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    part record;
    found_id bigint;
BEGIN
    FOR part IN
        SELECT s.first_id, s.last_id, min(s.first_id) OVER () - 1 AS gone_id
        FROM slices AS s
        WHERE s.parent::name = (SELECT c.relname FROM pg_class AS c WHERE c.oid = source)
          AND s.parent NOT IN ('delayed', 'ticks')
        ORDER BY s.first_id DESC
    LOOP
        EXECUTE format('SELECT max(t.%1$I) FROM %2$s AS t WHERE t.%1$I BETWEEN $1 AND $2', source_column, source)
        INTO found_id USING part.first_id, part.last_id;
        IF found_id IS NOT NULL THEN
            RETURN found_id;
        END IF;
        found_id := part.gone_id;
    END LOOP;
    IF found_id IS NULL THEN
        EXECUTE format('SELECT max(t.%I) FROM %s AS t', source_column, source) INTO found_id;
    END IF;
    RETURN found_id;
END
$$;

-- name: raise_counters
-- Raises the counters, so that no number is given out a second time: a failover by logical replication leaves the
-- counters where they were, and a partial dump restores only some of them. Without wholly it checks only counters
-- that need one look-up in an index, for callers that call it often.
CREATE OR REPLACE FUNCTION raise_counters(wholly boolean) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    known record;
    highest bigint;
BEGIN
    FOR known IN
        SELECT c.counter, c.source, c.source_column, false AS elsewhere
        FROM counters() AS c
        WHERE wholly OR c.is_indexed
        UNION ALL
        SELECT n.counter::text::regclass, n.source::text::regclass, n.source_column, true
        FROM numbers_elsewhere() AS n
        WHERE wholly
    LOOP
        IF known.elsewhere THEN
            EXECUTE format('SELECT max(t.%I) FROM %s AS t', known.source_column, known.source) INTO highest;
        ELSE
            highest := highest_number(known.source, known.source_column);
        END IF;
        EXECUTE format(
            'SELECT setval(%L::regclass, $1) FROM %s AS s WHERE $1 > s.last_value - (NOT s.is_called)::integer',
            known.counter, known.counter) USING highest;
    END LOOP;
END
$$;

-- name: open_history
-- Begins the next history. A sequence that was read in the history before may be another event now. So every holder
-- loses its lease and has to ask for position and history again. Positions beyond the log are moved back to its end,
-- bookmarks beyond it are marked as lost, and stopped partitions continue. lease_epoch rises above every value that can
-- have been given out in the lost time. The caller has locked the sequencer's row.
CREATE OR REPLACE FUNCTION open_history(reason text) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    opened integer;
    lease record;
BEGIN
    PERFORM raise_counters(true);
    INSERT INTO histories (history, reason)
    SELECT max(h.history) + 1, left(open_history.reason, 2000)
    FROM histories AS h
    RETURNING histories.history INTO opened;
    INSERT INTO history_starts (partition_id, history, position)
    SELECT p.id, opened, high_watermark(p.id) FROM partitions AS p;
    FOR lease IN
        SELECT l.* FROM leases AS l ORDER BY l.subscription_id, l.partition_id FOR UPDATE
    LOOP
        lease.lease_epoch := GREATEST(lease.lease_epoch, opened::bigint << 32) + 1;
        UPDATE leases AS l
        SET state = 'AVAILABLE', holder = NULL, acquired_at = NULL, release_deadline = NULL,
            lease_epoch = lease.lease_epoch
        WHERE l.subscription_id = lease.subscription_id AND l.partition_id = lease.partition_id;
        IF lease.holder IS NOT NULL THEN
            INSERT INTO lease_history (subscription_id, partition_id, lease_epoch, holder, change, at)
            VALUES (lease.subscription_id, lease.partition_id, lease.lease_epoch, lease.holder, 'history',
                    clock_timestamp());
        END IF;
        INSERT INTO positions (subscription_id, partition_id, position, lease_epoch, reason, reached)
        SELECT o.subscription_id, o.partition_id, LEAST(o.position, w.watermark), lease.lease_epoch, 'history',
               w.watermark
        FROM positions AS o
        CROSS JOIN LATERAL (SELECT high_watermark(lease.partition_id) AS watermark) AS w
        WHERE o.id = (newest_row(lease.subscription_id, lease.partition_id)).id
          AND GREATEST(o.position, o.reached) > w.watermark;
        IF FOUND THEN
            PERFORM cut_back(lease.subscription_id, lease.partition_id, high_watermark(lease.partition_id));
        END IF;
    END LOOP;
    UPDATE bookmarks AS b SET lost_in = opened
    WHERE b.lost_in IS NULL AND b.position > high_watermark(b.partition_id);
    DELETE FROM stops;
    RETURN opened;
END
$$;

-- name: reconcile
-- After a restore that lost commits: begins the next history, so that within one history no sequence means two
-- events, and lets stopped partitions continue. Returns the number of the new history. Raises PS006, PS018.
CREATE OR REPLACE FUNCTION reconcile(reason text) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM commit_durably();
    PERFORM require_read_committed('reconcile()');
    IF COALESCE(reason, '') ~ $p$^\s*\Z$p$ THEN
        PERFORM refuse('PS006', 'a new history needs a reason', 'Say what was restored, and from when.');
    ELSIF char_length(reason) > 1000 THEN
        PERFORM refuse('PS006', format('the reason of a history has %s characters', char_length(reason)),
                       'Use at most 1,000 characters.');
    END IF;
    -- The sequencer is locked last, as in a deletion, so that the log does not wait for a consumer that is
    -- inside a transaction.
    PERFORM FROM leases AS l ORDER BY l.subscription_id, l.partition_id FOR UPDATE;
    PERFORM FROM sequencer FOR UPDATE;
    RETURN open_history(reason);
END
$$;

-- name: report_positions
-- Reports the positions that a program outside the database has seen: a sink, an archive, a registry or a client. If
-- a position lies beyond the log of the same history, a restore has lost commits, and the partition is stopped until
-- reconcile is called. It is stopped for all readers if the login may operate the topic, else for the subscription
-- that the caller names. Returns for each partition whether it is stopped, where the log ends, and the current
-- history: a caller that has another history has to find out where to continue. There is no row for a partition that
-- is gone, or that the login may not operate and the subscription does not read. Raises PS006, PS013, PS018.
CREATE OR REPLACE FUNCTION report_positions(
    partition_ids bigint[], sequences bigint[], histories integer[], source text, subscription text DEFAULT NULL
) RETURNS TABLE (partition_id bigint, stopped boolean, high_watermark bigint, present_history integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    given record;
    owner_id bigint := 0;
    may_operate boolean;
BEGIN
    PERFORM commit_durably();
    PERFORM require_read_committed('report_positions()');
    IF COALESCE(source, '') = '' OR EXISTS (
        SELECT FROM unnest(partition_ids, sequences, report_positions.histories) AS g (id, sequence, history)
        WHERE NOT COALESCE(g.id >= 0 AND g.sequence >= 0 AND g.history >= 1, false))
    THEN
        PERFORM refuse('PS006', format('cannot record positions %s of histories %s, seen by "%s"',
                                       left(sequences::text, 200), left(report_positions.histories::text, 200),
                                       left(source, 200)),
                       'For each partition, give the last sequence that was seen and its history. Name who saw it.');
    END IF;
    IF subscription IS NOT NULL THEN
        owner_id := (require_subscription(subscription)).id;
    END IF;
    present_history := current_history();
    FOR given IN
        SELECT p.id, g.sequence, g.history, t.restricted, t.namespace_id,
               EXISTS (SELECT FROM leases AS l WHERE l.subscription_id = owner_id AND l.partition_id = p.id) AS is_read
        FROM unnest(partition_ids, sequences, report_positions.histories) AS g (id, sequence, history)
        JOIN partitions AS p ON p.id = g.id
        JOIN topics AS t ON t.id = p.topic_id
        ORDER BY p.id
    LOOP
        may_operate := NOT given.restricted OR has_right(given.namespace_id, 'operate');
        CONTINUE WHEN NOT may_operate AND NOT given.is_read;
        partition_id := given.id;
        high_watermark := high_watermark(given.id);
        IF given.history > present_history OR (given.history = present_history AND given.sequence > high_watermark) THEN
            INSERT INTO stops AS s (partition_id, subscription_id, sequence, history, source)
            VALUES (given.id, CASE WHEN may_operate THEN 0 ELSE owner_id END, given.sequence, given.history,
                    left(report_positions.source, 500))
            ON CONFLICT ON CONSTRAINT stops_pkey DO UPDATE
            SET sequence = EXCLUDED.sequence, history = EXCLUDED.history, source = EXCLUDED.source
            WHERE (EXCLUDED.history, EXCLUDED.sequence) > (s.history, s.sequence);
        END IF;
        stopped := EXISTS (
            SELECT FROM stops AS s
            WHERE s.partition_id = given.id AND s.subscription_id IN (0, owner_id) AND s.history >= present_history);
        RETURN NEXT;
    END LOOP;
END
$$;

-- name: restore_status
-- What is beyond the end of the log after a restore: stopped partitions, and positions of subscriptions. Without those
-- of topics and subscriptions that the login may not see.
CREATE OR REPLACE FUNCTION restore_status()
RETURNS TABLE (
    topic text, partition integer, high_watermark bigint, sequence bigint, history integer, source text,
    reported_at timestamptz
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT t.address, p.number, high_watermark(p.id), beyond.sequence, beyond.history, beyond.source, beyond.reported_at
    FROM (
        SELECT s.partition_id, s.sequence, s.history,
               s.source || COALESCE(' (stops "' || o.name || '" alone)', '') AS source, s.reported_at
        FROM stops AS s LEFT JOIN subscriptions AS o ON o.id = s.subscription_id
        WHERE s.history >= current_history() AND (o.id IS NULL OR NOT reads_hidden(o.id))
        UNION ALL
        SELECT l.partition_id, current_position(l.subscription_id, l.partition_id), current_history(),
               format('subscription "%s"', o.name), NULL
        FROM leases AS l JOIN subscriptions AS o ON o.id = l.subscription_id
        WHERE current_position(l.subscription_id, l.partition_id) > high_watermark(l.partition_id)
          AND NOT reads_hidden(o.id)
    ) AS beyond
    JOIN partitions AS p ON p.id = beyond.partition_id
    JOIN topics AS t ON t.id = p.topic_id
    WHERE NOT t.restricted OR has_right(t.namespace_id, 'any')
    ORDER BY t.address, p.number, beyond.source
$$;

-- name: histories_of
-- The histories of the log, and why each began.
CREATE OR REPLACE FUNCTION histories_of() RETURNS TABLE (history integer, reason text, opened_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT h.history, h.reason, h.opened_at FROM histories AS h ORDER BY h.history
$$;

-- name: history_starts_of
-- How far a reader outside the database may keep a position that it has in a history: to the lowest end of the log at
-- which a later history began. What is above is other events now, also when the log has grown beyond the position
-- since. No later history: the end of the log. NULL where a later history began before this was recorded. Raises
-- PS002.
CREATE OR REPLACE FUNCTION history_starts_of(topic text, history integer)
RETURNS TABLE (partition integer, "position" bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    later bigint := (SELECT count(*) FROM histories AS h WHERE h.history > history_starts_of.history);
    recorded bigint := (
        SELECT count(DISTINCT s.history) FROM history_starts AS s WHERE s.history > history_starts_of.history);
BEGIN
    RETURN QUERY
    SELECT p.number,
           CASE WHEN later = 0 THEN high_watermark(p.id)
                -- A partition that was not there when a history began held nothing then.
                WHEN recorded = later THEN (
                    SELECT CASE WHEN count(*) = later THEN min(s.position) ELSE 0 END
                    FROM history_starts AS s
                    WHERE s.partition_id = p.id AND s.history > history_starts_of.history)
           END
    FROM partitions AS p
    WHERE p.topic_id = require_topic(history_starts_of.topic)
    ORDER BY p.number;
END
$$;

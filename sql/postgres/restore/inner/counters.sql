-- By design: PostgreSQL finds its counters in the catalog; MySQL has AUTO_INCREMENT and blocks of ids.

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

-- name: last_given
-- The last number that a counter has given out. The arguments come from its row. That row is not read under its lock:
-- while another session takes a number, it can show one that is up to 32 too high, which the counter writes to the WAL
-- ahead, and later a lower one again. pg_sequence_last_value() waits for that session.
CREATE OR REPLACE FUNCTION last_given(counter regclass, last_value bigint, is_called boolean) RETURNS bigint
LANGUAGE sql VOLATILE AS $$
    SELECT CASE WHEN is_called THEN pg_sequence_last_value(counter) ELSE last_value - 1 END
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
            'SELECT setval(%1$L::regclass, $1) FROM %1$s AS s WHERE $1 > last_given(%1$L, s.last_value, s.is_called)',
            known.counter) USING highest;
    END LOOP;
END
$$;

-- name: high_watermark
-- The last sequence of a partition; 0 when it has none.
CREATE OR REPLACE FUNCTION high_watermark(partition_id bigint) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    last_sequence bigint;
BEGIN
    SELECT c.first_sequence + c.event_count - 1 INTO last_sequence
    FROM chunks AS c
    WHERE c.partition_id = high_watermark.partition_id
    ORDER BY c.first_sequence DESC
    LIMIT 1;
    RETURN COALESCE(last_sequence, 0);
END
$$;

-- name: is_gone
-- Whether an event is no longer in its table. It is written in plpgsql so that it is not inlined into the query that
-- calls it: inlined, each read would open all slices for rows that hardly ever exist.
CREATE OR REPLACE FUNCTION is_gone(id bigint) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN NOT EXISTS (SELECT FROM events AS o WHERE o.id = is_gone.id);
END
$$;

-- name: read_log
-- The events of a partition from a sequence on, in order. It makes one look-up in each slice of the index of the log.
-- Then, for each thousand events, it walks the primary key of each slice that holds some of them: before version 17 a
-- slice is looked into for each id of the list, so the list of a long read would cost as often as there are slices.
-- The copy of what was kept of a slice is read only where the slice is gone. The function has no settings, so that it
-- is inlined into the query that calls it; the caller has to switch sequential scans off.
CREATE OR REPLACE FUNCTION read_log(partition_id bigint, from_sequence bigint, max_events integer)
RETURNS TABLE (
    sequence bigint, event_id uuid, key text, type text, content_type text, headers jsonb, payload bytea,
    created_at timestamptz, sequenced_at timestamptz
)
LANGUAGE sql STABLE ROWS 500 AS $$
    WITH place AS MATERIALIZED (
        -- Next to each other in a SELECT they are expanded element by element; in FROM each would be written to a
        -- table first.
        SELECT generate_series(part.lowest, part.highest) AS sequence,
               unnest(part.event_ids[part.lowest - part.before:part.highest - part.before]) AS id,
               unnest(part.sequenced_ats[part.lowest - part.before:part.highest - part.before]) AS at,
               part.sequenced_at
        FROM (
            SELECT c.event_ids, c.sequenced_ats, c.sequenced_at, c.first_sequence - 1 AS before,
                   GREATEST(c.first_sequence, read_log.from_sequence) AS lowest,
                   LEAST(c.first_sequence + c.event_count, read_log.from_sequence + read_log.max_events) - 1 AS highest
            FROM chunks AS c
            WHERE c.partition_id = read_log.partition_id
              AND c.first_sequence >= COALESCE((
                  SELECT b.first_sequence
                  FROM chunks AS b
                  WHERE b.partition_id = read_log.partition_id AND b.first_sequence <= read_log.from_sequence
                  ORDER BY b.first_sequence DESC
                  LIMIT 1), 0)
              AND c.first_sequence + c.event_count > read_log.from_sequence
              AND c.first_sequence < read_log.from_sequence + read_log.max_events
        ) AS part
    ), pieces AS MATERIALIZED (
        SELECT min(a.id) AS lowest, max(a.id) AS highest, array_agg(a.id) AS ids
        FROM place AS a
        GROUP BY (a.sequence - read_log.from_sequence) / 1000
    )
    SELECT p.sequence, e.event_id, e.key, e.type, e.content_type, e.headers, e.payload, e.created_at,
           COALESCE(p.at, p.sequenced_at)
    FROM place AS p
    JOIN (
        SELECT f.*
        FROM pieces AS b
        CROSS JOIN LATERAL (
            SELECT s.id, s.event_id, s.key, s.type, s.content_type, s.headers, s.payload, s.created_at
            FROM events AS s
            -- Repeats the condition of the join for the planner: the array becomes one index scan, the bounds
            -- leave out the other slices.
            WHERE s.id = ANY (b.ids) AND s.id >= b.lowest AND s.id <= b.highest
            UNION ALL
            SELECT k.id, k.event_id, k.key, k.type, k.content_type, k.headers, k.payload, k.created_at
            FROM events_kept AS k
            WHERE k.id = ANY (b.ids) AND k.id >= b.lowest AND k.id <= b.highest AND is_gone(k.id)
        ) AS f
        OFFSET 0  -- So that the pieces are read first: joined to the places one by one, each would read all of them.
    ) AS e ON e.id = p.id
    ORDER BY p.sequence
$$;

-- name: stored_event
-- The event of an id that is between lowest and highest. The bounds leave out the other slices before any is opened, so
-- give variables and not queries. The function has no settings, so that it is inlined into the query that calls it for
-- each of some ids; the limit keeps that query from reading all ids between the bounds instead.
CREATE OR REPLACE FUNCTION stored_event(id bigint, lowest bigint, highest bigint)
RETURNS TABLE (
    event_id uuid, key text, type text, content_type text, headers jsonb, payload bytea, created_at timestamptz
)
LANGUAGE sql STABLE ROWS 1 AS $$
    SELECT s.event_id, s.key, s.type, s.content_type, s.headers, s.payload, s.created_at
    FROM events AS s
    WHERE s.id = stored_event.id AND s.id >= stored_event.lowest AND s.id <= stored_event.highest
    UNION ALL
    SELECT k.event_id, k.key, k.type, k.content_type, k.headers, k.payload, k.created_at
    FROM events_kept AS k
    WHERE k.id = stored_event.id AND k.id >= stored_event.lowest AND k.id <= stored_event.highest AND is_gone(k.id)
    LIMIT 1
$$;

-- name: sequenced_at_of
-- When an event got its sequence; NULL when there is none of that sequence.
CREATE OR REPLACE FUNCTION sequenced_at_of(partition_id bigint, sequence bigint) RETURNS timestamptz
LANGUAGE sql STABLE AS $$
    SELECT COALESCE(c.sequenced_ats[sequenced_at_of.sequence - c.first_sequence + 1], c.sequenced_at)
    FROM (
        SELECT b.first_sequence, b.event_count, b.sequenced_at, b.sequenced_ats
        FROM chunks AS b
        WHERE b.partition_id = sequenced_at_of.partition_id AND b.first_sequence <= sequenced_at_of.sequence
        ORDER BY b.first_sequence DESC
        LIMIT 1
    ) AS c
    WHERE sequenced_at_of.sequence < c.first_sequence + c.event_count
$$;

-- name: require_readable
-- Refuses a read below the low sequence (PS016): events that are gone are never skipped silently. A log epoch that was
-- rehydrated can be read: then this is true, and the caller reads by read_rehydrated. Refuses any read of a partition
-- that is stopped (PS021), for all readers or for this subscription.
CREATE OR REPLACE FUNCTION require_readable(
    partition_id bigint, from_sequence bigint, subscription_id bigint
) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
DECLARE
    found_row record;
BEGIN
    SELECT p.low_sequence AS low, s.sequence AS seen, s.source, s.history INTO found_row
    FROM partitions AS p
    LEFT JOIN stops AS s ON s.partition_id = p.id AND s.subscription_id IN (0, require_readable.subscription_id)
    WHERE p.id = require_readable.partition_id
    ORDER BY s.history DESC NULLS LAST
    LIMIT 1;
    -- A stop that was reported while a history began belongs to the history before.
    IF found_row.seen IS NOT NULL AND found_row.history >= current_history() THEN
        PERFORM refuse('PS021', format('partition %s is stopped: %s has seen sequence %s, but the log ends before it',
                                       partition_id & 65535, found_row.source, found_row.seen),
                       'A restore lost commits. Open the next history: penstock restore reconcile.');
    ELSIF from_sequence < found_row.low THEN
        IF is_rehydrated(partition_id, from_sequence) THEN
            RETURN true;
        END IF;
        PERFORM refuse('PS016', format('sequence %s is below the low sequence %s%s', from_sequence, found_row.low,
                                       said_skip(subscription_id, partition_id, from_sequence)),
                       'Read it from the archive (archive=targets), or start at the low sequence.');
    END IF;
    RETURN false;
END
$$;

-- name: said_skip
-- Why retention did not wait until a subscription had read an event; empty where it does not know of it.
CREATE OR REPLACE FUNCTION said_skip(subscription_id bigint, partition_id bigint, sequence bigint) RETURNS text
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN COALESCE((
        SELECT ': retention did not wait for this subscription, by ' || CASE k.reason
                   WHEN 'max_bytes' THEN format('max_bytes %s, because the topic held %s bytes', k.limit_bytes,
                                                k.size_bytes)
                   ELSE 'max_lag_seconds' END
        FROM skips AS k
        WHERE k.subscription_id = said_skip.subscription_id AND k.partition_id = said_skip.partition_id
          AND said_skip.sequence BETWEEN k.first_sequence AND k.last_sequence
        ORDER BY k.log_epoch
        LIMIT 1), '');
END
$$;

-- By design: on PostgreSQL unnest splits the chunks; MySQL has views for it.

-- name: logged_ids
-- The index of the log with its chunks split: a row for each sequence, with the id of its event. first_sequence,
-- event_count, first_id and last_id are those of the chunk. A reader gives bounds for first_sequence as well as for
-- the sequence, so that the query uses the index. It finds its first chunk (SELECT MAX) in the same statement,
-- because clean may merge chunks between two statements.
CREATE OR REPLACE SQL SECURITY INVOKER VIEW logged_ids AS
SELECT c.partition_id, c.first_sequence, c.event_count, c.first_id, c.last_id, c.first_sequence + l.n AS sequence,
       CAST(CONV(HEX(SUBSTR(c.event_ids, 8 * l.n + 1, 8)), 16, 10) AS SIGNED) AS id,
       IF(c.sequenced_ats IS NULL, c.sequenced_at, TIMESTAMP'1970-01-01 00:00:00' + INTERVAL
         CAST(CONV(HEX(SUBSTR(c.sequenced_ats, 8 * l.n + 1, 8)), 16, 10) AS SIGNED) MICROSECOND) AS sequenced_at
FROM chunks AS c
STRAIGHT_JOIN places AS l ON l.size = 1 << CAST(CEIL(LOG2(c.event_count)) AS UNSIGNED) AND l.n < c.event_count;

-- name: logged_events
-- The log as a table, for callers that need other columns than read_log returns. Read it in the same way as
-- logged_ids. size: how many bytes the event says, which the limit max_bytes of a topic counts.
CREATE OR REPLACE SQL SECURITY INVOKER VIEW logged_events AS
SELECT i.partition_id, i.first_sequence, i.event_count, i.sequence, e.event_id, e.`key`, e.type, e.content_type,
       e.headers, e.payload, e.created_at, i.sequenced_at,
       COALESCE(LENGTH(e.`key`), 0) + COALESCE(LENGTH(e.type), 0) + COALESCE(LENGTH(e.content_type), 0)
         + COALESCE(LENGTH(e.headers), 0) + COALESCE(LENGTH(e.payload), 0) AS size
FROM logged_ids AS i STRAIGHT_JOIN events AS e ON e.id = i.id;

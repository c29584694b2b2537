-- name: archive_fetch
-- What the archive stores of each event; event id and headers as the text that the database has for them.
SELECT f.sequence, f.event_id::text, f.key, f.type, f.content_type, f.headers::text, f.payload, f.created_at,
       f.sequenced_at, f.history
FROM penstock.fetch(%(topic)s, %(partition)s, %(from_sequence)s, %(max_events)s) AS f

-- name: is_installed
-- Always one row. MySQL's catalog does not show a login the procedures that it may call through a role. If a
-- procedure is missing, its call fails, and that error does not end the transaction.
-- reads only
SELECT 1 FROM (SELECT %(schema)s AS name) AS given

-- name: topic_lookup
-- What a publisher needs to know of a topic; no row when there is none.
-- reads only
CALL penstock.topic_lookup(%(topic)s)

-- name: publish
-- Publishes one event in the caller's transaction. Returns its id and whether it was a duplicate.
CALL penstock.publish(
    %(topic)s, %(payload)s, %(key)s, %(type)s, %(content_type)s, %(headers)s, %(event_id)s, %(partition)s,
    %(not_before)s, %(dedup_key)s, %(strict)s)

-- name: publish_batch
-- Publishes many events in one statement, in array order. Returns how many, and the duplicates with the ids
-- of the earlier events.
-- json: 1, 2
CALL penstock.publish_batch(%(events)s, %(strict)s)

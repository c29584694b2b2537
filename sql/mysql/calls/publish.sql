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

-- name: publish_packed
-- The same for plain events, packed by penstock.publishing.packing. NULL: publish_batch has to take them.
CALL penstock.publish_packed(%(topics)s, %(heads)s, %(body)s)

-- name: publish_for_accounts
-- Publishes plain events of many accounts, packed in the same way. Returns the places of those that it has left out.
CALL penstock.publish_for_accounts(%(lines)s, %(heads)s, %(body)s)

-- name: stage_events
-- Stores a chunk of events for a later transaction.
CALL penstock.stage_events(%(stage)s, %(chunk)s, %(events)s)

-- name: claim_rows
-- Whether this transaction is the one that publishes a version of a writer, which has these rows.
CALL penstock.claim_rows(%(writer)s, %(version)s, %(events)s, %(digest)s)

-- name: publish_staged
-- Publishes a stage. Returns how many events it had.
CALL penstock.publish_staged(%(stage)s, %(events)s)

-- name: discard_staged
-- Removes stages that are not to be published.
CALL penstock.discard_staged(%(stages)s)

-- name: sweep_staged
-- Removes chunks whose writer must be gone. Returns how many.
CALL penstock.sweep_staged(%(max_age_seconds)s, %(max_rows)s)

-- name: claim_sends
-- Claims texts for events for some time. For each one the event that has it already, or NULL.
-- json: 0
CALL penstock.claim_sends(%(sends)s, %(seconds)s)

-- name: forget_sends
-- Deletes claims of sends that are over.
CALL penstock.forget_sends(%(max_rows)s)

-- name: release_sends
-- Gives claims back whose events were refused.
CALL penstock.release_sends(%(sends)s)

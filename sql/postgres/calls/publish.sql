-- name: is_installed
-- One row when Penstock's functions are in the schema; asks the catalog, so it never fails.
SELECT p.oid
FROM pg_catalog.pg_proc AS p JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
WHERE n.nspname = %(schema)s AND p.proname = 'topic_lookup'

-- name: topic_lookup
-- What a publisher needs to know of a topic; no row when there is none.
SELECT topic_id, partitions, max_payload_bytes, history, strategy FROM penstock.topic_lookup(%(topic)s)

-- name: publish
-- Publishes one event in the caller's transaction. Returns its id and whether it was a duplicate.
SELECT event_id, duplicate FROM penstock.publish(
    topic => %(topic)s, payload => %(payload)s, key => %(key)s, type => %(type)s,
    content_type => %(content_type)s, headers => %(headers)s::text::jsonb, event_id => %(event_id)s::uuid,
    partition => %(partition)s::integer, not_before => %(not_before)s::timestamptz, dedup_key => %(dedup_key)s,
    strict => %(strict)s)

-- name: publish_batch
-- Publishes many events in one statement, in array order. Returns how many, and the duplicates with the ids
-- of the earlier events.
SELECT published, duplicates, original_ids FROM penstock.publish_batch(
    topics => %(topics)s::text[], payloads => %(payloads)s::bytea[], keys => %(keys)s::text[],
    types => %(types)s::text[], content_types => %(content_types)s::text[],
    headers => %(headers)s::text[], event_ids => %(event_ids)s::uuid[],
    partitions => %(partitions)s::integer[], not_befores => %(not_befores)s::timestamptz[],
    dedup_keys => %(dedup_keys)s::text[], strict => %(strict)s)

-- name: publish_columns
-- Publishes plain events of one topic, in array order. Returns how many, or NULL when the topic needs publish_batch.
SELECT penstock.publish_columns(
    topic => %(topic)s, type => %(type)s, content_type => %(content_type)s, payloads => %(payloads)s::bytea[],
    keys => %(keys)s::text[], types => %(types)s::text[], content_types => %(content_types)s::text[],
    headers => %(headers)s::text[], event_ids => %(event_ids)s::uuid[],
    partitions => %(partitions)s::integer[])

-- name: publish_for_accounts
-- Publishes plain events of many accounts. Returns the places of those that it has left out.
SELECT place FROM penstock.publish_for_accounts(
    accounts => %(accounts)s::text[], key_ids => %(key_ids)s::text[], topics => %(topics)s::text[],
    lines => %(lines)s::integer[], payloads => %(payloads)s::bytea[], keys => %(keys)s::text[],
    types => %(types)s::text[], content_types => %(content_types)s::text[], headers => %(headers)s::text[],
    event_ids => %(event_ids)s::uuid[], partitions => %(partitions)s::integer[]) AS place

-- name: prepare_bulk
-- Makes the session's temporary table penstock_bulk for COPY.
SELECT penstock.prepare_bulk()

-- name: publish_bulk
-- Publishes what was copied into penstock_bulk. Returns how many.
SELECT penstock.publish_bulk()

-- name: stage_events
-- Stores a chunk of events for a later transaction.
SELECT penstock.stage_events(
    stage => %(stage)s::uuid, chunk => %(chunk)s::integer, topics => %(topics)s::text[],
    payloads => %(payloads)s::bytea[], keys => %(keys)s::text[], types => %(types)s::text[],
    content_types => %(content_types)s::text[], headers => %(headers)s::text[], event_ids => %(event_ids)s::uuid[],
    partitions => %(partitions)s::integer[], not_befores => %(not_befores)s::timestamptz[])

-- name: claim_rows
-- Whether this transaction is the one that publishes a version of a writer, which has these rows.
SELECT penstock.claim_rows(%(writer)s, %(version)s::bigint, %(events)s::bigint, %(digest)s)

-- name: publish_staged
-- Publishes a stage. Returns how many events it had.
SELECT penstock.publish_staged(%(stage)s::uuid, %(events)s::bigint)

-- name: discard_staged
-- Removes stages that are not to be published.
SELECT penstock.discard_staged(%(stages)s::uuid[])

-- name: sweep_staged
-- Removes chunks whose writer must be gone. Returns how many.
SELECT penstock.sweep_staged(%(max_age_seconds)s, %(max_rows)s::integer)

-- name: claim_sends
-- Claims texts for events for some time. For each one the event that has it already, or NULL.
SELECT penstock.claim_sends(%(sends)s::jsonb, %(seconds)s::double precision)

-- name: forget_sends
-- Deletes claims of sends that are over.
SELECT penstock.forget_sends(%(max_rows)s::integer)

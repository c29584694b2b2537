-- name: subscribe_queue
-- Creates a subscription in queue mode, or adds topics to it.
SELECT penstock.subscribe(%(subscription)s, %(topics)s::text[], %(start)s, 'queue')

-- name: configure_queue
-- Sets settings of a queue.
SELECT penstock.configure_queue(%(subscription)s, %(settings)s::jsonb)

-- name: describe_queue
-- The settings of a queue.
SELECT
    visibility_seconds, max_deliveries, max_failures, max_in_flight, first_backoff_seconds, longest_backoff_seconds,
    jitter, "order", retention_seconds
FROM penstock.describe_queue(%(subscription)s)

-- name: receive
-- Hands out events, in a transaction of its own, whose commit does not wait for the disk: what a crash loses is handed
-- out again, and its receipts are good no longer. That is set inside of an argument, because a second function in FROM
-- would be joined to each row. Headers come as text, as in fetch.
SELECT
    claim, token, deadline, deliveries, failures, topic, partition, sequence, event_id, key, type, content_type,
    headers::text, payload, created_at, sequenced_at, history
FROM penstock.receive(
    CASE set_config('synchronous_commit', 'off', true) WHEN 'off' THEN %(subscription)s END,
    %(max_events)s::integer, %(visibility_seconds)s::double precision)

-- name: acknowledge
-- Finishes events.
SELECT penstock.acknowledge(
    %(subscription)s, %(claims)s::bigint[], %(first_sequences)s::bigint[], %(last_sequences)s::bigint[],
    %(tokens)s::uuid[], %(partly)s
)

-- name: extend
-- Gives events more time and new receipts, or puts them back.
SELECT entry, first_sequence, last_sequence, claim, token, deadline
FROM penstock.extend(
    %(subscription)s, %(claims)s::bigint[], %(first_sequences)s::bigint[], %(last_sequences)s::bigint[],
    %(tokens)s::uuid[], %(visibility_seconds)s::double precision, %(body)s::bytea, %(keeps_receipts)s::boolean
)

-- name: release_claims
-- Puts events back that nobody has begun.
SELECT penstock.release_claims(
    %(subscription)s, %(claims)s::bigint[], %(first_sequences)s::bigint[], %(last_sequences)s::bigint[],
    %(tokens)s::uuid[], %(partly)s
)

-- name: reject
-- Records that events have failed.
SELECT penstock.reject(
    %(subscription)s, %(claims)s::bigint[], %(first_sequences)s::bigint[], %(last_sequences)s::bigint[],
    %(tokens)s::uuid[], %(reason)s, %(delay_seconds)s::double precision, %(partly)s
)

-- name: purge
-- Throws away what a queue has not finished.
SELECT penstock.purge(%(subscription)s)

-- name: queue_statistics
-- How many events a queue has, by state.
SELECT size, ready, in_flight, delayed, dead FROM penstock.queue_statistics(%(subscription)s)

-- name: queue_scheduled
-- How many events of a queue were published for later and are not due yet.
SELECT penstock.queue_scheduled(%(subscription)s)

-- name: queue_pointers
-- Where a queue stands in each partition.
SELECT topic, partition, reader, repair, invisibility, behind FROM penstock.queue_pointers(%(subscription)s)

-- name: peek
-- The next events of a queue, without handing them out. Headers come as text, as in fetch.
SELECT
    state, visible_at, deliveries, failures, topic, partition, sequence, event_id, key, type, content_type,
    headers::text, payload, created_at, sequenced_at, history
FROM penstock.peek(%(subscription)s, %(max_events)s::integer)

-- name: label_queue
-- Keeps labels of a queue.
SELECT penstock.label_queue(%(subscription)s, %(labels)s::jsonb)

-- name: labels_of_queue
-- The labels of a queue.
SELECT labels, created_at, changed_at FROM penstock.labels_of_queue(%(subscription)s)

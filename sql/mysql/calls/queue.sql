-- name: subscribe_queue
-- Creates a subscription in queue mode, or adds topics to it.
CALL penstock.subscribe(%(subscription)s, %(topics)s, %(start)s, 'queue')

-- name: configure_queue
-- Sets settings of a queue.
CALL penstock.configure_queue(%(subscription)s, %(settings)s)

-- name: describe_queue
-- The settings of a queue.
-- reads only
CALL penstock.describe_queue(%(subscription)s)

-- name: receive
-- Hands out events, in a transaction of its own.
CALL penstock.receive(%(subscription)s, %(max_events)s, %(visibility_seconds)s)

-- name: acknowledge
-- Finishes events.
-- json: 0
-- limits the session
CALL penstock.acknowledge(
    %(subscription)s, %(claims)s, %(first_sequences)s, %(last_sequences)s, %(tokens)s, %(partly)s
)

-- name: extend
-- Gives events more time and new receipts, or puts them back.
-- limits the session
CALL penstock.extend(
    %(subscription)s, %(claims)s, %(first_sequences)s, %(last_sequences)s, %(tokens)s, %(visibility_seconds)s,
    %(body)s, %(keeps_receipts)s
)

-- name: release_claims
-- Puts events back that nobody has begun.
-- json: 0
-- limits the session
CALL penstock.release_claims(
    %(subscription)s, %(claims)s, %(first_sequences)s, %(last_sequences)s, %(tokens)s, %(partly)s
)

-- name: reject
-- Records that events have failed.
-- json: 0
-- limits the session
CALL penstock.reject(
    %(subscription)s, %(claims)s, %(first_sequences)s, %(last_sequences)s, %(tokens)s, %(reason)s,
    %(delay_seconds)s, %(partly)s
)

-- name: purge
-- Throws away what a queue has not finished.
CALL penstock.`purge`(%(subscription)s)

-- name: queue_statistics
-- How many events a queue has, by state.
-- reads only
CALL penstock.queue_statistics(%(subscription)s)

-- name: queue_scheduled
-- How many events of a queue were published for later and are not due yet.
-- reads only
CALL penstock.queue_scheduled(%(subscription)s)

-- name: queue_pointers
-- Where a queue stands in each partition.
-- reads only
CALL penstock.queue_pointers(%(subscription)s)

-- name: peek
-- The next events of a queue, without handing them out.
-- reads only
CALL penstock.peek(%(subscription)s, %(max_events)s)

-- name: label_queue
-- Keeps labels of a queue.
CALL penstock.label_queue(%(subscription)s, %(labels)s)

-- name: labels_of_queue
-- The labels of a queue.
CALL penstock.labels_of_queue(%(subscription)s)

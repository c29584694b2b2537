-- name: set_relay_group
-- Creates a relay with several sinks, or changes one. Returns how many sinks were new.
SELECT penstock.set_relay_group(
    %(relay)s, %(topics)s::text[], %(sinks)s::text[], %(ack_quorum)s::integer, %(retain_for)s, %(start)s
)

-- name: delete_relay_group
-- Makes the sinks of a relay ordinary subscriptions again.
SELECT penstock.delete_relay_group(%(relay)s)

-- name: list_relay_groups
-- The relays with several sinks, a row for each sink.
SELECT relay, ack_quorum, retain_for, sink, subscription FROM penstock.list_relay_groups()

-- name: relay_group_lag
-- Where the relays with several sinks stand.
SELECT relay, topic, partition, position, high_watermark, lag_events, lag_seconds, sinks, sinks_there
FROM penstock.relay_group_lag(%(relay)s)

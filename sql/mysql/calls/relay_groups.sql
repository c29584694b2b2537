-- name: set_relay_group
-- Creates a relay with several sinks, or changes one. Returns how many sinks were new.
CALL penstock.set_relay_group(
    %(relay)s, %(topics)s, %(sinks)s, %(ack_quorum)s, %(retain_for)s, %(start)s
)

-- name: delete_relay_group
-- Makes the sinks of a relay ordinary subscriptions again.
CALL penstock.delete_relay_group(%(relay)s)

-- name: list_relay_groups
-- The relays with several sinks, a row for each sink.
CALL penstock.list_relay_groups()

-- name: relay_group_lag
-- Where the relays with several sinks stand.
CALL penstock.relay_group_lag(%(relay)s)

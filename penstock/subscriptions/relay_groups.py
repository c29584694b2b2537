"""Relays with several sinks: each sink is a subscription, and a quorum of them moves the relay."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock import database
from penstock.log.starts import Start, start_text
from penstock.subscriptions.overview import Lag
from penstock.topics import validation


@dataclass(frozen=True, slots=True)
class RelayGroup:
    """A relay with several sinks.

    ``sinks`` maps the name of each sink to its subscription. ``retain_for`` says whether retention
    waits for ``all`` of them, or goes by the ``quorum``.
    """

    relay: str
    ack_quorum: int
    retain_for: str
    sinks: dict[str, str]


@dataclass(frozen=True, slots=True)
class RelayGroupLag:
    """Where a relay with several sinks stands in a partition.

    ``position`` is the highest sequence that its quorum has passed; it never moves back.
    ``sinks_there`` is how many sinks have passed it.
    """

    relay: str
    topic: str
    partition: int
    position: int
    high_watermark: int
    lag_events: int
    lag_seconds: float
    sinks: int
    sinks_there: int


def set_relay_group(
    connection: Any,
    relay: str,
    sinks: Iterable[str],
    ack_quorum: int,
    *,
    topics: Iterable[str] | None = None,
    retain_for: str = "all",
    start: Start = "earliest",
) -> int:
    """Create a relay with several sinks, add sinks to it, or change its quorum.

    Each new sink is a subscription ``RELAY.SINK``, which begins at ``start``.  Sinks that are not
    named stay.  ``topics`` are those of a new relay.  Returns how many sinks were new.
    """
    validation.name(relay, "relay")
    rows = database.call(
        connection,
        "set_relay_group",
        relay=relay,
        topics=None if topics is None else list(topics),
        sinks=list(sinks),
        ack_quorum=ack_quorum,
        retain_for=retain_for,
        start=start_text(start),
    )
    return int(rows[0][0])


def delete_relay_group(connection: Any, relay: str) -> None:
    """Make the sinks of a relay ordinary subscriptions again, which stay where they stand."""
    database.call(connection, "delete_relay_group", relay=relay)


def relay_groups(connection: Any) -> dict[str, RelayGroup]:
    """The relays with several sinks, by name."""
    found: dict[str, RelayGroup] = {}
    for relay, quorum, retain_for, sink, subscription in database.call(
        connection, "list_relay_groups"
    ):
        own = found.setdefault(relay, RelayGroup(relay, int(quorum), retain_for, {}))
        own.sinks[sink] = subscription
    return found


def relay_group_lag(connection: Any, relay: str | None = None) -> list[RelayGroupLag]:
    """Where the relays with several sinks stand, or one of them."""
    rows = database.call(connection, "relay_group_lag", relay=relay)
    return [
        RelayGroupLag(
            relay, topic, int(partition), int(position), int(high), int(lag), float(seconds),
            int(sinks), int(there),
        )
        for relay, topic, partition, position, high, lag, seconds, sinks, there in rows
    ]  # fmt: skip


def by_quorum(connection: Any, lags: Sequence[Lag]) -> list[Lag]:
    """The lags with each relay of several sinks in place of its sinks: what alerts go by.

    A late sink is no reason for an alert while the quorum is not late.  A relay has no lease, so
    the state and the holder are those of its sink that is held, if one is.
    """
    groups = relay_groups(connection)
    if not groups:
        return list(lags)
    relay_of = {name: each.relay for each in groups.values() for name in each.sinks.values()}
    stands = {(e.relay, e.topic, e.partition): e for e in relay_group_lag(connection)}
    found: dict[tuple[str, str, int], Lag] = {}
    for each in lags:
        name = relay_of.get(each.subscription)
        place = (name or each.subscription, each.topic, each.partition)
        at = stands.get(place)
        if name is not None and at is not None:
            held = found.get(place, each) if each.holder is None else each
            each = replace(
                held,
                subscription=name,
                position=at.position,
                high_watermark=at.high_watermark,
                lag_events=at.lag_events,
                lag_seconds=at.lag_seconds,
            )
        found[place] = each
    return list(found.values())

"""The relays with several sinks that the policy file names, in the database."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ops.policies.settings import RelayGroupPolicy, RelayPolicy
from penstock.subscriptions import queue, relay_groups, stream
from penstock.subscriptions.relay_groups import RelayGroup


def ensure_subscribed(
    connection: Any, relay: RelayPolicy, groups: dict[str, RelayGroupPolicy]
) -> None:
    """Make the subscription of a relay; of a sink, also what it is a sink of."""
    if relay.group:
        ensure_group(connection, groups[relay.group])
    elif relay.order:
        queue.subscribe(connection, relay.subscription, [relay.topic], start="earliest")
    else:
        stream.subscribe(connection, relay.subscription, [relay.topic], start="earliest")


def ensure_group(connection: Any, group: RelayGroupPolicy) -> None:
    """Create a relay with several sinks, or give it what the file says.

    A sink that the file no longer names stays until a person removes it: its place would be lost.
    """
    present = relay_groups.relay_groups(connection).get(group.name)
    if present is None or said_of(group, present) != as_found(present):
        relay_groups.set_relay_group(
            connection,
            group.name,
            group.sinks,
            group.quorum,
            topics=[group.topic] if present is None else None,
            retain_for=group.retain_for,
        )


def differing(
    connection: Any, groups: dict[str, RelayGroupPolicy]
) -> Iterator[tuple[RelayGroupPolicy, str, str]]:
    """What differs, with the words of the file and those of the database ('': it has none)."""
    found = relay_groups.relay_groups(connection) if groups else {}
    for group in groups.values():
        present = found.get(group.name)
        if present is None:
            yield group, _words(group.sinks, group.quorum, group.retain_for), ""
        elif (said := said_of(group, present)) != as_found(present):
            yield group, said, as_found(present)


def said_of(group: RelayGroupPolicy, present: RelayGroup) -> str:
    """What the database should have: the file's sinks, and those that it has besides."""
    return _words({*group.sinks, *present.sinks}, group.quorum, group.retain_for)


def as_found(present: RelayGroup) -> str:
    """What the database has, in words."""
    return _words(present.sinks, present.ack_quorum, present.retain_for)


def _words(sinks: Any, quorum: int, retain_for: str) -> str:
    return f"{quorum} of {', '.join(sorted(sinks))}; retain_for {retain_for}"

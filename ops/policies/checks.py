"""What the entries of a policy file may not be together, each of them right by itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ops.archive.placement import Placement
from ops.policies.settings import RelayGroupPolicy, RelayPolicy, RetentionPolicy
from ops.policies.values import at, known
from penstock.database import address, config
from penstock.errors import ConfigurationError


def require_targets(names: Sequence[str], targets: Mapping[str, object], where: str) -> None:
    """ConfigurationError unless each is one of the targets, and none stands twice."""
    for name in names:
        if name not in targets:
            raise ConfigurationError(
                f"{where} names the target {name!r}, which is not among the targets",
                hint=f"the file has: {', '.join(targets) or 'none'}",
            )
    if len(set(names)) < len(names):
        raise ConfigurationError(f"{where} names a target twice")


def require_copies(
    retention: RetentionPolicy | None, placement: Placement | None, where: str
) -> None:
    """ConfigurationError when a topic's retention waits for more copies than its archive makes."""
    wanted = retention.copies if retention else 0
    if placement is None and wanted:
        raise ConfigurationError(
            f"{where}.retention wants {wanted} copies, but {where}.archive has 0 targets: nothing "
            "could ever be removed",
            hint="name targets, or fewer copies",
        )
    if placement is not None and wanted > placement.copies:
        raise ConfigurationError(
            f"{where}.retention wants {wanted} copies, but {where}.archive makes "
            f"{placement.copies}: nothing could ever be removed",
            hint="make more copies, or ask for fewer",
        )


def require_own(
    url: str, entry: str, urls: Mapping[str, str], environ: Mapping[str, str] | None
) -> None:
    """ConfigurationError when it is no address, or when another entry leads to the same database.

    Two variables may do so, one of them the environment's own, and nobody can say whose policies
    are meant for it.
    """
    with at(entry):
        config.dialect_of_url(url)
    others = {other: known(given, environ) or "" for other, given in urls.items()}
    if config.is_configured(environ):
        with suppress(ConfigurationError):  # it is told to who asks for that database
            others[config.URL_VARIABLE] = config.database_url(environ)
    for other, given in others.items():
        if other != entry and address.same_database(url, given):
            raise ConfigurationError(
                f"{entry} and {other} lead to the same database",
                hint="give each the address of a database of its own",
            )


def require_own_subscriptions(relays: Iterable[RelayPolicy]) -> None:
    """ConfigurationError when two relays share a subscription."""
    seen: dict[str, str] = {}
    for relay in relays:
        other = seen.setdefault(relay.subscription, relay.name)
        if other != relay.name:
            raise ConfigurationError(
                f"the relays {other} and {relay.name} have the subscription "
                f"{relay.subscription!r} both: each event would reach one of them only",
                hint="give each relay a subscription of its own",
            )


def require_relay_quorum(group: RelayGroupPolicy) -> None:
    """ConfigurationError when a relay has fewer sinks than have to pass each event."""
    if group.quorum > len(group.sinks):
        raise ConfigurationError(
            f"relay_groups.{group.name}.ack_quorum is {group.ack_quorum}, and there are "
            f"{len(group.sinks)} sinks",
            hint="write 1 to the number of sinks",
        )


def with_sinks(
    alone: Mapping[str, RelayPolicy], groups: Mapping[str, RelayGroupPolicy]
) -> dict[str, RelayPolicy]:
    """All relays, also each sink of those with several; refuses a name that is there twice."""
    found = dict(alone)
    for group in groups.values():
        for name, relay in group.relays().items():
            if name in found:
                raise ConfigurationError(
                    f"relays.{name} has the name of a sink of relay_groups.{group.name}",
                    hint="give one of them another name",
                )
            found[name] = relay
    return found


def require_apart(databases: Mapping[str, Any]) -> None:
    """ConfigurationError when relays of two databases send topics of one name to one sink.

    The sink has the events of one under the topic's name and their sequences, so that it would take
    those of the other for repetitions.  ``databases``: the policies of each by their place.
    """
    seen: dict[tuple[str, str], tuple[str, str]] = {}
    for place, policies in databases.items():
        for relay in policies.relays.values():
            if relay.sink.startswith("penstock+"):
                continue  # another Penstock database knows from which one the events come
            first, name = seen.setdefault(
                (relay.sink.partition("#")[0], relay.topic), (place, relay.name)
            )
            if first != place:
                raise ConfigurationError(
                    f"{first}relays.{name} and {place}relays.{relay.name} send topics of the same "
                    "name to the same sink",
                    hint="give each database a sink of its own, such as a folder or a namespace",
                )

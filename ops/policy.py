"""Policy: bring the database in line with the policy file, and say where the two differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ops.policy_file import Policies, RelayPolicy, RetentionPolicy
from penstock import names, stream
from penstock.database import call

#: What stands for a setting that is not there.
NONE = "none"
NO_TOPIC = "the topic does not exist yet"


@dataclass(frozen=True, slots=True)
class Drift:
    """A difference: what the file says, and what the database has.

    ``mendable`` says whether :func:`apply` can remove it: it cannot create a topic, and it takes
    back no policy that only the database knows.
    """

    topic: str
    setting: str
    wanted: str
    found: str
    mendable: bool = True


@dataclass(frozen=True, slots=True)
class RetentionInForce:
    """The retention policy that the database follows; ``version`` grows with every change."""

    topic: str
    minimum_age_seconds: int
    copies: int
    version: int
    updated_at: Any


def retention_in_force(connection: Any) -> dict[str, RetentionInForce]:
    """The retention policies of the database, by topic."""
    return {row[0]: RetentionInForce(*row) for row in call(connection, "retention_of")}


def drift(connection: Any, policies: Policies, topic: str | None = None) -> list[Drift]:
    """Where the database differs from the file, for one topic or for all; changes nothing."""
    existing = {each.address for each in names.list_topics(connection)}
    found = [*_retention(connection, policies), *_relays(connection, policies)]
    return [
        each
        if each.topic in existing
        else Drift(each.topic, each.setting, each.wanted, NO_TOPIC, mendable=False)
        for each in found
        if topic in {None, each.topic}
    ]


def apply(connection: Any, policies: Policies) -> list[Drift]:
    """Remove every difference that can be removed; answers what it changed."""
    changed = [each for each in drift(connection, policies) if each.mendable]
    for each in changed:
        if each.setting == "retention":
            wanted = policies.of_topic(each.topic).retention
            assert wanted is not None
            call(
                connection,
                "set_retention",
                topic=each.topic,
                minimum_age_seconds=wanted.minimum_age_seconds,
                copies=wanted.copies,
            )
        else:
            stream.subscribe(connection, each.wanted, [each.topic], start="earliest")
    return changed


def _retention(connection: Any, policies: Policies) -> list[Drift]:
    in_force = retention_in_force(connection)
    found = []
    for topic in sorted({*policies.topics, *in_force}):
        wanted, present = policies.of_topic(topic).retention, in_force.get(topic)
        if _words(wanted) != _words(present):
            drifted = Drift(topic, "retention", _words(wanted), _words(present), wanted is not None)
            found.append(drifted)
    return found


def _relays(connection: Any, policies: Policies) -> list[Drift]:
    """Relays whose subscription is missing: until it exists it holds back no event."""
    if not policies.relays:
        return []
    present = {(each.subscription, each.topic) for each in stream.lag(connection)}
    return [
        Drift(relay.topic, f"relay {relay.name}", relay.subscription, NONE)
        for relay in policies.relays.values()
        if not _is_subscribed(relay, present)
    ]


def _is_subscribed(relay: RelayPolicy, present: set[tuple[str, str]]) -> bool:
    return (relay.subscription, relay.topic) in present


def _words(policy: RetentionPolicy | RetentionInForce | None) -> str:
    if policy is None:
        return NONE
    return f"{policy.minimum_age_seconds} s, {policy.copies} copies"

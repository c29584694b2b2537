"""What an operator asks about archive targets: which are there, how fast, and what lacks copies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ops.archive.limits import within
from ops.seal import log_epochs
from penstock.archive.markers import is_there, require_target
from penstock.database import call, connect
from penstock.errors import ConfigurationError, TargetUnavailable, TopicNotFound

if TYPE_CHECKING:
    from ops.policies.file import Policies
    from ops.policies.settings import TopicPolicy
    from penstock.records import LogEpoch

#: How long a target may take to say that it is there.
_SECONDS = 5.0
AVAILABLE = "available"
UNUSED = "not used yet"


@dataclass(frozen=True, slots=True)
class TargetState:
    """A target of the policy file.

    ``copies`` are the verified ones of the archived topics, and ``lacking`` how many log epochs
    should get one there. ``seconds`` is the moving average of a copy, and ``failures`` counts those
    in a row.
    """

    target: str
    state: str
    copies: int
    lacking: int
    seconds: float | None
    failures: int


@dataclass(frozen=True, slots=True)
class ArchivedTopic:
    """A topic, and how many of its log epochs have fewer copies than they should."""

    topic: str
    targets: str
    copies: int
    ack_quorum: int
    log_epochs: int
    below_quorum: int
    below_copies: int


def target_states(url: str, policies: Policies) -> list[TargetState]:
    """Every target of the file; it takes at most some seconds for each that does not answer."""
    copies: Counter[str] = Counter()
    lacking: Counter[str] = Counter()
    with connect(url) as connection:
        speeds = {row[0]: (float(row[1]), int(row[2])) for row in call(connection, "target_speeds")}
        for policy, epochs in _archived(connection, policies):
            assert policy.placement is not None
            for epoch in epochs:
                copies.update(policy.placement.held(epoch))
                lacking.update(policy.placement.lacking(epoch))
    return [
        TargetState(
            name, _state(url, policies, name), copies[name], lacking[name],
            *speeds.get(name, (None, 0)),
        )
        for name in policies.targets
    ]  # fmt: skip


def archived_topics(connection: Any, policies: Policies) -> list[ArchivedTopic]:
    """Every topic of the file that is archived and exists."""
    found = []
    for policy, epochs in _archived(connection, policies):
        placement = policy.placement
        assert placement is not None
        held = [len(placement.held(epoch)) for epoch in epochs]
        found.append(
            ArchivedTopic(
                policy.topic,
                ", ".join(placement.targets),
                placement.copies,
                placement.ack_quorum,
                len(epochs),
                sum(each < placement.ack_quorum for each in held),
                sum(each < placement.copies for each in held),
            )
        )
    return found


def _archived(connection: Any, policies: Policies) -> Iterator[tuple[TopicPolicy, list[LogEpoch]]]:
    for policy in policies.topics.values():
        if policy.placement is not None:
            try:
                yield policy, log_epochs(connection, policy.topic)
            except TopicNotFound:
                continue


def _state(url: str, policies: Policies, name: str) -> str:
    """Whether a target can be used now, in words."""

    def look(_: object) -> str:
        target = policies.target(name)
        require_target(url, target)
        return AVAILABLE if is_there(target) else UNUSED

    try:
        return within(_SECONDS, f"a look at the archive target {name}", look)
    except (TargetUnavailable, ConfigurationError) as error:
        return error.message

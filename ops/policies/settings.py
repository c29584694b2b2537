"""What a policy file says of a topic, a relay, a target and health, as records."""

from __future__ import annotations

from dataclasses import dataclass, field

from ops.archive.placement import Placement
from ops.seal import MAX_EVENTS


@dataclass(frozen=True, slots=True)
class SealPolicy:
    """When a log epoch is cut: at so many events, or at so great an age."""

    max_events: int = MAX_EVENTS
    max_age_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """How old events must be, and how many verified copies they need, before they are removed.

    No copies: the topic's ``archive: none`` says that they go without one.  Above ``max_bytes`` the
    oldest go before their age and before everybody has read them, but not without the copies.
    """

    minimum_age_seconds: int
    copies: int = 1
    max_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class TopicPolicy:
    """What happens to the events of one topic.  Without ``retention`` nothing is ever removed.

    ``archive`` names the targets; ``placement`` says on how many of them copies lie.
    """

    topic: str
    owner: str | None = None
    seal: SealPolicy | None = None
    archive: tuple[str, ...] = ()
    retention: RetentionPolicy | None = None
    placement: Placement | None = None


@dataclass(frozen=True, slots=True)
class RelayPolicy:
    """A subscription of a topic whose consumer is a sink."""

    name: str
    topic: str
    subscription: str
    sink: str


@dataclass(frozen=True, slots=True)
class TargetSettings:
    """A place for archives, and what an object store needs: variables are not resolved yet."""

    uri: str
    options: dict[str, str] = field(default_factory=dict, repr=False)
    weight: int = 1


@dataclass(frozen=True, slots=True)
class HealthLimits:
    """How late each part of the work may be, in seconds."""

    unsequenced: int = 15
    relay_lag: int = 30
    consumer_lag: int = 300
    end_to_end: int = 90

"""The contract of a registry of leases, whichever store keeps it.

A registry belongs to one subscription.  It knows which consumers are alive, which partitions they
hold under which ``lease_epoch``, and how far each partition has been read.  On every store:

- a partition has one holder per ``lease_epoch``, and a live holder's lease is never taken;
- ``lease_epoch`` grows with every claim, and comes with the lease: it is never read again
  for a write;
- a position is written by the live holder of the present ``lease_epoch``, and only forward;
- the store itself decides each of these, in one atomic step, and measures lease times by its own
  clock.
"""

from __future__ import annotations

import math
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.errors import (
    BackwardCommit,
    DuplicateSession,
    InvalidArgument,
    StaleLease,
    UnknownConsumer,
)
from penstock.topics import validation

if TYPE_CHECKING:
    from types import TracebackType

LOWEST_WEIGHT, HIGHEST_WEIGHT = 0.001, 1000.0
#: The largest position is the largest sequence.  As text, positions have a fixed length: stores
#: compare texts exactly.
HIGHEST_POSITION = 10**18
DIGITS = 19


@dataclass(frozen=True, slots=True)
class Holding:
    """One partition: who holds it, and how far it has been read.

    ``holder`` is the consumer that claimed it last and has not given it back.  The holding is
    ``live`` while the holder is registered.
    """

    partition_id: int
    holder: str | None
    live: bool
    lease_epoch: int
    position: int


@dataclass(frozen=True, slots=True)
class Assignment:
    """The decision of an elected leader: which consumer should hold which partition."""

    term: int = 0
    holders: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Live consumers with their weights, all partitions, and the leader's decision."""

    consumers: Mapping[str, float]
    partitions: Mapping[int, Holding]
    assignment: Assignment = field(default_factory=Assignment)


class LeaseRegistry(ABC):
    """Which consumers of one subscription are alive, and what each holds.

    An object remembers the sessions of the consumers that were registered through it.  Several
    threads may use it.
    """

    def __init__(self) -> None:
        self._sessions: dict[str, str] = {}

    def __enter__(self) -> LeaseRegistry:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @abstractmethod
    def initialize(self, positions: Mapping[int, int], *, lease_epoch: int = 0) -> int:
        """Add the partitions that the registry does not know.  Returns how many.  The others stay.

        ``lease_epoch`` is the last one that an earlier registry has given out.
        """

    def register(self, consumer: str, weight: float = 1.0) -> None:
        """Become a live consumer.  Raises DuplicateSession if a run of this id is alive."""
        session = uuid.uuid4().hex
        self._register(
            validation.name(consumer, "consumer"), session, require_weight(consumer, weight)
        )
        self._sessions[consumer] = session

    @abstractmethod
    def deregister(self, consumer: str) -> None:
        """End a registration and give back what it holds.  No error when it has already ended."""

    @abstractmethod
    def renew(self, consumer: str) -> None:
        """Stay alive for a lease time.  Raises UnknownConsumer when too late: then register."""

    @abstractmethod
    def claim(self, partition_id: int, consumer: str, lease_epoch: int) -> Holding | None:
        """Take a partition without a live holder.  ``lease_epoch`` is the one that was seen.

        Returns None when another consumer was faster.  Raises UnknownConsumer when the claiming
        consumer is not alive.
        """

    @abstractmethod
    def release(self, partition_id: int, consumer: str, lease_epoch: int) -> bool:
        """Give a lease back.  Returns False, and changes nothing, when it is no longer held."""

    def release_all(self, consumer: str) -> int:
        """Give every lease back.  Returns how many were held."""
        held = self.owned_by(consumer)
        return sum(self.release(each.partition_id, consumer, each.lease_epoch) for each in held)

    @abstractmethod
    def update_position(
        self, partition_id: int, consumer: str, position: int, lease_epoch: int
    ) -> None:
        """Move a position forward, or change nothing and raise StaleLease or BackwardCommit."""

    @abstractmethod
    def lead(self, consumer: str) -> int | None:
        """Lead, or go on leading.  Returns the term, or None when another consumer leads."""

    @abstractmethod
    def assign(self, consumer: str, term: int, holders: Mapping[int, str]) -> None:
        """Store the leader's decision.  Raises StaleLease when the term is over."""

    @abstractmethod
    def snapshot(self) -> Snapshot:
        """The whole state, at one moment."""

    @abstractmethod
    def close(self) -> None:
        """Close the connections.  Registrations stay until they expire."""

    def active_consumers(self) -> Mapping[str, float]:
        """Live consumers with their weights."""
        return self.snapshot().consumers

    def owned_by(self, consumer: str) -> list[Holding]:
        """What a live consumer holds."""
        return self._where(lambda each: each.live and each.holder == consumer)

    def unowned(self) -> list[Holding]:
        """The partitions that were given back, or never held."""
        return self._where(lambda each: each.holder is None)

    def expired(self) -> list[Holding]:
        """The partitions of consumers that died: any live consumer may claim them."""
        return self._where(lambda each: each.holder is not None and not each.live)

    def position(self, partition_id: int) -> int:
        """How far a partition has been read."""
        return self._known(self.snapshot(), partition_id).position

    @abstractmethod
    def _register(self, consumer: str, session: str, weight: float) -> None: ...

    def _session(self, consumer: str) -> str:
        try:
            return self._sessions[consumer]
        except KeyError:
            raise unknown(consumer) from None

    def _where(self, holds: Callable[[Holding], bool]) -> list[Holding]:
        return [each for each in self.snapshot().partitions.values() if holds(each)]

    def _known(self, snapshot: Snapshot, partition_id: int) -> Holding:
        try:
            return snapshot.partitions[partition_id]
        except KeyError:
            raise InvalidArgument(
                f"partition {partition_id} is not known to this registry",
                hint="initialize() it with the position to begin at",
            ) from None

    def _refused(
        self, partition_id: int, consumer: str, position: int, lease_epoch: int
    ) -> StaleLease | BackwardCommit:
        """The error that says why a store did not take a position."""
        present = self._known(self.snapshot(), partition_id)
        held = (present.holder, present.live, present.lease_epoch) == (consumer, True, lease_epoch)
        if held and position <= present.position:
            return BackwardCommit(
                f"position {position} of partition {partition_id} is not after {present.position}",
                hint="positions only move forward",
            )
        return stale(f"consumer {consumer!r} no longer holds partition {partition_id}")


def require_position(position: int) -> int:
    """Refuse a position that some store cannot keep."""
    if not 0 <= position <= HIGHEST_POSITION:
        raise InvalidArgument(f"{position!r} is not a position", hint="give a sequence, or 0")
    return position


def require_weight(consumer: str, weight: float) -> float:
    """Refuse a weight that shares cannot be computed with."""
    if not (math.isfinite(weight) and LOWEST_WEIGHT <= weight <= HIGHEST_WEIGHT):
        raise InvalidArgument(
            f"consumer {consumer!r} has the weight {weight}",
            hint=f"a weight lies between {LOWEST_WEIGHT} and {HIGHEST_WEIGHT:,.0f}",
        )
    return float(weight)


def unknown(consumer: str) -> UnknownConsumer:
    """The error for a consumer whose registration has ended."""
    return UnknownConsumer(
        f"consumer {consumer!r} is not registered, or not any more", hint="register again"
    )


def duplicate(consumer: str) -> DuplicateSession:
    """The error for a second run of an id."""
    return DuplicateSession(
        f"consumer {consumer!r} is already running",
        hint="give each run an id of its own, or wait until the other one's lease has ended",
    )


def stale(what: str) -> StaleLease:
    """The error of the fence."""
    return StaleLease(what, hint="drop what was read: another consumer may have taken over")

"""What a loop needs from the store that has its leases."""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from penstock.database.dialect import ANSWER_SLACK_SECONDS, LONGEST_ANSWER_SECONDS
from penstock.errors import UnknownConsumer
from penstock.records import Event, Lease
from penstock.subscriptions import dead_letters
from penstock.subscriptions.dead_letters import Suspect
from penstock.subscriptions.stream import Membership

if TYPE_CHECKING:
    from types import TracebackType

    from penstock.database import Connection


#: The share of the lease time after which the keeper's own clock stops the work.
LOCAL_SHARE = 0.9


def consumer_id() -> str:
    """An id for a consumer that was not given one: host, process and a random part."""
    return f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


class Keeper(ABC):
    """Keeps a consumer's membership and leases alive while the block runs.

    There are two: ``LeaseKeeper`` keeps leases in the subscription's database, ``RegistryKeeper``
    in a store beside it (etcd, Redis, memory).
    """

    #: Whether leases and positions are rows of the same database as the log.
    in_database: ClassVar[bool]

    consumer: str
    #: How often it has joined, and when the store last answered, by the local monotonic clock.
    joins: int = 0
    last_success: float

    def __init__(
        self, url: str, subscription: str, consumer: str | None, clock: Callable[[], float]
    ) -> None:
        self.url = url
        self.subscription = subscription
        self.consumer = consumer or consumer_id()
        self.last_success = clock()
        self._clock = clock
        self._lock = threading.Lock()
        self._leases: dict[int, Lease] = {}
        self._valid_until = 0.0
        self._turn = 0
        self._member: Membership | None = None
        #: Called when leases may have come or gone.
        self.wake: Callable[[], object] = lambda: None
        #: The connection of the loop that works on the leases.
        self.working: Connection | None = None

    @abstractmethod
    def __enter__(self) -> Keeper:
        """Joins and checks in once, so that an error shows here and not in a thread."""

    @abstractmethod
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leaves, so that others need not wait for the lease to end."""

    @property
    def member(self) -> Membership:
        """The present membership."""
        if self._member is None:
            raise UnknownConsumer(f"consumer {self.consumer!r} has not joined")
        return self._member

    def leases(self) -> list[Lease]:
        """The leases held now, by the local clock too.  Empty once they may have ended."""
        with self._lock:
            if self._clock() >= self._valid_until:
                return []
            return list(self._leases.values())

    def active(self) -> list[Lease]:
        """The leases to work on.  Each call begins with another one, so that none starves."""
        active = [lease for lease in self.leases() if lease.state == "ACTIVE"]
        self._turn += 1
        start = self._turn % len(active) if active else 0
        return active[start:] + active[:start]

    def holds(self, lease: Lease) -> bool:
        """Whether the lease is held now, by the local clock too."""
        with self._lock:
            held = self._leases.get(lease.partition_id)
            is_present = held is not None and held.lease_epoch == lease.lease_epoch
            return is_present and self._clock() < self._valid_until

    def knows(self, lease: Lease) -> bool:
        """Whether the keeper knows the lease, even if it has ended by the local clock."""
        with self._lock:
            return self._is_present(lease)

    def moved(self, lease: Lease, position: int) -> None:
        """The position of a lease was committed."""
        with self._lock:
            held = self._leases.get(lease.partition_id)
            if held is not None and held.lease_epoch == lease.lease_epoch:
                self._leases[lease.partition_id] = replace(held, position=position)

    def lost(self, lease: Lease) -> None:
        """The lease turned out to be stale, or was given back: forget it and check in soon."""
        with self._lock:
            if self._is_present(lease):
                del self._leases[lease.partition_id]
        self.check_in_soon()

    def heard(self, notices: Sequence[str]) -> None:  # noqa: B027 - it may be of no use
        """The database says that partitions have grown: lists of their ids, or "all"."""

    def longest_answer(self) -> float:
        """For how long the loop may wait for the database at a time."""
        if self._member is None:
            return LONGEST_ANSWER_SECONDS
        return self._member.lease_seconds + ANSWER_SLACK_SECONDS

    def is_stuck(self) -> bool:
        """Whether the loop has waited for the database longer than a lease.

        A handler may take longer: that is work.  This is none, so others have to take over.
        """
        since: float | None = getattr(self.working, "waiting_since", None)
        if since is None or self._member is None:
            return False
        return time.monotonic() - since > self._member.lease_seconds

    # With the lock held: the result of a check-in, and the end of all leases.

    def _install(self, leases: dict[int, Lease], begun: float) -> None:
        """Keep these leases, from a check-in that began at this time of the local clock."""
        self._leases = leases
        self._valid_until = begun + self.member.lease_seconds * LOCAL_SHARE
        self.last_success = self._clock()

    def _keep_alive(self, begun: float) -> None:
        """Extend the leases, after a heartbeat that began at this time of the local clock."""
        until = begun + self.member.lease_seconds * LOCAL_SHARE
        self._valid_until = max(self._valid_until, until)
        self.last_success = self._clock()

    def _forget_leases(self) -> None:
        self._leases = {}
        self._valid_until = 0.0

    def _newest(self, lease: Lease) -> Lease:
        """The lease with the newer position: a commit may have passed during the check-in."""
        known = self._leases.get(lease.partition_id)
        if known is None or known.lease_epoch != lease.lease_epoch:
            return lease
        return replace(lease, position=max(known.position, lease.position))

    def _forget_all(self) -> None:
        with self._lock:
            self._forget_leases()

    def _is_present(self, lease: Lease) -> bool:
        held = self._leases.get(lease.partition_id)
        return held is not None and held.lease_epoch == lease.lease_epoch

    @abstractmethod
    def check_in_soon(self) -> None:
        """Check in before the heartbeat says so."""

    @abstractmethod
    def poll(
        self,
        connection: Connection,
        leases: Sequence[Lease],
        max_events: int,
        max_each: int | None = None,
    ) -> list[tuple[Lease, list[Event]]]:
        """Unread events after the position of each lease, limited in total and for each lease."""

    @abstractmethod
    def commit(
        self,
        connection: Connection,
        wanted: Sequence[tuple[Lease, int]],
        after: Sequence[int],
    ) -> None:
        """Move positions forward.  Raises StaleLease or BackwardCommit when that is refused."""

    @abstractmethod
    def release(self, connection: Connection, leases: Sequence[Lease]) -> None:
        """Give leases back."""

    @abstractmethod
    def position(self, connection: Connection, lease: Lease) -> int:
        """The position of a partition.  Raises StaleLease when the store says it is not held."""

    def take_up(self, connection: Connection) -> None:  # noqa: B027 - the database gave them out
        """Before work on new leases: make the database refuse their earlier holders."""

    def record_position(self, connection: Connection, lease: Lease, position: int) -> None:  # noqa: B027
        """Make the database stand at the position, which is committed, before it moves it on."""

    def follow_position(self, connection: Connection, lease: Lease, position: int) -> None:  # noqa: B027
        """Move the position where the database has moved it, together with a dead letter."""

    def suspects(self, connection: Connection, leases: Sequence[Lease]) -> dict[int, Suspect]:
        """The leases whose next events may break their consumer, by partition id."""
        return dead_letters.suspects(connection, self.member, leases)

    @abstractmethod
    def held(self, connection: Connection) -> list[Lease]:
        """The leases and positions that the store has."""

    def look_again(self, connection: Connection) -> None:
        """Take over the stored positions: the results of the last commits may have been lost.

        A crash or a restore may even have lost the commits: then their events are handled again.
        Leases that have ended by the local clock are included: a heartbeat can bring them back.
        """
        with self._lock:
            known = dict(self._leases)
        for lease in self.held(connection):
            before = known.get(lease.partition_id)
            if before is not None and before.position != lease.position:
                self.moved(lease, lease.position)

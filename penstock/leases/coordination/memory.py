"""A registry in the memory of one process: for tests, and for consumers that share a process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from penstock.leases.coordination.registry import (
    Assignment,
    Holding,
    LeaseRegistry,
    Snapshot,
    duplicate,
    require_position,
    stale,
    unknown,
)


@dataclass(slots=True)
class _Registration:
    session: str
    weight: float
    deadline: float


@dataclass(slots=True)
class _Lease:
    lease_epoch: int
    position: int
    holder: str | None = None
    session: str | None = None


@dataclass(slots=True)
class Space:
    """The data that several registries of one process share.

    ``clock`` is in seconds; a test may give another one.
    """

    lease_seconds: float = 10.0
    clock: Callable[[], float] = time.monotonic
    lock: threading.RLock = field(default_factory=threading.RLock)
    consumers: dict[str, _Registration] = field(default_factory=dict)
    leases: dict[int, _Lease] = field(default_factory=dict)
    leader: tuple[int, str] = (0, "")
    assignment: Assignment = field(default_factory=Assignment)


class MemoryRegistry(LeaseRegistry):
    """A registry in a :class:`Space`."""

    def __init__(self, space: Space | None = None) -> None:
        super().__init__()
        self._space = space or Space()

    def initialize(self, positions: Mapping[int, int], *, lease_epoch: int = 0) -> int:
        with self._space.lock:
            new = {
                partition_id: _Lease(lease_epoch, require_position(position))
                for partition_id, position in positions.items()
                if partition_id not in self._space.leases
            }
            self._space.leases.update(new)
            return len(new)

    def _register(self, consumer: str, session: str, weight: float) -> None:
        with self._space.lock:
            if consumer in self._live():
                raise duplicate(consumer)
            self._space.consumers[consumer] = _Registration(session, weight, self._deadline())

    def deregister(self, consumer: str) -> None:
        with self._space.lock:
            present = self._space.consumers.get(consumer)
            if present is None or present.session != self._sessions.pop(consumer, None):
                return
            for lease in self._space.leases.values():
                if lease.session == present.session:
                    lease.holder = lease.session = None
            del self._space.consumers[consumer]

    def renew(self, consumer: str) -> None:
        with self._space.lock:
            self._require_live(consumer).deadline = self._deadline()

    def claim(self, partition_id: int, consumer: str, lease_epoch: int) -> Holding | None:
        with self._space.lock:
            session = self._require_live(consumer).session
            self._known(self.snapshot(), partition_id)
            lease = self._space.leases[partition_id]
            if lease.lease_epoch != lease_epoch or self._is_held(lease):
                return None
            lease.holder, lease.session = consumer, session
            lease.lease_epoch += 1
            return self._holding(partition_id, lease)

    def release(self, partition_id: int, consumer: str, lease_epoch: int) -> bool:
        with self._space.lock:
            lease = self._space.leases.get(partition_id)
            if lease is None or not self._holds(lease, consumer, lease_epoch):
                return False
            lease.holder = lease.session = None
            return True

    def update_position(
        self, partition_id: int, consumer: str, position: int, lease_epoch: int
    ) -> None:
        require_position(position)
        with self._space.lock:
            lease = self._space.leases.get(partition_id)
            if (
                lease is None
                or not self._holds(lease, consumer, lease_epoch)
                or not self._is_held(lease)
                or position <= lease.position
            ):
                raise self._refused(partition_id, consumer, position, lease_epoch)
            lease.position = position

    def lead(self, consumer: str) -> int | None:
        with self._space.lock:
            session = self._require_live(consumer).session
            term, leader = self._space.leader
            if leader == session:
                return term
            if leader in {each.session for each in self._live().values()}:
                return None
            self._space.leader = (term + 1, session)
            return term + 1

    def assign(self, consumer: str, term: int, holders: Mapping[int, str]) -> None:
        with self._space.lock:
            present = self._live().get(consumer)
            if present is None or self._space.leader != (term, present.session):
                raise stale(f"term {term} of leader {consumer!r} is over")
            self._space.assignment = Assignment(term, dict(holders))

    def snapshot(self) -> Snapshot:
        with self._space.lock:
            return Snapshot(
                {name: each.weight for name, each in sorted(self._live().items())},
                {
                    partition_id: self._holding(partition_id, lease)
                    for partition_id, lease in sorted(self._space.leases.items())
                },
                replace(self._space.assignment),
            )

    def close(self) -> None:
        """There is no connection to close."""

    def _deadline(self) -> float:
        return self._space.clock() + self._space.lease_seconds

    def _live(self) -> dict[str, _Registration]:
        now = self._space.clock()
        return {name: each for name, each in self._space.consumers.items() if each.deadline > now}

    def _require_live(self, consumer: str) -> _Registration:
        present = self._live().get(consumer)
        if present is None or present.session != self._session(consumer):
            raise unknown(consumer)
        return present

    def _holds(self, lease: _Lease, consumer: str, lease_epoch: int) -> bool:
        return (
            lease.holder == consumer
            and lease.session == self._sessions.get(consumer)
            and lease.lease_epoch == lease_epoch
        )

    def _is_held(self, lease: _Lease) -> bool:
        holder = self._live().get(lease.holder or "")
        return holder is not None and holder.session == lease.session

    def _holding(self, partition_id: int, lease: _Lease) -> Holding:
        return Holding(
            partition_id, lease.holder, self._is_held(lease), lease.lease_epoch, lease.position
        )


def space_of(name: tuple[str, ...], lease_seconds: float) -> Space:
    """The space with this name.  All callers in this process that give the name share it."""
    with _lock:
        return _spaces.setdefault(name, Space(lease_seconds))


_spaces: dict[tuple[str, ...], Space] = {}
_lock = threading.Lock()

"""The loop around leases.  Consumers and relays share it, and differ in what a round does."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.database.wake import Wake
from penstock.errors import StaleLease
from penstock.leases.keeper import Keeper
from penstock.leases.rounds import ConnectionLost as ConnectionLost, LoopStats as LoopStats, Rounds
from penstock.records import Lease

if TYPE_CHECKING:
    from penstock.database import Connection


class LeaseLoop(Rounds):
    """Holds leases of a subscription and works on them, round by round, until told to stop."""

    def __init__(self, keeper: Keeper, *, idle_seconds: float) -> None:
        super().__init__(
            keeper.url, keeper.subscription, keeper.consumer, idle_seconds=idle_seconds
        )
        self.keeper = keeper
        self._postponed: dict[int, tuple[int, float]] = {}

    def gauges(self) -> dict[str, float]:
        """What it holds, and how long ago the database last heard from it."""
        return {
            "held_leases": float(len(self.keeper.leases())),
            "heartbeat_age_seconds": time.monotonic() - self.keeper.last_success,
        }

    @abstractmethod
    def round(self, connection: Connection) -> int:
        """Work on :meth:`ready_leases` once.  Returns how many events are done."""

    @contextmanager
    def whole_run(self) -> Iterator[None]:
        """The keeper has a connection of its own."""
        with self.keeper, self.at_work():
            yield

    @contextmanager
    def woken(self, wake: Wake) -> Iterator[None]:
        """In the block, ``wake`` ends the loop's rest, also when a check-in brings leases."""
        self.keeper.wake = wake.set
        try:
            with super().woken(wake):
                yield
        finally:
            self.keeper.wake = lambda: None

    def reconnected(self, connection: Connection) -> None:
        """Whether the leases are still there."""
        self.keeper.look_again(connection)

    def turn(self, connection: Connection) -> int:
        """One round, and then give back the leases that are asked back: none has events in hand."""
        self.stats.last_round = time.monotonic()
        done = self.round(connection)
        asked = [lease for lease in self.keeper.leases() if lease.state == "RELEASING"]
        if asked:
            self.release(connection, self.let_go(connection, asked))
        return done

    def let_go(self, connection: Connection, asked: list[Lease]) -> list[Lease]:
        """Of the leases that are asked back: those that can be given back now."""
        return asked

    def release(self, connection: Connection, leases: list[Lease]) -> None:
        """Give leases back."""
        if leases:
            self.keeper.release(connection, leases)
        for lease in leases:
            self.keeper.lost(lease)

    def heard(self, notices: Sequence[str]) -> None:
        """The database says that these partitions have grown."""
        self.keeper.heard(notices)

    def ready_leases(self) -> list[Lease]:
        """Leases to work on.  Each round begins with another one, so that none starves."""
        now = time.monotonic()
        waiting = {partition for partition, (_, until) in self._postponed.items() if until > now}
        return [lease for lease in self.keeper.active() if lease.partition_id not in waiting]

    def done(self, lease: Lease, position: int, events: int) -> None:
        """Note that the position was committed, and so many events are done."""
        self.went_well(lease)
        self.keeper.moved(lease, position)
        self.stats.done(events)

    def went_well(self, lease: Lease) -> None:
        """After success: the next failure of the partition counts as the first."""
        self._postponed.pop(lease.partition_id, None)

    def attempts(self, lease: Lease) -> int:
        """How often the partition has failed in a row."""
        return self._postponed.get(lease.partition_id, (0, 0.0))[0]

    def postpone(self, lease: Lease, seconds: float) -> int:
        """Leave the partition alone for a while.  Returns how often that happened in a row."""
        attempt = self.attempts(lease) + 1
        self._postponed[lease.partition_id] = (attempt, time.monotonic() + seconds)
        return attempt

    @property
    def has_postponed(self) -> bool:
        """Whether a partition waits for its next attempt."""
        return bool(self._postponed)

    def stale(self, lease: Lease, error: StaleLease) -> None:
        """The fence refused: forget the lease."""
        self.stats.stale(error)
        self.keeper.lost(lease)

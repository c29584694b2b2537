"""The loop around leases.  Consumers and relays share it, and differ in what a round does."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock import database
from penstock.database import dialect as work, sessions
from penstock.database.backoff import backoff
from penstock.database.wake import Wake
from penstock.errors import (
    CoordinationUnavailable,
    DatabaseUnavailable,
    PenstockError,
    StaleLease,
)
from penstock.leases.keeper import Keeper
from penstock.records import Lease

if TYPE_CHECKING:
    from penstock.database import Connection

log = logging.getLogger(__name__)


class ConnectionLost(PenstockError):
    """The loop's connection ended under its work; it opens another one."""


@dataclass(slots=True)
class LoopStats:
    """What a loop has done since it started.  ``last_round`` is a time of the monotonic clock."""

    events: int = 0
    batches: int = 0
    failures: int = 0
    stale_commits: int = 0
    #: Events that the filter passed over, and handlers that took too long.
    filtered: int = 0
    timeouts: int = 0
    dead_letters: int = 0
    last_error: str = ""
    last_round: float = field(default_factory=time.monotonic)

    def done(self, events: int) -> None:
        """Count events that were committed together."""
        self.events += events
        self.batches += events > 0

    def failed(self, error: BaseException) -> None:
        """Count a failure, and log it if it is an expected one."""
        self.last_round = time.monotonic()
        self.failures += 1
        self.last_error = f"{type(error).__name__}: {error}"
        if isinstance(error, PenstockError) or database.is_unavailable(error):
            log.warning("%s", self.last_error)

    def stale(self, error: StaleLease) -> None:
        """Count a commit that the fence refused."""
        self.stale_commits += 1
        self.failed(error)


class LeaseLoop(ABC):
    """Holds leases of a subscription and works on them, round by round, until told to stop."""

    def __init__(self, keeper: Keeper, *, idle_seconds: float) -> None:
        self.keeper = keeper
        self._idle_seconds = idle_seconds
        self._postponed: dict[int, tuple[int, float]] = {}
        self._stop: threading.Event | None = None
        self._outages = 0
        self._ear: work.Ear | None = None
        self.stats = LoopStats()

    def is_stopping(self) -> bool:
        """Whether the loop begins nothing more."""
        return self._stop is not None and self._stop.is_set()

    @abstractmethod
    def round(self, connection: Connection) -> int:
        """Work on :meth:`ready_leases` once.  Returns how many events are done."""

    def run(self, stop: threading.Event) -> None:
        """Work until ``stop`` is set.  The events in hand are finished and committed first."""
        self._stop = stop
        with self.keeper, self.at_work():
            while not stop.is_set():
                try:
                    self._work(stop)
                except Exception as error:
                    if not _is_lost(error):
                        raise
                    self._outages += 1
                    self.stats.failed(error)
                    stop.wait(backoff(self._outages))

    @property
    def application_name(self) -> str:
        """What its connections are called in the database."""
        return f"penstock {self.keeper.subscription}"[:63]

    def open(self) -> Connection:
        """A connection for the work.  The keeper has another one."""
        return database.connect(self.keeper.url, application_name=self.application_name)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """A context for the whole run of the loop."""
        wake = Wake()
        try:
            with self.woken(wake):
                yield
        finally:
            wake.close()

    @contextmanager
    def woken(self, wake: Wake) -> Iterator[None]:
        """In the block, ``wake`` ends the loop's rest, also when a check-in brings leases."""
        self._wake = wake
        self.keeper.wake = wake.set
        try:
            yield
        finally:
            self.keeper.wake = lambda: None

    def session(self, connection: Connection) -> AbstractContextManager[object]:
        """A context for one connection of the loop.  The work on that connection ends with it."""
        return nullcontext()

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

    def rest(self) -> None:
        """After a round without work: wait until events are sequenced, or the loop is woken."""
        assert self._ear is not None
        self.heard(self._ear.wait(self.longest_rest(), self._wake))
        self._wake.clear()

    def heard(self, notices: Sequence[str]) -> None:
        """The database says that these partitions have grown."""
        self.keeper.heard(notices)

    def longest_rest(self) -> float:
        """How long the loop may rest at most."""
        return self._idle_seconds

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

    def _work(self, stop: threading.Event) -> None:
        with self.open() as connection:
            if self._outages:
                self.keeper.look_again(connection)
            with self.session(connection):
                self._work_on(connection, stop)

    def _work_on(self, connection: Connection, stop: threading.Event) -> None:
        self._ear = sessions.of_connection(connection).listen(connection)
        try:
            while not stop.is_set():
                done = self.turn(connection)
                if self._outages:
                    log.info("%s works again", self.keeper.consumer)
                self._outages = 0
                if not done:
                    self.rest()
        finally:
            self._ear = None


def _is_lost(error: BaseException) -> bool:
    away = CoordinationUnavailable | DatabaseUnavailable | ConnectionLost
    return isinstance(error, away) or database.is_unavailable(error)

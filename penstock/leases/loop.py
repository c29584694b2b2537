"""The loop around leases, written once: consumers and relays differ only in what a round does."""

from __future__ import annotations

import logging
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock import database
from penstock.database import config, dialect as work, sessions
from penstock.database.wake import Wake
from penstock.errors import (
    CoordinationUnavailable,
    DatabaseUnavailable,
    InvalidArgument,
    PenstockError,
    StaleLease,
)
from penstock.leases.coordination.registry_keeper import RegistryKeeper
from penstock.leases.database_keeper import LeaseKeeper
from penstock.leases.keeper import Keeper
from penstock.records import Lease
from penstock.topics import validation

if TYPE_CHECKING:
    from penstock.database import Connection

log = logging.getLogger(__name__)


class ConnectionLost(PenstockError):
    """The loop's connection ended under its work; it opens another one."""


@dataclass(slots=True)
class LoopStats:
    """What a loop has done since it started; ``last_round`` is a time of the monotonic clock."""

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


class LeaseLoop(ABC):
    """Holds leases of a subscription and works on them, round by round, until told to stop."""

    def __init__(
        self,
        url: str | None,
        subscription: str,
        *,
        consumer_id: str | None,
        weight: float,
        idle_seconds: float,
        topics: Sequence[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
        coordination: str | None = None,
        assign: str = "stealing",
    ) -> None:
        self._url = url or config.database_url()
        self._subscription = subscription
        self._idle_seconds = idle_seconds
        self._clock = clock
        self._postponed: dict[int, tuple[int, float]] = {}
        self._turn = 0
        self._stop: threading.Event | None = None
        self._outages = 0
        self._ear: work.Ear | None = None
        self.stats = LoopStats()
        if consumer_id is not None:
            validation.name(consumer_id, "consumer")
        if coordination is not None and not isinstance(coordination, str):
            raise InvalidArgument(
                f"coordination is a {type(coordination).__name__}", hint="give an address"
            )
        if coordination is None and assign != "stealing":
            raise InvalidArgument(
                f"assign is {assign!r}", hint="it goes with coordination: etcd://, redis://"
            )
        self.keeper: Keeper
        if coordination is None:
            self.keeper = LeaseKeeper(
                self._url,
                subscription,
                consumer=consumer_id,
                weight=weight,
                topics=topics,
                clock=clock,
            )
        else:
            self.keeper = RegistryKeeper(
                self._url,
                subscription,
                coordination,
                assign=assign,
                consumer=consumer_id,
                weight=weight,
                topics=topics,
                clock=clock,
            )

    def is_stopping(self) -> bool:
        """Whether nothing more is to be begun."""
        return self._stop is not None and self._stop.is_set()

    @abstractmethod
    def round(self, connection: Connection) -> int:
        """Work on :meth:`ready_leases` once; answers how many events were done with."""

    def run(self, stop: threading.Event) -> None:
        """Work until ``stop`` is set; the events in hand are finished and committed first."""
        self._stop = stop
        with self.keeper, self.at_work():
            while not stop.is_set():
                try:
                    self._work(stop)
                except Exception as error:
                    if not _is_lost(error):
                        raise
                    self._outages += 1
                    self.failed(error)
                    stop.wait(random.uniform(0.1, min(10.0, 0.5 * 2.0 ** min(self._outages, 10))))

    def open(self) -> Connection:
        """A connection for the work; the keeper has one of its own."""
        return database.connect(self._url, application_name=f"penstock {self._subscription}"[:63])

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """What lives as long as the loop runs."""
        wake = Wake()
        try:
            with self.woken(wake):
                yield
        finally:
            wake.close()

    @contextmanager
    def woken(self, wake: Wake) -> Iterator[None]:
        """``wake`` ends the loop's rest: also when a check-in has brought leases."""
        self._wake = wake
        self.keeper.wake = wake.set
        try:
            yield
        finally:
            self.keeper.wake = lambda: None

    def session(self, connection: Connection) -> AbstractContextManager[object]:
        """What lives as long as a connection of the loop; its end is the end of the work on it."""
        return nullcontext()

    def turn(self, connection: Connection) -> int:
        """One round, and the answer to leases that are asked back: what was in hand is done."""
        self.stats.last_round = time.monotonic()
        done = self.round(connection)
        asked = [lease for lease in self.keeper.leases() if lease.state == "RELEASING"]
        if asked:
            self.release(connection, self.let_go(connection, asked))
        return done

    def let_go(self, connection: Connection, asked: list[Lease]) -> list[Lease]:
        """Which of the leases that are asked back can be given back now."""
        return asked

    def release(self, connection: Connection, leases: list[Lease]) -> None:
        """Give leases back."""
        if leases:
            self.keeper.release(connection, leases)
        for lease in leases:
            self.keeper.lost(lease)

    def rest(self) -> None:
        """Nothing was done: until something was sequenced or the loop is woken."""
        assert self._ear is not None
        self._heard(self._ear.wait(self.longest_rest(), self._wake))
        self._wake.clear()

    def longest_rest(self) -> float:
        """How long nothing may be due."""
        return self._idle_seconds

    def ready_leases(self) -> list[Lease]:
        """Leases to work on, each round beginning with another one, so that none is starved."""
        now = time.monotonic()
        waiting = {partition for partition, (_, until) in self._postponed.items() if until > now}
        leases = [
            lease
            for lease in self.keeper.leases()
            if lease.state == "ACTIVE" and lease.partition_id not in waiting
        ]
        self._turn += 1
        start = self._turn % len(leases) if leases else 0
        return leases[start:] + leases[:start]

    def still_held(self, lease: Lease) -> bool:
        """Whether the lease was not lost while another one was worked on."""
        return any(
            held.partition_id == lease.partition_id and held.lease_epoch == lease.lease_epoch
            for held in self.keeper.leases()
        )

    def done(self, lease: Lease, position: int, events: int) -> None:
        """The position was committed, and so many events are done."""
        self.went_well(lease)
        self.keeper.moved(lease, position)
        self.stats.events += events
        self.stats.batches += events > 0

    def went_well(self, lease: Lease) -> None:
        """The next failure of the partition is a first one."""
        self._postponed.pop(lease.partition_id, None)

    def attempts(self, lease: Lease) -> int:
        """How often the partition has failed in a row."""
        return self._postponed.get(lease.partition_id, (0, 0.0))[0]

    def postpone(self, lease: Lease, seconds: float) -> int:
        """Leave the partition alone for a while; answers how often that happened in a row."""
        attempt = self.attempts(lease) + 1
        self._postponed[lease.partition_id] = (attempt, time.monotonic() + seconds)
        return attempt

    @property
    def has_postponed(self) -> bool:
        """Whether a partition waits for its next attempt."""
        return bool(self._postponed)

    def stale(self, lease: Lease, error: StaleLease) -> None:
        """The fence refused: forget the lease."""
        self.stats.stale_commits += 1
        self.failed(error)
        self.keeper.lost(lease)

    def failed(self, error: BaseException) -> None:
        """Count a failure, and log it where it is an expected one."""
        self.stats.last_round = time.monotonic()
        self.stats.failures += 1
        self.stats.last_error = f"{type(error).__name__}: {error}"
        if isinstance(error, PenstockError) or database.is_unavailable(error):
            log.warning("%s", self.stats.last_error)

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

    def _heard(self, notices: Sequence[str]) -> None:
        if not notices or not self.keeper.in_database:
            return  # outside of it every partition is leased, also without events
        held = {str(lease.partition_id) for lease in self.keeper.leases()}
        for notice in notices:
            # Any login may notify this channel: a payload that is no list of partitions is "all".
            if not held.issuperset(notice.split(",")):
                self.keeper.check_in_soon()


def _is_lost(error: BaseException) -> bool:
    away = CoordinationUnavailable | DatabaseUnavailable | ConnectionLost
    return isinstance(error, away) or database.is_unavailable(error)

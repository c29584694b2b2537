"""The loop that works on a connection, round by round: outages, rests, the end.

Consumers, relays and workers of queues are such loops.  What a loop looks after beside its rounds,
such as leases, it has as a :class:`LoopSetting`.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock import database
from penstock.database import dialect as work, sessions
from penstock.database.backoff import backoff
from penstock.database.wake import Wake
from penstock.doctor.waiting import Silence
from penstock.errors import (
    CoordinationUnavailable,
    DatabaseUnavailable,
    PenstockError,
    StaleLease,
    error_text,
)
from penstock.leases.signals import stopped_by_signals

if TYPE_CHECKING:
    from penstock.database import Connection
    from penstock.records import Lease

    #: Of the leases that are asked back: those that can be given back now.
    Free = Callable[[Connection, list[Lease]], list[Lease]]

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
    #: Deliveries of a queue, and those of them whose deliveries before ended unfinished.
    hand_outs: int = 0
    expirations: int = 0
    last_error: str = ""
    last_round: float = field(default_factory=time.monotonic)
    #: When the present rest ends, or the last one ended, if nothing wakes the loop.
    rests_until: float = -math.inf

    def done(self, events: int) -> None:
        """Count events that were committed together."""
        self.events += events
        self.batches += events > 0

    def failed(self, error: BaseException) -> None:
        """Count a failure, and log it if it is an expected one."""
        self.last_round = time.monotonic()
        self.failures += 1
        self.last_error = error_text(error)
        if isinstance(error, PenstockError) or database.is_passing(error):
            log.warning("%s", self.last_error)

    def stale(self, error: StaleLease) -> None:
        """Count a commit that the fence refused."""
        self.stale_commits += 1
        self.failed(error)


def last_turn(last_round: float, rests_until: float) -> float:
    """Since when a loop may be stuck: not while it rests, however long that is."""
    return max(last_round, min(time.monotonic(), rests_until))


class LoopSetting:
    """What a loop looks after beside its rounds.  Here: nothing.  ``name`` is said in the log."""

    def __init__(self, url: str, subscription: str, name: str) -> None:
        self.url = url
        self.subscription = subscription
        self.name = name

    def whole_run(self) -> AbstractContextManager[object]:
        """A context for the whole run of the loop."""
        return nullcontext()

    def woken(self, wake: Wake) -> AbstractContextManager[object]:
        """In the block, ``wake`` ends the loop's rest."""
        return nullcontext()

    def longest_answer(self) -> float:
        """For how long the loop can wait for the database, in seconds."""
        return work.LONGEST_ANSWER_SECONDS

    def works_on(self, connection: Connection | None) -> None:
        """The connection on which the loop makes its rounds."""

    def reconnected(self, connection: Connection) -> None:
        """The database can be used again after an outage."""

    def heard(self, notices: Sequence[str]) -> None:
        """The database says that these partitions have grown."""

    def after_round(self, connection: Connection, free: Free) -> None:
        """Between two rounds: leases can be given back.  ``free``: those of them that can go."""

    def gauges(self) -> dict[str, float]:
        """What the loop has in hand, by metric name."""
        return {}


class Rounds(ABC):
    """Works round by round until told to stop."""

    def __init__(self, setting: LoopSetting, *, idle_seconds: float) -> None:
        self.url = setting.url
        self._subscription = setting.subscription
        self._name = name = setting.name
        self._idle_seconds = idle_seconds
        self._setting = setting
        self._stop: threading.Event | None = None
        self._outages = 0
        self._listener: work.Listener | None = None
        #: Says why nothing comes.
        self.silence = Silence(lambda why: log.warning("%s receives nothing: %s", name, why))
        self.stats = LoopStats()

    def is_stopping(self) -> bool:
        """Whether the loop begins nothing more."""
        return self._stop is not None and self._stop.is_set()

    @abstractmethod
    def round(self, connection: Connection) -> int:
        """One round.  Returns how much was done: after nothing, the loop rests."""

    def let_go(self, connection: Connection, asked: list[Lease]) -> list[Lease]:
        """Those of these leases that have nothing in hand, now or after what this does."""
        return asked

    def turn(self, connection: Connection) -> int:
        """One round, and then give back the leases that are asked back and have nothing in hand."""
        self.stats.last_round = time.monotonic()
        done = self.round(connection)
        self._setting.after_round(connection, self.let_go)
        return done

    def run(self, stop: threading.Event | None = None) -> None:
        """Work until ``stop`` is set.  The events in hand are finished and committed first.

        Without ``stop``, SIGINT (Ctrl-C) and SIGTERM end it in the same way, in the main thread.
        """
        with stopped_by_signals(stop) as asked:
            self._run(asked)

    def _run(self, stop: threading.Event) -> None:
        self._stop = stop
        with ExitStack() as whole:
            if not self._entered(whole, stop):
                return
            whole.enter_context(self.at_work())
            while not stop.is_set():
                try:
                    self._work(stop)
                except Exception as error:
                    if not self.goes_on_after(error):
                        raise
                    self._outages += 1
                    self.stats.failed(error)
                    stop.wait(backoff(self._outages))

    def _entered(self, whole: ExitStack, stop: threading.Event) -> bool:
        """Enter what lasts for the whole run.  Returns False when told to stop meanwhile.

        A database that cannot be reached at the start may be a wrong address, so that is an error.
        """
        while not stop.is_set():
            try:
                whole.enter_context(self._setting.whole_run())
                return True
            except Exception as error:
                away = isinstance(error, DatabaseUnavailable) or database.is_unavailable(error)
                if away or not database.is_passing(error):
                    raise
                self._outages += 1
                self.stats.failed(error)
                stop.wait(backoff(self._outages))
        return False

    def goes_on_after(self, error: Exception) -> bool:
        """Whether the loop goes on after an error, on another connection.

        That is so after an error of the database's present state: it is away, takes no writes, has
        cancelled a statement, or a lock took too long.
        """
        away = CoordinationUnavailable | ConnectionLost
        return isinstance(error, away) or database.is_passing(error)

    def gauges(self) -> dict[str, float]:
        """What it has in hand, by metric name."""
        return self._setting.gauges()

    @property
    def application_name(self) -> str:
        """What its connections are called in the database."""
        return f"penstock {self._subscription}"[:63]

    def open(self) -> Connection:
        """A connection for the work.

        Each call on it ends in time to go on before others have to take over.  The server may do
        what was asked for all the same.
        """
        connection = self.open_for_handlers()
        seconds = self._setting.longest_answer()
        sessions.of_connection(connection).answer_within(connection, seconds)
        return connection

    def open_for_handlers(self) -> Connection:
        """A connection that the loop does not wait for: a handler's call may take longer."""
        return database.connect(self.url, application_name=self.application_name)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """A context in which the loop can be woken."""
        wake = Wake()
        try:
            with self.woken(wake):
                yield
        finally:
            wake.close()

    @contextmanager
    def woken(self, wake: Wake) -> Iterator[None]:
        """In the block, ``wake`` ends the loop's rest."""
        self._wake = wake
        with self._setting.woken(wake):
            yield

    def session(self, connection: Connection) -> AbstractContextManager[object]:
        """A context for one connection of the loop.  The work on that connection ends with it."""
        return nullcontext()

    def rest(self) -> None:
        """After a round without work: wait until events are sequenced, or the loop is woken."""
        assert self._listener is not None
        seconds = self.longest_rest()
        self.stats.rests_until = time.monotonic() + seconds
        try:
            notices = self._listener.wait(seconds, self._wake)
        finally:
            # Something may have ended it earlier: from now on, the loop can be stuck.
            self.stats.rests_until = min(self.stats.rests_until, time.monotonic())
        self.heard(notices)
        self._wake.clear()

    def heard(self, notices: Sequence[str]) -> None:
        """The database says that these partitions have grown."""
        self._setting.heard(notices)

    def longest_rest(self) -> float:
        """How long the loop may rest at most."""
        return self._idle_seconds

    def _work(self, stop: threading.Event) -> None:
        with self.open() as connection:
            if self._outages:
                self._setting.reconnected(connection)
            with self.session(connection):
                self._work_on(connection, stop)

    def _work_on(self, connection: Connection, stop: threading.Event) -> None:
        self._listener = sessions.of_connection(connection).listen(connection)
        self._setting.works_on(connection)
        try:
            while not stop.is_set():
                done = self.turn(connection)
                if self._outages:
                    log.info("%s works again", self._name)
                self._outages = 0
                if done:
                    self.silence.ended()
                else:
                    self.silence.look(connection)
                    self.rest()
        finally:
            self._setting.works_on(None)
            self._listener = None

"""Keeps all consumers of a process alive: for each database one heartbeat and two connections.

One thread sends the heartbeat of all keepers of the process.  Another thread lets them check in
when they are due, one at a time.  A check-in that waits for a lock delays no heartbeat.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from penstock import database
from penstock.database import sessions
from penstock.database.backoff import MAX_RECONNECT_SECONDS, backoff
from penstock.database.dialect import LONGEST_ANSWER_SECONDS
from penstock.subscriptions import stream

if TYPE_CHECKING:
    from penstock.database import Connection
    from penstock.subscriptions.stream import Beat, Membership

log = logging.getLogger(__name__)

#: A statement that takes longer has failed, because others of the process wait for it.
STATEMENT_TIMEOUT_MS = 10_000
#: A consumer whose next heartbeat is due within this share of its interval is included.
EARLY_SHARE = 0.5
#: How often to look whether a loop that waits for the database goes on.
STUCK_LOOK_SECONDS = 0.2

_by_database: dict[tuple[int, str], HeartbeatThreads] = {}
_by_database_lock = threading.Lock()


def _after_fork() -> None:
    """In the new process: another thread may have had the lock, and is not there."""
    global _by_database_lock
    _by_database_lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


class Kept(Protocol):
    """What the heartbeat threads need of each keeper.  Times are monotonic."""

    def may_beat(self, now: float) -> bool:
        """Whether there is a membership that a heartbeat can keep alive."""
        ...

    def is_stuck(self) -> bool:
        """Whether its loop has waited for the database longer than a lease."""
        ...

    def beat_due(self, share: float = 1.0) -> float:
        """When the next heartbeat is due, or ``share`` of the interval after the last one."""
        ...

    def begin_beat(self) -> tuple[Membership, float]:
        """The member to beat for, and when the beat began."""
        ...

    def beaten(self, member: Membership, begun: float, beat: Beat) -> None:
        """Take what the heartbeat returned."""
        ...

    def check_in_due(self) -> float:
        """When the next check-in is due."""
        ...

    def check_in(self) -> None:
        """Check in once."""
        ...

    def doubt(self) -> None:
        """The connection was lost: known positions may be out of date."""
        ...

    def compare(self, connection: Connection) -> None:
        """Compare what is known with the log, over a new connection."""
        ...


def enter(keeper: Kept, url: str) -> HeartbeatThreads:
    """Add a keeper to the heartbeat threads of a database.  The first keeper starts them."""
    with _by_database_lock:
        heartbeat_threads = _by_database.setdefault((os.getpid(), url), HeartbeatThreads(url))
        heartbeat_threads.keepers.append(keeper)
        return heartbeat_threads


def leave(keeper: Kept, heartbeat_threads: HeartbeatThreads) -> None:
    """Take a keeper out.  The threads end with the last one."""
    with _by_database_lock:
        heartbeat_threads.keepers.remove(keeper)
        last = not heartbeat_threads.keepers
        if last:
            _by_database.pop((os.getpid(), heartbeat_threads.url), None)
    if last:
        heartbeat_threads.end()


class HeartbeatThreads:
    """The heartbeat and the check-ins of a process in one database."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.keepers: list[Kept] = []
        self._ended = threading.Event()
        self._beat_now = threading.Event()
        self._look_now = threading.Event()
        self._check_in_lock = threading.Lock()
        self._check_in_connection: Connection | None = None
        #: The heartbeat has lost its connection: that of the check-ins is likely to be lost too.
        self._is_suspect = False
        self._threads: list[threading.Thread] = []
        self._starting = threading.Lock()

    def start(self) -> None:
        """Start the threads, unless they run.  Called after a keeper has joined."""
        with self._starting:
            if not self._threads:
                for name, work in (("heartbeat", self._beat), ("check-ins", self._look)):
                    self._threads.append(
                        threading.Thread(target=work, name=f"penstock {name}", daemon=True)
                    )
                    self._threads[-1].start()
        self.wake()

    def wake(self) -> None:
        """Look again which keeper has a heartbeat or a check-in due."""
        self._beat_now.set()
        self._look_now.set()

    def end(self) -> None:
        """Stop both threads and close both connections."""
        self._ended.set()
        self.wake()
        for thread in self._threads:
            thread.join()
        with self._check_in_lock:
            self._close_check_in_connection()

    def open(self) -> Connection:
        """A connection for heartbeats or for check-ins."""
        connection = database.connect(
            self.url,
            application_name=f"penstock keeper {os.getpid()}",
            statement_timeout_ms=STATEMENT_TIMEOUT_MS,
        )
        sessions.of_connection(connection).answer_within(connection, LONGEST_ANSWER_SECONDS)
        return connection

    @contextmanager
    def check_in_connection(self) -> Iterator[Connection]:
        """The connection for check-ins, for one keeper at a time; closed when the block loses it.

        A new connection may lead to another server, or to an earlier state of this one.  So every
        keeper that knows positions has to compare them.
        """
        with self._check_in_lock:
            try:
                if self._is_suspect:
                    self._close_check_in_connection()
                if self._check_in_connection is None:
                    self._is_suspect = False
                    self._check_in_connection = self.open()
                yield self._check_in_connection
            except Exception as error:
                if database.is_unavailable(error) or self._check_in_connection is None:
                    self._close_check_in_connection()
                    self._doubt()
                raise

    def _close_check_in_connection(self) -> None:
        if self._check_in_connection is not None:
            self._check_in_connection.close()
            self._check_in_connection = None

    def _doubt(self) -> None:
        for keeper in list(self.keepers):
            keeper.doubt()

    def _beat(self) -> None:
        connection: Connection | None = None
        failures = 0
        while not self._ended.is_set():
            try:
                if connection is None:
                    connection = self.open()
                    for keeper in list(self.keepers):
                        keeper.compare(connection)
                wait = self._beat_once(connection)
                if failures:
                    log.info("heartbeats reach the database again")
                failures = 0
            except Exception as error:
                log.warning("heartbeat failed: %s", error)
                failures += 1
                _close(connection)
                connection = None
                self._is_suspect = True
                self._doubt()
                wait = backoff(failures)
            self._sleep(self._beat_now, wait)
        _close(connection)

    def _beat_once(self, connection: Connection) -> float:
        """One statement for all keepers that are due.  Returns when the next one is due."""
        now = time.monotonic()
        alive = [keeper for keeper in list(self.keepers) if keeper.may_beat(now)]
        if alive and min(keeper.beat_due() for keeper in alive) <= now:
            chosen = [keeper for keeper in alive if keeper.beat_due(EARLY_SHARE) <= now]
            asked = [keeper.begin_beat() for keeper in chosen]
            found = stream.heartbeats(connection, [member for member, _ in asked], alone=True)
            for keeper, (member, begun), beat in zip(chosen, asked, found, strict=True):
                keeper.beaten(member, begun, beat)
            self._look_now.set()
        now = time.monotonic()
        waits = [keeper.beat_due() - now for keeper in alive]
        # Its loop may go on at any time, and the lease must not end then.
        waits += [STUCK_LOOK_SECONDS for keeper in list(self.keepers) if keeper.is_stuck()]
        return min(waits, default=MAX_RECONNECT_SECONDS)

    def _look(self) -> None:
        while not self._ended.is_set():
            now = time.monotonic()
            due = [keeper for keeper in list(self.keepers) if keeper.check_in_due() <= now]
            for keeper in sorted(due, key=lambda each: each.check_in_due()):
                if not self._ended.is_set():
                    keeper.check_in()
            now = time.monotonic()
            times = [keeper.check_in_due() - now for keeper in list(self.keepers)]
            self._sleep(self._look_now, min(times, default=MAX_RECONNECT_SECONDS))

    def _sleep(self, event: threading.Event, seconds: float) -> None:
        """Sleep until :meth:`wake`, at most so long."""
        if not self._ended.is_set():
            event.wait(max(0.0, min(seconds, MAX_RECONNECT_SECONDS)))
        event.clear()


def _close(connection: Connection | None) -> None:
    if connection is not None:
        connection.close()

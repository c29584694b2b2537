"""What the page reads: a connection of its own, each reading bounded in time, kept for a moment."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from penstock import database
from penstock.database import sessions
from penstock.errors import DatabaseUnavailable, PenstockError, PermissionDenied

logger = logging.getLogger("penstock.page")

T = TypeVar("T")

#: How old a reading may be: several people who look cost as much as one.
FRESH_SECONDS = 2.0
#: A statement that takes longer is ended by the database.
STATEMENT_TIMEOUT_MS = 3_000
#: A reading of many things ends after so long, and what was not read is said to be so.
BUDGET_SECONDS = 2.0
#: How long a request waits for another one that is using the connection.
PATIENCE_SECONDS = 10.0
#: From here on a count says only that there are so many or more.
MOST_COUNTED = 10_000


class CannotRead(Exception):
    """Something was not read; the text says why, without a secret."""


@dataclass(frozen=True, slots=True)
class Reading(Generic[T]):
    """What was read and when; ``problem`` says why there is nothing."""

    value: T | None
    at: datetime
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Budget:
    """How much time a reading has."""

    until: float
    clock: Callable[[], float]

    def is_over(self) -> bool:
        """Whether to stop now."""
        return self.clock() >= self.until


class Readings:
    """Asks the database for the page, one question at a time."""

    def __init__(self, url: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.url = url
        self._clock = clock
        self._lock = threading.Lock()
        self._keeping = threading.Lock()
        self._connection: Any = None
        self._kept: dict[object, tuple[float, Reading[Any]]] = {}

    def read(
        self, name: object, work: Callable[[Any], T], fresh_seconds: float = FRESH_SECONDS
    ) -> Reading[T]:
        """What ``work`` returns for a connection, or what it returned a moment ago."""
        with self._keeping:
            kept = self._kept.get(name)
        if kept is not None and self._clock() - kept[0] < fresh_seconds:
            return kept[1]
        try:
            found = Reading(self._asked(work), datetime.now(UTC))
        except CannotRead as error:
            found = Reading(None, datetime.now(UTC), str(error))
        with self._keeping:
            # A reading may be large, so none stays that nobody would be shown.
            now = self._clock()
            young = {key: each for key, each in self._kept.items() if now - each[0] < fresh_seconds}
            self._kept = young | {name: (now, found)}
        return found

    def change(self, work: Callable[[Any], T]) -> T:
        """What ``work`` returns, in a transaction; CannotRead when it was refused."""

        def whole(connection: Any) -> T:
            with sessions.of_connection(connection).transaction(connection):
                return work(connection)

        try:
            return self._asked(whole)
        finally:
            with self._keeping:
                self._kept.clear()

    def budget(self) -> Budget:
        """The time that one reading of many things has."""
        return Budget(self._clock() + BUDGET_SECONDS, self._clock)

    def now(self) -> float:
        """A clock that only goes forward."""
        return self._clock()

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._drop()

    def _asked(self, work: Callable[[Any], T]) -> T:
        with self._turn():
            try:
                if self._connection is None:
                    self._connection = database.connect(
                        self.url,
                        application_name="penstock page",
                        statement_timeout_ms=STATEMENT_TIMEOUT_MS,
                    )
                return work(self._connection)
            except Exception as error:
                if isinstance(error, PenstockError) and not database.is_passing(error):
                    raise CannotRead(_told(error)) from error
                self._drop()
                if isinstance(error, PenstockError | OSError) or _is_of_driver(error):
                    raise CannotRead(_told(error)) from error
                raise

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        if not self._lock.acquire(timeout=PATIENCE_SECONDS):
            raise CannotRead("others are reading: look again in a moment")
        try:
            yield
        finally:
            self._lock.release()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):  # PyMySQL raises if it is already lost
                connection.close()


class Background(Generic[T]):
    """What takes long is read by a thread of its own; visits get the last result meanwhile."""

    def __init__(
        self, work: Callable[[], T], fresh_seconds: float, clock: Callable[[], float]
    ) -> None:
        self._work = work
        self._fresh_seconds = fresh_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._begun_at = float("-inf")
        self._ended = threading.Event()
        self._ended.set()
        self._found: Reading[T] | None = None

    def read(self) -> Reading[T]:
        """The last result; at first, it is waited for, but not for long."""
        with self._lock:
            is_old = self._clock() - self._begun_at >= self._fresh_seconds
            if is_old and self._ended.is_set():
                self._begun_at = self._clock()
                self._ended.clear()
                threading.Thread(target=self._run, name="page", daemon=True).start()
        if self._found is None:
            self._ended.wait(BUDGET_SECONDS)
        return self._found or Reading(None, datetime.now(UTC), "the look is not over yet")

    def _run(self) -> None:
        try:
            self._found = Reading(self._work(), datetime.now(UTC))
        except Exception as error:  # whatever it is, the page must say something
            self._found = Reading(None, datetime.now(UTC), _told(error))
        finally:
            self._ended.set()


def _is_of_driver(error: Exception) -> bool:
    """Whether it is one of the errors that PEP 249 names."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"DatabaseError", "InterfaceError"})


def _told(error: Exception) -> str:
    """What the page says of an error.  Texts of drivers name addresses and logins."""
    if isinstance(error, PermissionDenied):
        return "the page's login may not do this"
    if isinstance(error, PenstockError) and not isinstance(error, DatabaseUnavailable):
        return str(error)
    if database.is_cancelled(error):
        return f"it took longer than {STATEMENT_TIMEOUT_MS // 1_000} seconds"
    logger.warning("the page could not ask the database: %s", error)
    return f"the database cannot be used ({type(error).__name__})"

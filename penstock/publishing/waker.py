"""Waking an idle sequencer after a COMMIT, so that an event need not wait for its next look.

The wake goes over a connection and a thread of its own.  The publisher's transaction has no part
in it, and the publisher neither waits for it nor sees its failure.
"""

from __future__ import annotations

import logging
import os
import threading
from contextlib import suppress
from types import TracebackType
from typing import Any

from penstock import database
from penstock.database import config
from penstock.database.backoff import backoff, doubled
from penstock.errors import InvalidArgument, NotOnThisEngine
from penstock.publishing import hooks

logger = logging.getLogger(__name__)

#: Between two calls.  While the sequencer is not idle, the pause doubles up to the longest.
REST_SECONDS, LONGEST_REST_SECONDS = 0.02, 1.0
STATEMENT_TIMEOUT_MS = 2_000
#: How long :meth:`Waker.close` waits for a call that is under way.
CLOSE_SECONDS = 5.0


class Waker:
    """Wakes the sequencer of one PostgreSQL database.  Make one for the whole process.

    It connects when it is first used, by one thread, and after a fork again in the new process.
    Without a ``url`` it is the database that the environment names.
    """

    def __init__(self, url: str | None = None) -> None:
        self._url = url or config.database_url()
        if config.dialect_of_url(self._url) != "postgres":
            raise NotOnThisEngine(
                "only PostgreSQL can notify a sequencer that rests",
                hint="publish without a waker; the sequencer looks every 50 ms by itself",
            )
        #: By process, without a lock that a fork could copy while it is held.
        self._ringers: dict[int, _Notifier] = {}

    def wake(self) -> None:
        """Ask for a wake, and return at once.  Call it after a COMMIT.

        It raises nothing.  What fails is counted, and logged once until it works again.
        """
        notifier = self._ringers.get(os.getpid())
        if notifier is None:
            made = _Notifier(self._url)
            notifier = self._ringers.setdefault(os.getpid(), made)
            if notifier is made:
                made.begin()
        notifier.asked.set()

    def after_commit(self, connection: Any) -> None:
        """Wake when the transaction that is open on the connection has committed, and only then.

        For SQLAlchemy's Session, AsyncSession and scoped sessions, and Django's connections.
        """
        hooks.after_commit(connection, self.wake)

    def transaction(self, connection: Any) -> _Transaction:
        """A transaction on a connection of psycopg, asyncpg or SQLAlchemy that wakes at its end.

        On an asynchronous connection use it with ``async with``.  Inside another transaction it is
        a savepoint, and wakes nobody.
        """
        begin = getattr(connection, "transaction", None) or getattr(connection, "begin", None)
        if not callable(begin):
            raise InvalidArgument(
                f"{type(connection).__name__} has no transaction() and no begin()",
                hint="call waker.wake() after the commit; on Django use waker.after_commit(...)",
            )
        return _Transaction(connection, begin(), self)

    def counters(self) -> dict[str, int]:
        """Of this process: calls, those of them that found an idle sequencer, and failures."""
        notifier = self._ringers.get(os.getpid())
        if notifier is None:
            return {"calls": 0, "notices": 0, "failures": 0}
        return {"calls": notifier.calls, "notices": notifier.notices, "failures": notifier.failures}

    def close(self) -> None:
        """End the thread and its connection.  A later wake begins anew."""
        notifier = self._ringers.pop(os.getpid(), None)
        if notifier is not None:
            notifier.end()

    def __enter__(self) -> Waker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Transaction:
    """A transaction, synchronous or asynchronous, after whose commit the sequencer is woken."""

    def __init__(self, connection: Any, inner: Any, waker: Waker) -> None:
        self._connection = connection
        self._inner = inner
        self._waker = waker

    def __enter__(self) -> Any:
        return self._inner.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Any:
        answer = self._inner.__exit__(kind, error, trace)
        self._ended(kind)
        return answer

    async def __aenter__(self) -> Any:
        return await self._inner.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Any:
        answer = await self._inner.__aexit__(kind, error, trace)
        self._ended(kind)
        return answer

    def _ended(self, kind: type[BaseException] | None) -> None:
        if kind is None and not _in_transaction(self._connection):
            self._waker.wake()


def _in_transaction(connection: Any) -> bool:
    for name in ("in_transaction", "is_in_transaction"):  # SQLAlchemy's, asyncpg's
        asked = getattr(connection, name, None)
        if asked is not None:
            return bool(asked())
    return bool(connection.info.transaction_status)  # psycopg: 0 is idle


class _Notifier(threading.Thread):
    """Makes the calls of one process, on one connection."""

    def __init__(self, url: str) -> None:
        super().__init__(name="penstock-waker", daemon=True)
        self.asked = threading.Event()
        self.calls = self.notices = self.failures = 0
        self._url = url
        self._ended = threading.Event()
        self._connection: database.Connection | None = None
        self._outage = self._needless = 0

    def begin(self) -> None:
        """Start.  A process that is about to end may start no thread; then nobody is woken."""
        try:
            self.start()
        except RuntimeError as error:
            self._failed(error)

    def end(self) -> None:
        """End, and close the connection."""
        self._ended.set()
        self.asked.set()
        if self.is_alive():
            self.join(CLOSE_SECONDS)

    def run(self) -> None:
        """Call when asked, with a rest after each call; what is asked meanwhile is one call."""
        while self.asked.wait() and not self._ended.is_set():
            self.asked.clear()
            self._ended.wait(self._ring())
        self._drop()

    def _ring(self) -> float:
        """One call.  Returns how long to rest after it."""
        try:
            sent = self._called_again() if self._connection is None else self._called()
        except Exception as error:  # the publisher has committed: it must not learn of this
            return self._failed(error)
        if self._outage:
            logger.info("the sequencer can be woken again")
        self._outage = 0
        self.calls += 1
        self.notices += sent
        self._needless = 0 if sent else self._needless + 1
        return doubled(self._needless + 1, REST_SECONDS, LONGEST_REST_SECONDS)

    def _called(self) -> bool:
        """One lost connection does not mean that the database is down."""
        assert self._connection is not None
        try:
            return bool(database.call(self._connection, "wake_sequencer")[0][0])
        except Exception as error:
            if not database.is_unavailable(error):
                raise
            return self._called_again()

    def _called_again(self) -> bool:
        """The same on a new connection."""
        self._drop()
        self._connection = database.connect(
            self._url,
            application_name="penstock waker",
            statement_timeout_ms=STATEMENT_TIMEOUT_MS,
        )
        return bool(database.call(self._connection, "wake_sequencer")[0][0])

    def _failed(self, error: BaseException) -> float:
        self._drop()
        self.failures += 1
        self._outage += 1
        if self._outage == 1:
            logger.warning("the sequencer is not woken, it looks by itself: %s", error)
        return backoff(self._outage)

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):  # it may be lost already
                connection.close()

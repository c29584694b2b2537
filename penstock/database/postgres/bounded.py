"""Our own connections to PostgreSQL: each call ends, whatever the network does.

A server's limit of time does not help where its answer never arrives: behind a proxy or a pooler
that still acknowledges, neither TCP's keepalives nor its own limit notice anything.  So the client
gives up by itself, and closes the socket: what the server did is not known then, as with any lost
connection.
"""

from __future__ import annotations

import inspect
from functools import cache
from time import monotonic
from typing import Any

from penstock.database.dialect import ANSWER_SLACK_SECONDS

#: How often psycopg looks for an interruption from the keyboard while it waits.
_INTERVAL = 0.1


@cache
def kinds() -> tuple[Any, Any]:
    """The classes of our synchronous and asynchronous connections.

    Before 3.3 psycopg cannot end a wait.  There TCP's own limits have to do.
    """
    import psycopg

    if "timeout" not in inspect.signature(psycopg.Connection.wait).parameters:
        return psycopg.Connection, psycopg.AsyncConnection
    return _bounded(psycopg.Connection), _bounded_async(psycopg.AsyncConnection)


def answer_seconds(statement_timeout_ms: int) -> float | None:
    """How long a call may take; None (no limit) without a limit of statements."""
    return statement_timeout_ms / 1000 + ANSWER_SLACK_SECONDS if statement_timeout_ms > 0 else None


def _bounded(driver_connection: Any) -> Any:
    from psycopg import errors

    driver_wait = driver_connection.wait

    class Connection(driver_connection):  # type: ignore[misc]
        """psycopg's, whose waits end."""

        #: The limit of each wait, and when the present one began, by the monotonic clock.
        answer_seconds: float | None = None
        waiting_since: float | None = None

        def wait(self, gen: Any, interval: float = _INTERVAL, timeout: float | None = None) -> Any:
            if timeout is not None:  # it waits for notices, not for an answer
                return driver_wait(self, gen, interval, timeout)
            self.waiting_since = monotonic()
            try:
                return driver_wait(self, gen, interval, self.answer_seconds)
            except errors._WaitTimeout:
                raise _given_up(self) from None
            finally:
                self.waiting_since = None

    return Connection


def _bounded_async(driver_connection: Any) -> Any:
    from psycopg import errors

    class AsyncConnection(driver_connection):  # type: ignore[misc]
        """psycopg's, whose waits end."""

        answer_seconds: float | None = None

        async def wait(
            self, gen: Any, interval: float = _INTERVAL, timeout: float | None = None
        ) -> Any:
            limit = self.answer_seconds if timeout is None else timeout
            try:
                return await super().wait(gen, interval, limit)
            except errors._WaitTimeout:
                if timeout is not None:
                    raise
                raise _given_up(self) from None

    return AsyncConnection


def _given_up(connection: Any) -> Exception:
    from psycopg import OperationalError

    connection.pgconn.finish()
    return OperationalError(
        f"the server has not answered for {connection.answer_seconds:g} s; the connection is closed"
    )

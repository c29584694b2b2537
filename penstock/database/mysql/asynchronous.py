"""A connection to MySQL or MariaDB for coroutines: PyMySQL in a thread of its own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from socket import SHUT_RDWR
from typing import Any, TypeVar

from penstock.database.mysql.connection import MySQL, in_transaction
from penstock.database.mysql.session import MySQLWork

T = TypeVar("T")
_WORK = MySQLWork()


class Rows:
    """What a statement returned.  All of it is read already."""

    def __init__(self, cursor: Any) -> None:
        self.rowcount: int = cursor.rowcount
        self.lastrowid: int | None = cursor.lastrowid
        self._rows = iter(cursor.fetchall() if cursor.description is not None else ())

    async def fetchone(self) -> tuple[Any, ...] | None:
        """The next row; None after the last one."""
        return next(self._rows, None)

    async def fetchall(self) -> list[tuple[Any, ...]]:
        """The rows that are left."""
        return list(self._rows)


class AsyncMySQLConnection:
    """What a handler uses of psycopg's AsyncConnection, on MySQL and MariaDB.

    One thread makes its statements, one after the other.  A coroutine that is cancelled while a
    statement is under way ends the connection, because nobody can take the statement back.
    """

    def __init__(self, driver: Any, thread: ThreadPoolExecutor) -> None:
        #: PyMySQL's connection.  Only the thread may use it.
        self.driver = driver
        #: Whether a statement was left alone.
        self.broken = False
        self._thread = thread

    @property
    def closed(self) -> bool:
        """Whether the connection is gone."""
        return not self.driver.open

    async def execute(
        self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None
    ) -> Rows:
        """Run one statement, with ``%s`` or ``%(name)s`` for its parameters."""
        return await self.run_sync(_execute, sql, parameters)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """A transaction that commits at the end, or rolls back when its block raises.

        Inside of a transaction it is a savepoint, as psycopg's is: another BEGIN would commit.
        """
        within = in_transaction(self.driver)
        whole = self.driver.transaction() if within else _WORK.transaction(self.driver)
        await self._in_thread(whole.__enter__)
        try:
            yield
        except BaseException:
            await self._in_thread(whole.__exit__, *sys.exc_info())
            raise
        await self._in_thread(whole.__exit__, None, None, None)

    async def run_sync(self, function: Callable[..., T], /, *given: Any, **options: Any) -> T:
        """Call a function of PyMySQL's connection in the thread, such as `penstock.publish`."""
        return await self._in_thread(lambda: function(self.driver, *given, **options))

    async def is_rolled_back(self) -> bool:
        """Whether the transaction was rolled back while its block ignored the error."""
        return await self.run_sync(_WORK.is_broken)

    async def close(self) -> None:
        """End the connection and its thread."""
        try:
            await self._in_thread(_close, self.driver)
        finally:
            self._thread.shutdown(wait=False)

    async def _in_thread(self, function: Callable[..., T], *given: Any) -> T:
        future = asyncio.get_running_loop().run_in_executor(self._thread, function, *given)
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            self._cut()
            future.add_done_callback(_ignore)
            raise
        return future.result()

    def _cut(self) -> None:
        """Wake the thread, which waits for the server.  The server rolls back."""
        self.broken = True
        with suppress(Exception):
            self.driver._sock.shutdown(SHUT_RDWR)


async def connect_async(
    url: str, *, application_name: str, statement_timeout_ms: int
) -> AsyncMySQLConnection:
    """A connection that commits by itself, with the limits of a synchronous one."""
    thread = ThreadPoolExecutor(1, thread_name_prefix="penstock-mysql")

    def connect() -> Any:
        return MySQL().connect(
            url,
            autocommit=True,
            application_name=application_name,
            statement_timeout_ms=statement_timeout_ms,
        )

    try:
        driver = await asyncio.get_running_loop().run_in_executor(thread, connect)
    except BaseException:
        thread.shutdown(wait=False)
        raise
    return AsyncMySQLConnection(driver, thread)


def _execute(driver: Any, sql: str, parameters: Any) -> Rows:
    with driver.cursor() as cursor:
        cursor.execute(sql, parameters)
        return Rows(cursor)


def _close(driver: Any) -> None:
    with suppress(Exception):  # it may be gone already
        driver.close()


def _ignore(future: asyncio.Future[Any]) -> None:
    """Read the error of a statement that nobody waits for, so that nothing is logged."""
    if not future.cancelled():
        future.exception()

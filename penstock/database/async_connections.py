"""How statements reach each kind of asynchronous connection, and steps run on it."""

from __future__ import annotations

import inspect
import re
from contextlib import AbstractContextManager
from functools import cache
from time import perf_counter
from typing import Any, TypeVar

from penstock.database import calls, catalog, config, dialects, timings, unwrap
from penstock.database.dialect import Dialect
from penstock.database.mysql import asynchronous as mysql
from penstock.database.mysql.session import MySQLWork
from penstock.database.postgres import connection as postgres
from penstock.database.postgres.session import PostgresWork
from penstock.database.steps import Call, Rows, Steps
from penstock.errors import InvalidArgument

T = TypeVar("T")

_POSTGRES = PostgresWork()
_ASYNCPG = {"asyncpg.connection.Connection", "asyncpg.connection._ConnectionProxy"}
_BIND = re.compile(r"%\((\w+)\)s")


class AsyncDriver:
    """How statements reach one kind of connection."""

    dialect: Dialect = dialects.POSTGRES

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        #: The driver's own connection; it says how columns are written.
        self.driver = self.driver_connection()

    def driver_connection(self) -> Any:
        return self.connection

    async def call(self, step: Call) -> Rows:
        """Run a named statement; errors of Penstock's SQL become typed ones."""
        statement = catalog.statement(self.dialect.name, step.name, config.schema_name())
        observe, begun = timings.observer, perf_counter()
        try:
            with calls.typed_errors():
                return await self.execute(statement.text, step.binds)
        finally:
            if observe is not None and step.name in timings.OPERATIONS:
                observe(timings.OPERATIONS[step.name], perf_counter() - begun)

    async def execute(self, sql: str, binds: dict[str, Any]) -> Rows:
        raise NotImplementedError


class _MySQL(AsyncDriver):
    """What :func:`connect_async` opens there: the thread makes the calls."""

    dialect = dialects.MYSQL

    def driver_connection(self) -> Any:
        return self.connection.driver

    async def call(self, step: Call) -> Rows:
        rows: Rows = await self.connection.run_sync(calls.call, step.name, **step.binds)
        return rows


class _Psycopg(AsyncDriver):
    async def execute(self, sql: str, binds: dict[str, Any]) -> Rows:
        import psycopg

        kind = self.connection.cursor_factory
        if issubclass(kind, psycopg.AsyncRawCursor):  # it takes no named parameters
            kind = psycopg.AsyncCursor
        async with kind(self.connection, row_factory=psycopg.rows.tuple_row) as cursor:
            await cursor.execute(sql, binds or None)
            if cursor.description is not None:
                return list(await cursor.fetchall())
            if not postgres.is_in_pipeline(self.connection):
                return []
            try:
                return list(await cursor.fetchall())
            except psycopg.ProgrammingError:
                if cursor.pgresult is None or cursor.description is not None:
                    raise
                return []  # a statement without rows


class _Asyncpg(AsyncDriver):
    async def execute(self, sql: str, binds: dict[str, Any]) -> Rows:
        numbered, names = _numbered(sql)
        found = await self.connection.fetch(numbered, *(binds[name] for name in names))
        return [tuple(row) for row in found]


class _Sqlalchemy(AsyncDriver):
    """SQLAlchemy's AsyncConnection, which must be told that a transaction begins."""

    def driver_connection(self) -> Any:
        return self.connection.sync_connection.connection.driver_connection

    async def execute(self, sql: str, binds: dict[str, Any]) -> Rows:
        given: Any = binds or None
        if self.connection.dialect.driver == "asyncpg":
            sql, names = _numbered(sql)
            given = tuple(binds[name] for name in names)
        result = await self.connection.exec_driver_sql(sql, given)
        return [tuple(row) for row in result] if result.returns_rows else []


async def connect_async(url: str, *, application_name: str, seconds: float = 30) -> Any:
    """An asynchronous connection that commits by itself: psycopg's, or for MySQL one of ours."""
    kind = mysql if config.dialect_of_url(url) == "mysql" else postgres
    return await kind.connect_async(
        url, application_name=application_name, statement_timeout_ms=int(seconds * 1000)
    )


def unended(connection: Any) -> AbstractContextManager[Any]:
    """In this block, SQL text on such a connection must not end the transaction."""
    if isinstance(connection, mysql.AsyncMySQLConnection):
        return MySQLWork().unended(connection.driver)
    return _POSTGRES.unended(connection)


async def is_rolled_back(connection: Any) -> bool:
    """Whether the transaction of such a connection has failed while its block ignored that."""
    if isinstance(connection, mysql.AsyncMySQLConnection):
        return await connection.is_rolled_back()
    return _POSTGRES.is_broken(connection)


async def async_driver_of(connection: Any) -> AsyncDriver:
    """The way to an asynchronous connection of psycopg, asyncpg, SQLAlchemy, or of a consumer.

    InvalidArgument for all others.
    """
    if isinstance(connection, mysql.AsyncMySQLConnection):
        return _MySQL(connection)
    if hasattr(connection, "sync_session"):  # AsyncSession
        connection = await connection.connection()
    if hasattr(connection, "sync_connection") and connection.sync_connection is not None:
        if connection.dialect.name != "postgresql":
            raise InvalidArgument(
                f"penstock.aio does not support {connection.dialect.name} yet",
                hint="give a synchronous connection to the function of the same name in penstock",
            )
        return _Sqlalchemy(connection)
    if hasattr(connection, "pgconn") and inspect.iscoroutinefunction(connection.commit):
        return _Psycopg(connection)
    if is_asyncpg(connection):
        return _Asyncpg(connection)
    raise InvalidArgument(
        f"{type(connection).__name__} is not an asynchronous connection",
        hint=unwrap.TAKE_ONE
        if unwrap.gives_connections(connection)
        else "give a psycopg.AsyncConnection, an asyncpg connection, or SQLAlchemy's "
        "AsyncConnection or AsyncSession; for others there is penstock.publish",
    )


def is_asyncpg(connection: Any) -> bool:
    """Whether it is a connection of asyncpg, or one that a pool of asyncpg has lent.

    A pool has the methods of a connection too.  It runs each statement on any connection, outside
    of the caller's transaction.
    """
    names = {f"{each.__module__}.{each.__name__}" for each in connection.__class__.__mro__}
    return not names.isdisjoint(_ASYNCPG)


async def run(async_driver: AsyncDriver, steps: Steps[T]) -> T:
    """Run the statements that the steps ask for, one after the other; returns their result."""
    try:
        call = next(steps)
        while True:
            try:
                rows = await async_driver.call(call)
            except Exception as error:
                call = steps.throw(error)
            else:
                call = steps.send(rows)
    except StopIteration as done:
        result: T = done.value
        return result


async def run_on(connection: Any, steps: Steps[T]) -> T:
    """The same on a connection, for which it finds the driver."""
    return await run(await async_driver_of(connection), steps)


@cache
def _numbered(sql: str) -> tuple[str, tuple[str, ...]]:
    """The statement with $1, $2, ... for its binds, and their names in that order."""
    names = tuple(dict.fromkeys(_BIND.findall(sql)))
    places = {name: f"${place}" for place, name in enumerate(names, 1)}
    return _BIND.sub(lambda found: places[found[1]], sql), names

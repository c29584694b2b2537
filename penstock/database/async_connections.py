"""How statements reach each kind of asynchronous connection, and steps run on it."""

from __future__ import annotations

import inspect
import re
from functools import cache
from time import perf_counter
from typing import Any, TypeVar

from penstock.database import calls, catalog, config, timings
from penstock.database.steps import Rows, Steps
from penstock.errors import InvalidArgument

T = TypeVar("T")


_DIALECT = "postgres"


_BIND = re.compile(r"%\((\w+)\)s")


class Door:
    """How statements reach one kind of connection."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        #: The driver's own connection; it says how columns are written.
        self.driver = self.driver_connection()

    def driver_connection(self) -> Any:
        return self.connection

    async def execute(self, sql: str, binds: dict[str, Any]) -> Rows:
        raise NotImplementedError


class _Psycopg(Door):
    async def execute(self, sql: str, binds: dict[str, Any]) -> Rows:
        import psycopg

        kind = self.connection.cursor_factory
        if issubclass(kind, psycopg.AsyncRawCursor):  # it takes no named parameters
            kind = psycopg.AsyncCursor
        async with kind(self.connection, row_factory=psycopg.rows.tuple_row) as cursor:
            await cursor.execute(sql, binds or None)
            return [] if cursor.description is None else list(await cursor.fetchall())


class _Asyncpg(Door):
    async def execute(self, sql: str, binds: dict[str, Any]) -> Rows:
        numbered, names = _numbered(sql)
        found = await self.connection.fetch(numbered, *(binds[name] for name in names))
        return [tuple(row) for row in found]


class _Sqlalchemy(Door):
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


async def door_of(connection: Any) -> Door:
    """The way to an asynchronous connection of psycopg, asyncpg or SQLAlchemy.

    InvalidArgument for all others.
    """
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
    if type(connection).__module__.partition(".")[0] == "asyncpg":
        return _Asyncpg(connection)
    raise InvalidArgument(
        f"{type(connection).__name__} is not an asynchronous connection",
        hint="give a psycopg.AsyncConnection, an asyncpg connection, or SQLAlchemy's "
        "AsyncConnection or AsyncSession; for others there is penstock.publish",
    )


async def run(door: Door, steps: Steps[T]) -> T:
    """Run the statements that the steps ask for, one after the other; returns their result."""
    try:
        call = next(steps)
        while True:
            try:
                rows = await _call(door, call.name, call.binds)
            except Exception as error:
                call = steps.throw(error)
            else:
                call = steps.send(rows)
    except StopIteration as done:
        result: T = done.value
        return result


async def run_on(connection: Any, steps: Steps[T]) -> T:
    """The same on a connection, for which it finds the door."""
    return await run(await door_of(connection), steps)


async def _call(door: Door, name: str, binds: dict[str, Any]) -> Rows:
    statement = catalog.statement(_DIALECT, name, config.schema_name())
    observe, begun = timings.observer, perf_counter()
    try:
        with calls.typed_errors():
            return await door.execute(statement.text, binds)
    finally:
        if observe is not None and name in timings.OPERATIONS:
            observe(timings.OPERATIONS[name], perf_counter() - begun)


@cache
def _numbered(sql: str) -> tuple[str, tuple[str, ...]]:
    """The statement with $1, $2, ... for its binds, and their names in that order."""
    names = tuple(dict.fromkeys(_BIND.findall(sql)))
    places = {name: f"${place}" for place, name in enumerate(names, 1)}
    return _BIND.sub(lambda found: places[found[1]], sql), names

"""Every kind of connection that Penstock can publish through, as an application uses it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import django
import psycopg
import pytest
import sqlalchemy
import sqlalchemy.ext.asyncio
import sqlalchemy.orm

import penstock
import penstock.aio
from penstock import Message

TOPIC = "bank/accounts"


class Adapter:
    """A connection, on which the application itself begins, commits and rolls back."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def publish(self, payload: bytes, **options: Any) -> None:
        penstock.publish(self.connection, TOPIC, payload, **options)

    async def publish_batch(self, payloads: list[bytes]) -> None:
        penstock.publish_batch(self.connection, [Message(TOPIC, each) for each in payloads])

    async def publish_unknown(self) -> None:
        penstock.publish(self.connection, "bank/nothing", b"x")

    async def run(self, sql: str) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(sql)

    async def begin(self) -> None:
        """Begin a transaction.  Does nothing where the driver begins it by itself."""

    async def commit(self) -> None:
        self.connection.commit()

    async def rollback(self) -> None:
        self.connection.rollback()


class OnSqlalchemy(Adapter):
    async def run(self, sql: str) -> None:
        self.connection.execute(sqlalchemy.text(sql))


class Asynchronous(Adapter):
    async def publish(self, payload: bytes, **options: Any) -> None:
        await penstock.aio.publish(self.connection, TOPIC, payload, **options)

    async def publish_batch(self, payloads: list[bytes]) -> None:
        messages = [Message(TOPIC, each) for each in payloads]
        await penstock.aio.publish_batch(self.connection, messages)

    async def publish_unknown(self) -> None:
        await penstock.aio.publish(self.connection, "bank/nothing", b"x")

    async def run(self, sql: str) -> None:
        await self.connection.execute(sql)

    async def commit(self) -> None:
        await self.connection.commit()

    async def rollback(self) -> None:
        await self.connection.rollback()


class OnAsyncpg(Asynchronous):
    async def begin(self) -> None:
        self.transaction = self.connection.transaction()
        await self.transaction.start()

    async def commit(self) -> None:
        await self.transaction.commit()

    async def rollback(self) -> None:
        await self.transaction.rollback()


class OnAsyncSqlalchemy(Asynchronous):
    async def run(self, sql: str) -> None:
        await self.connection.execute(sqlalchemy.text(sql))


@asynccontextmanager
async def _psycopg(url: str) -> AsyncIterator[Adapter]:
    with psycopg.connect(url) as connection:
        yield Adapter(connection)


@asynccontextmanager
async def _psycopg_async(url: str) -> AsyncIterator[Adapter]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield Asynchronous(connection)


@asynccontextmanager
async def _asyncpg(url: str) -> AsyncIterator[Adapter]:
    connection = await asyncpg.connect(url)
    try:
        yield OnAsyncpg(connection)
    finally:
        await connection.close()


def _sqlalchemy(make: Callable[[sqlalchemy.Engine], Any], **options: Any) -> Any:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Adapter]:
        engine = sqlalchemy.create_engine(_of_driver(url, "psycopg"), connect_args=options)
        with make(engine) as connection:
            yield OnSqlalchemy(connection)
        engine.dispose()

    return opened


def _sqlalchemy_async(driver: str, make: Callable[[Any], Any], **options: Any) -> Any:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Adapter]:
        engine = sqlalchemy.ext.asyncio.create_async_engine(
            _of_driver(url, driver), connect_args=options
        )
        async with make(engine) as connection:
            yield OnAsyncSqlalchemy(connection)
        await engine.dispose()

    return opened


@asynccontextmanager
async def _unprepared(url: str) -> AsyncIterator[Adapter]:
    with psycopg.connect(url, prepare_threshold=None) as connection:
        yield Adapter(connection)


@asynccontextmanager
async def _unprepared_async(url: str) -> AsyncIterator[Adapter]:
    async with await psycopg.AsyncConnection.connect(url, prepare_threshold=None) as connection:
        yield Asynchronous(connection)


@asynccontextmanager
async def _uncached(url: str) -> AsyncIterator[Adapter]:
    connection = await asyncpg.connect(url, statement_cache_size=0)
    try:
        yield OnAsyncpg(connection)
    finally:
        await connection.close()


@asynccontextmanager
async def _django(url: str) -> AsyncIterator[Adapter]:
    connection = django_connection(url)
    connection.set_autocommit(False)
    try:
        yield Adapter(connection)
    finally:
        connection.close()


def django_connection(url: str) -> Any:
    """Django's own connection to a database, as ``django.db.connection`` is."""
    from django.conf import settings
    from django.db import connections

    if not settings.configured:
        settings.configure(USE_TZ=True)
        django.setup()
    address = sqlalchemy.make_url(url)
    connections.databases["default"] = connections.configure_settings(
        {
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": address.database,
                "USER": address.username,
                "PASSWORD": address.password,
                "HOST": address.host,
                "PORT": str(address.port),
                "OPTIONS": {},
            }
        }
    )["default"]
    return connections.create_connection("default")


def _of_driver(url: str, driver: str) -> sqlalchemy.URL:
    return sqlalchemy.make_url(url).set(drivername=f"postgresql+{driver}")


def run(name: str, work: Coroutine[Any, Any, None]) -> None:
    """Run in an event loop if the adapter needs one.  Django refuses to work inside one."""
    if "async" in name:
        asyncio.run(work)
        return
    with pytest.raises(StopIteration):
        work.send(None)


_asession = sqlalchemy.ext.asyncio.AsyncSession
#: How to open each adapter for the URL of a PostgreSQL database.
ADAPTERS: dict[str, Any] = {
    "psycopg": _psycopg,
    "psycopg async": _psycopg_async,
    "asyncpg": _asyncpg,
    "sqlalchemy connection": _sqlalchemy(lambda engine: engine.connect()),
    "sqlalchemy session": _sqlalchemy(sqlalchemy.orm.Session),
    "sqlalchemy async connection": _sqlalchemy_async("psycopg", lambda engine: engine.connect()),
    "sqlalchemy async session": _sqlalchemy_async("psycopg", _asession),
    "sqlalchemy asyncpg connection": _sqlalchemy_async("asyncpg", lambda e: e.connect()),
    "sqlalchemy asyncpg session": _sqlalchemy_async("asyncpg", _asession),
    "django": _django,
}

#: Adapters that may prepare statements, as an application opens them behind a pooler.
BEHIND_A_POOLER: dict[str, Any] = {
    "psycopg": _unprepared,
    "psycopg async": _unprepared_async,
    "asyncpg": _uncached,
    "sqlalchemy connection": _sqlalchemy(lambda e: e.connect(), prepare_threshold=None),
    "sqlalchemy async session": _sqlalchemy_async("psycopg", _asession, prepare_threshold=None),
    "sqlalchemy asyncpg session": _sqlalchemy_async(
        "asyncpg",
        _asession,
        statement_cache_size=0,
        prepared_statement_cache_size=0,
        prepared_statement_name_func=lambda: f"__asyncpg_{uuid.uuid4()}__",
    ),
    "django": _django,
}

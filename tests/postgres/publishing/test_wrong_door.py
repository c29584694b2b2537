"""A synchronous call on an asynchronous connection, or the reverse: the error says what to do."""

from __future__ import annotations

import asyncio
import gc
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import asyncpg
import django.db.backends.utils
import psycopg
import psycopg_pool
import pyarrow as pa
import pytest
import sqlalchemy.ext.asyncio
import sqlalchemy.orm
import wrapt

import penstock
from penstock import aio, database, inbox, log, subscriptions
from penstock.database import async_connections
from penstock.database.async_connections import run_on
from penstock.database.steps import asked
from penstock.errors import InvalidArgument
from penstock.subscriptions import stream
from penstock.topics import rights
from tests.kit.adapters import ADAPTERS, Asynchronous
from tests.kit.log import TOPIC, topic
from tests.kit.proof import proves

MEMBER = stream.Membership("s", "c", uuid.UUID(int=1), 1, 3)
ASYNCHRONOUS = [name for name in ADAPTERS if "async" in name]
CALLS: dict[str, Callable[[Any], object]] = {
    "publish": lambda own: penstock.publish(own, TOPIC, b"x"),
    "publish_batch": lambda own: penstock.publish_batch(own, [penstock.Message(TOPIC, b"x")]),
    "publish_bulk": lambda own: penstock.publish_bulk(own, [penstock.Message(TOPIC, b"x")]),
    "publish_table": lambda own: penstock.publish_table(own, TOPIC, pa.table({"payload": [b"x"]})),
    "fetch": lambda own: penstock.fetch(own, TOPIC, 0, 1),
    "create_topic": lambda own: penstock.create_topic(own, TOPIC),
    "sequence": penstock.sequence,
    "status": log.status,
    "check_in": lambda own: stream.check_in(own, MEMBER),
    "subscriptions": subscriptions.list_subscriptions,
    "grants": rights.grants_of,
    "inbox": lambda own: inbox.create(own),
    "call": lambda own: database.call(own, "topic_lookup", topic=TOPIC),
}


def refused(connection: Any) -> None:
    """Every call on it is; no coroutine is left behind, which would be a warning."""
    for call in CALLS.values():
        with pytest.raises(InvalidArgument, match="is asynchronous") as caught:
            call(connection)
        assert "await penstock.aio.publish(connection" in (caught.value.hint or "")
    gc.collect()


@pytest.mark.parametrize("name", ASYNCHRONOUS)
def test_a_synchronous_call_refuses_an_asynchronous_connection(
    database_url: str, name: str
) -> None:
    """Guard: unwrapped; on asyncpg it was a TypeError."""

    async def steps() -> None:
        async with ADAPTERS[name](database_url) as adapter:
            assert isinstance(adapter, Asynchronous)
            refused(adapter.connection)

    asyncio.run(steps())


def test_pools_and_engines_are_refused_alike(database_url: str) -> None:
    url = database_url.replace("postgresql://", "postgresql+psycopg://")

    async def steps() -> None:
        engine = sqlalchemy.ext.asyncio.create_async_engine(url)
        refused(engine)
        await engine.dispose()

    asyncio.run(steps())


def _named(module: str, name: str) -> Any:
    """An object of a driver that is not installed here."""
    kind = type(name, (), {"__module__": module, "cursor": lambda self: None})
    return kind()


def _same(given: Any) -> Any:
    return given


async def _givers(url: str) -> AsyncIterator[Any]:
    """All that gives connections and is none."""
    on_psycopg = url.replace("postgresql://", "postgresql+psycopg://")
    engine = sqlalchemy.create_engine(on_psycopg)
    asynchronous = sqlalchemy.ext.asyncio.create_async_engine(on_psycopg)
    yield engine
    yield asynchronous
    yield engine.pool
    yield sqlalchemy.orm.sessionmaker(engine)
    yield sqlalchemy.ext.asyncio.async_sessionmaker(asynchronous)
    yield psycopg_pool.ConnectionPool(url, open=False)
    yield psycopg_pool.AsyncConnectionPool(url, open=False)
    async with asyncpg.create_pool(url, min_size=1, max_size=2) as pool:
        yield pool
        yield pool.acquire()
    for module in ("aiomysql.pool", "asyncmy.pool", "aiopg.pool"):
        yield _named(module, "Pool")
    await asynchronous.dispose()
    engine.dispose()


AIO_CALLS: dict[str, Callable[[Any], Awaitable[object]]] = {
    "publish": lambda own: aio.publish(own, TOPIC, b"x"),
    "publish_once": lambda own: aio.publish_once(own, penstock.Message(TOPIC, b"x")),
    "publish_batch": lambda own: aio.publish_batch(own, [penstock.Message(TOPIC, b"x")]),
    "fetch": lambda own: aio.fetch(own, TOPIC, 0, 1),
    "commit": lambda own: aio.commit(own, MEMBER, []),
    "handlers": lambda own: run_on(own, asked("topic_lookup", topic=TOPIC)),
}


@proves("S1 on pools")
def test_what_gives_connections_is_refused_by_every_call(
    connection: psycopg.Connection[Any], database_url: str
) -> None:
    """Guard: is_asyncpg.  A pool of asyncpg published outside of the caller's transaction."""

    async def steps() -> None:
        async for giver in _givers(database_url):
            for call in CALLS.values():
                with pytest.raises(InvalidArgument):
                    call(giver)
            with pytest.raises(InvalidArgument):
                penstock.within_transaction(partial(_same, giver), pytest.fail)
            for await_call in AIO_CALLS.values():
                with pytest.raises(InvalidArgument, match="not an asynchronous") as caught:
                    await await_call(giver)
                assert "take a connection from it" in (caught.value.hint or "")

    asyncio.run(steps())
    gc.collect()
    assert connection.execute("SELECT count(*) FROM penstock.events").fetchone() == (0,)


async def _rolled_back(url: str, given: Callable[[Any, Any], Any]) -> int:
    """Publish in a transaction that is rolled back.  Returns how many events there are."""
    async with asyncpg.create_pool(url, min_size=2, max_size=2) as pool:
        async with pool.acquire() as own:
            transaction = own.transaction()
            await transaction.start()
            await aio.publish(given(pool, own), TOPIC, b"x")
            await transaction.rollback()
        return int(await pool.fetchval("SELECT count(*) FROM penstock.events"))


@proves("S1 on pools")
def test_what_a_pool_has_lent_publishes_in_its_transaction(
    connection: psycopg.Connection[Any], database_url: str
) -> None:
    """Lent, wrapped by a tracer, or of a class of the application's own."""
    topic(connection)
    for given in (
        lambda pool, own: own,
        lambda pool, own: wrapt.ObjectProxy(own),
        lambda pool, own: own._con,
    ):
        assert asyncio.run(_rolled_back(database_url, given)) == 0


@proves("S1 on pools", guard="is_asyncpg")
def test_without_the_look_at_the_class_a_pool_leaves_the_transaction(
    connection: psycopg.Connection[Any], database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: anything of asyncpg, as before."""
    topic(connection)
    with pytest.raises(InvalidArgument, match="Pool is not an asynchronous connection"):
        asyncio.run(_rolled_back(database_url, lambda pool, own: pool))
    monkeypatch.setattr(async_connections, "is_asyncpg", lambda each: True)
    assert asyncio.run(_rolled_back(database_url, lambda pool, own: pool)) == 1


def test_a_cursor_is_no_connection(connection: psycopg.Connection[Any]) -> None:
    """Django's has an attribute `cursor`, which is no function."""
    with connection.cursor() as cursor:
        wrapped = django.db.backends.utils.CursorWrapper(cursor, None)
        for given in (cursor, wrapped):
            with pytest.raises(InvalidArgument, match="is not a database connection"):
                penstock.publish(given, TOPIC, b"x")


def test_an_asynchronous_call_refuses_a_synchronous_connection(
    connection: psycopg.Connection[Any],
) -> None:
    with pytest.raises(InvalidArgument, match="not an asynchronous connection") as caught:
        asyncio.run(aio.publish(connection, TOPIC, b"x"))
    assert "penstock.publish" in (caught.value.hint or "")

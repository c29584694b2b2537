"""What penstock.aio does beyond test_adapters: fetch, look-ups, duplicates, wrong connections."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import asyncpg
import psycopg
import pytest

import penstock
from penstock import Message, aio
from penstock.database import catalog
from penstock.errors import InvalidArgument, NotMigrated, TopicNotFound
from penstock.publishing import known_topics
from tests.kit.adapters import ADAPTERS, TOPIC, Asynchronous

Connection = psycopg.Connection[Any]
ASYNCHRONOUS = [name for name in ADAPTERS if "async" in name]


@pytest.fixture(autouse=True)
def topics(connection: Connection) -> Iterator[None]:
    known_topics.clear()
    penstock.create_topic(connection, TOPIC, 1, create_namespaces=True)
    yield
    known_topics.clear()


@pytest.mark.parametrize("name", ASYNCHRONOUS)
def test_what_was_published_is_fetched(
    connection: Connection, database_url: str, name: str
) -> None:
    async def steps() -> None:
        async with ADAPTERS[name](database_url) as adapter:
            assert isinstance(adapter, Asynchronous)
            own = adapter.connection
            await adapter.begin()
            ids = await aio.publish_batch(
                own, (Message(TOPIC, b"%d" % n, key=str(n), dedup_key=f"d{n}") for n in range(3))
            )
            assert await aio.publish_batch(own, []) == []
            again = await aio.publish_once(own, Message(TOPIC, b"x", dedup_key="d1"))
            assert (again.event_id, again.duplicate) == (ids[1], True)
            await adapter.commit()
            await adapter.begin()
            penstock.sequence(connection)
            events = await aio.fetch(own, TOPIC, 0, 2)
            assert [(e.sequence, e.payload, e.event_id) for e in events] == [
                (2, b"1", ids[1]),
                (3, b"2", ids[2]),
            ]
            assert events == penstock.fetch(connection, TOPIC, 0, 2)
            await adapter.rollback()

    asyncio.run(steps())


@pytest.mark.parametrize("name", ASYNCHRONOUS)
def test_a_batch_names_the_event_that_is_wrong(database_url: str, name: str) -> None:
    async def steps() -> None:
        async with ADAPTERS[name](database_url) as adapter:
            await adapter.begin()
            for bad in (Message(TOPIC, "text"), Message("bank/none", b"x")):  # type: ignore[arg-type]
                with pytest.raises(penstock.UsageError, match="event 1: "):
                    await aio.publish_batch(adapter.connection, [Message(TOPIC, b"x"), bad])
            await adapter.rollback()

    asyncio.run(steps())


@pytest.mark.parametrize("name", ASYNCHRONOUS)
def test_a_topic_is_looked_up_once(
    database_url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []
    original = catalog.statement

    def statement(dialect: str, name: str, schema: str) -> catalog.Statement:
        called.append(name)
        return original(dialect, name, schema)

    monkeypatch.setattr(catalog, "statement", statement)

    async def steps() -> None:
        async with ADAPTERS[name](database_url) as adapter:
            await adapter.begin()
            for _ in range(3):
                await adapter.publish(b"x")
            await adapter.rollback()

    asyncio.run(steps())
    assert called == ["is_installed", "topic_lookup", "publish", "publish", "publish"]


def test_an_application_may_decode_json_by_itself(
    connection: Connection, database_url: str
) -> None:
    """Guard: headers go to asyncpg as text, whatever codec the application has set for JSON."""

    async def steps() -> None:
        own = await asyncpg.connect(database_url)
        await own.set_type_codec(
            "jsonb", encoder=json.dumps, decoder=json.loads, schema="pg_catalog"
        )
        await aio.publish(own, TOPIC, b"x", headers={"a": 1})
        await own.close()

    asyncio.run(steps())
    assert connection.execute("SELECT headers FROM penstock.events").fetchall() == [({"a": 1},)]


def test_a_pool_of_asyncpg(connection: Connection, database_url: str) -> None:
    async def steps() -> None:
        async with asyncpg.create_pool(database_url, min_size=1, max_size=1) as pool:
            for _ in range(2):
                async with pool.acquire() as own, own.transaction():
                    await aio.publish(own, TOPIC, b"x")
                with pytest.raises(ZeroDivisionError):
                    async with pool.acquire() as own, own.transaction():
                        await aio.publish(own, TOPIC, b"undone")
                        raise ZeroDivisionError

    asyncio.run(steps())
    row = connection.execute("SELECT count(*) FROM penstock.events").fetchone()
    assert row == (2,)


def test_an_unmigrated_database(empty_database_url: str) -> None:
    async def steps() -> None:
        async with await psycopg.AsyncConnection.connect(empty_database_url) as own:
            with pytest.raises(NotMigrated):
                await aio.publish(own, TOPIC, b"x")
            await own.execute("SELECT 1")

    asyncio.run(steps())


def test_a_topic_that_went_away_is_forgotten(connection: Connection, database_url: str) -> None:
    async def steps() -> None:
        async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as own:
            await aio.publish(own, TOPIC, b"x")
            connection.execute("SELECT penstock.delete_topic(%s)", (TOPIC,))
            for _ in range(2):
                with pytest.raises(TopicNotFound):
                    await aio.publish(own, TOPIC, b"x")

    asyncio.run(steps())


def test_what_is_not_asynchronous_is_refused(connection: Connection) -> None:
    for given in (connection, None, "postgresql://localhost/x", object()):
        with pytest.raises(InvalidArgument, match="is not an asynchronous connection"):
            asyncio.run(aio.publish(given, TOPIC, b"x"))

"""A synchronous call on an asynchronous connection, or the reverse: the error says what to do."""

from __future__ import annotations

import asyncio
import gc
import uuid
from collections.abc import Callable
from typing import Any

import psycopg
import pyarrow as pa
import pytest
import sqlalchemy.ext.asyncio

import penstock
from penstock import aio, database, inbox, log, subscriptions
from penstock.errors import InvalidArgument
from penstock.subscriptions import stream
from penstock.topics import rights
from tests.kit.adapters import ADAPTERS, Asynchronous
from tests.kit.log import TOPIC

ASYNCHRONOUS = [name for name in ADAPTERS if "async" in name]
CALLS: dict[str, Callable[[Any], object]] = {
    "publish": lambda own: penstock.publish(own, TOPIC, b"x"),
    "publish_batch": lambda own: penstock.publish_batch(own, [penstock.Message(TOPIC, b"x")]),
    "publish_bulk": lambda own: penstock.publish_bulk(own, [penstock.Message(TOPIC, b"x")]),
    "publish_table": lambda own: penstock.publish_table(own, TOPIC, pa.table({"payload": [b"x"]})),
    "publisher": lambda own: penstock.publisher(own, TOPIC).publish(b"x"),
    "fetch": lambda own: penstock.fetch(own, TOPIC, 0, 1),
    "create_topic": lambda own: penstock.create_topic(own, TOPIC),
    "sequence": penstock.sequence,
    "status": log.status,
    "check_in": lambda own: stream.check_in(
        own, stream.Membership("s", "c", uuid.UUID(int=1), 1, 3)
    ),
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


def test_an_asynchronous_call_refuses_a_synchronous_connection(
    connection: psycopg.Connection[Any],
) -> None:
    with pytest.raises(InvalidArgument, match="not an asynchronous connection") as caught:
        asyncio.run(aio.publish(connection, TOPIC, b"x"))
    assert "penstock.publish" in (caught.value.hint or "")

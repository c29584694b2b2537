"""Connections of applications that are set up in an unusual way: they work, or say why not."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from datetime import datetime
from typing import Any

import asyncpg
import psycopg
import pytest

import penstock
from penstock import Message, aio, database
from penstock.database import migrate
from penstock.database.postgres import connection as postgres
from penstock.errors import ConfigurationError, InvalidArgument
from penstock.topics import names
from tests.kit.log import Connection, drain, put, texts, topic
from tests.support import PostgresServer

TOPIC = "tests/log"
COMMAND = "from penstock.cli.main import app; app()"


def test_calls_work_in_a_pipeline(connection: Connection, database_url: str) -> None:
    """Guards: pipelined_rows, and is_alone: a pipeline is a transaction of the application."""
    topic(connection)
    with psycopg.connect(database_url, autocommit=True) as own:
        with own.pipeline() as pipeline:
            assert not postgres.Postgres().is_alone(own)
            penstock.publish(own, TOPIC, b"1")
            penstock.publish_batch(own, [Message(TOPIC, b"2"), Message(TOPIC, b"3")])
            assert database.execute(own, "SET application_name = 'mine'") == []
            pipeline.sync()
            with pytest.raises(penstock.UsageError):
                penstock.publish(own, "tests/nothing", b"x")
        assert postgres.Postgres().is_alone(own)
    drain(connection)
    assert texts(connection) == ["1", "2", "3"]


def test_asynchronous_calls_work_in_a_pipeline(connection: Connection, database_url: str) -> None:
    topic(connection)

    async def use() -> None:
        own = await psycopg.AsyncConnection.connect(database_url, autocommit=True)
        async with own, own.pipeline():
            await aio.publish(own, TOPIC, b"1")
            await aio.publish_batch(own, [Message(TOPIC, b"2")])

    asyncio.run(use())
    drain(connection)
    assert texts(connection) == ["1", "2"]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_refused_setting_is_no_unreadable_address(
    database_url: str, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(postgres._Given, "settings_left", lambda *_: ["SET nothing_such = 1"])
    with pytest.raises(
        ConfigurationError, match=r"refuses what every connection needs.*nothing_such"
    ):
        if kind == "sync":
            database.connect(database_url)
        else:
            asyncio.run(
                postgres.connect_async(
                    database_url, application_name="test", statement_timeout_ms=1000
                )
            )


@pytest.mark.parametrize(
    ("codec", "is_read"),
    [
        ({"decoder": datetime.fromisoformat, "encoder": str, "format": "text"}, True),
        ({"decoder": str, "encoder": str, "format": "text"}, True),
        ({"decoder": lambda value: value, "encoder": lambda value: value, "format": "tuple"}, True),
        ({"decoder": lambda value: object(), "encoder": str, "format": "text"}, False),
    ],
)
def test_a_codec_of_times(
    connection: Connection, database_url: str, codec: dict[str, Any], is_read: bool
) -> None:
    topic(connection)
    put(connection, "1")
    drain(connection)

    async def times() -> datetime:
        own = await asyncpg.connect(database_url)
        try:
            await own.set_type_codec("timestamptz", schema="pg_catalog", **codec)
            (event,) = await aio.fetch(own, TOPIC, 0, 1)
            return event.created_at
        finally:
            await own.close()

    if is_read:
        assert asyncio.run(times()) == penstock.fetch(connection, TOPIC, 0, 1)[0].created_at
        return
    with pytest.raises(InvalidArgument, match="a time came as object"):
        asyncio.run(times())


def test_a_character_that_the_database_or_the_connection_lacks(
    postgres_server: PostgresServer,
) -> None:
    name = f"penstock_latin1_{os.getpid()}"
    with psycopg.connect(postgres_server.admin_url, autocommit=True) as admin:
        admin.execute(
            f"CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0".encode()
        )
    try:
        url = postgres_server.url(name)
        migrate.migrate(url)
        with (
            database.connect(url) as own,
            psycopg.connect(url, autocommit=True) as plain,
        ):
            topic(own)
            for each in (own, plain):
                put(each, "snow", key="é")
                with pytest.raises(InvalidArgument, match="lacks"):
                    put(each, "snow", key="☃")
    finally:
        postgres_server.drop(name)


@pytest.mark.parametrize("output", ["table", "json"])
def test_an_ascii_terminal_gets_every_command(
    connection: Connection, database_url: str, output: str
) -> None:
    names.create_topic(connection, "tests/größe", 1, create_namespaces=True)
    told = subprocess.run(
        [sys.executable, "-c", COMMAND, "status", "--output", output],
        env={**os.environ, "PENSTOCK_DATABASE_URL": database_url, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    assert {"table": rb"gr\xf6\xdfe", "json": rb"gr\u00f6\u00dfe"}[output] in told.stdout

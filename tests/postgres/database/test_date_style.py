"""A database whose sessions write dates in another style is read all the same."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Iterator
from urllib.parse import urlsplit

import psycopg
import pytest

from penstock import database
from penstock.database.async_connections import connect_async

NOON = "SELECT '2026-11-23 12:00+00'::timestamptz"
TIME = dt.datetime(2026, 11, 23, 12, tzinfo=dt.UTC)


@pytest.fixture
def styled(connection: psycopg.Connection, database_url: str) -> Iterator[str]:
    """The address of a database that somebody has set so."""
    name = urlsplit(database_url).path.lstrip("/")
    connection.execute(f'ALTER DATABASE "{name}" SET datestyle = "SQL, DMY"'.encode())
    yield database_url
    connection.execute(f'ALTER DATABASE "{name}" RESET datestyle'.encode())


def test_times_are_read_whatever_the_style_of_the_database(styled: str) -> None:
    """Guard: DateStyle in the options of our connections."""
    with psycopg.connect(styled) as plain, pytest.raises(NotImplementedError):
        plain.execute(NOON).fetchall()
    with database.connect(styled, application_name="test") as own:
        assert own.execute(NOON).fetchone() == (TIME,)

    async def read() -> object:
        async with await connect_async(styled, application_name="test") as own:
            return await (await own.execute(NOON)).fetchone()

    assert asyncio.run(read()) == (TIME,)

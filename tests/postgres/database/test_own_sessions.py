"""Our own connections have the session that they need, whatever stands around the database."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from penstock import database, log
from penstock.database import migrate
from penstock.database.async_connections import connect_async
from penstock.database.postgres import connection as postgres
from penstock.errors import DatabaseUnavailable, InvalidArgument, WrongIsolation
from penstock.topics import names
from tests.kit.log import Connection, put, texts, topic
from tests.kit.silent_proxy import HOST, SilentProxy
from tests.support import PostgresServer

#: FATAL 0A000, in words of its own.
_REFUSAL = b"SFATAL\0VFATAL\0C0A000\0Mnot for us\0\0"


class _Refusing(SilentProxy):
    """A proxy that takes no `options`."""

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                said = client.recv(1 << 16, socket.MSG_PEEK)
                if b"\0options\0" in said:
                    client.recv(1 << 16)
                    client.sendall(b"E" + (len(_REFUSAL) + 4).to_bytes(4, "big") + _REFUSAL)
                    client.close()
                    continue
                self.forward(client)


@pytest.fixture
def refusing(database_url: str) -> Iterator[str]:
    proxy = _Refusing(database_url)
    yield proxy.url
    proxy.close()


def _settings(connection: Connection) -> list[str]:
    names = ("statement_timeout", "DateStyle", "default_transaction_isolation")
    return [str(connection.execute(f"SHOW {name}".encode()).fetchall()[0][0]) for name in names]


def test_what_a_proxy_refuses_as_options_is_set_afterwards(
    connection: Connection, refusing: str
) -> None:
    """Guard: settings_left.  Times are read whatever the style of the database."""
    topic(connection)
    name = connection.info.dbname
    connection.execute(f'ALTER DATABASE "{name}" SET datestyle = "SQL, DMY"'.encode())
    with database.connect(refusing) as own:
        assert _settings(own) == ["30s", "ISO, DMY", "read committed"]
        assert len(names.list_topics(own)) == 1

    async def read() -> object:
        async with await connect_async(refusing, application_name="test") as own:
            return await (await own.execute("SELECT clock_timestamp()")).fetchone()

    assert asyncio.run(read())


def test_without_the_second_try_there_is_no_connection(
    refusing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: only what PgBouncer says counts."""

    def as_before(self: object, error: BaseException) -> None:
        if "startup parameter" not in str(error):
            raise error

    monkeypatch.setattr(postgres._Given, "without_options", as_before)
    with pytest.raises(DatabaseUnavailable, match="not for us"):
        database.connect(refusing)


def test_a_wrong_password_is_not_tried_twice(database_url: str) -> None:
    parts = urlsplit(database_url)
    wrong = urlunsplit(parts._replace(netloc=f"postgres:wrong@{HOST}:{parts.port}"))
    with pytest.raises(DatabaseUnavailable, match="password"):
        database.connect(wrong)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("default_transaction_isolation", "serializable"), ("client_encoding", "LATIN1")],
)
def test_settings_of_the_database_do_not_reach_our_sessions(
    connection: Connection, database_url: str, setting: str, value: str
) -> None:
    """Guards: the options, and client_encoding."""
    topic(connection)
    name = connection.info.dbname
    connection.execute(f"ALTER DATABASE \"{name}\" SET {setting} = '{value}'".encode())
    with database.connect(database_url) as own:
        put(own, "snow ☃", key="☃")
        log.sequence(own)
        assert texts(own) == ["snow ☃"]
    refused = pytest.raises((WrongIsolation, InvalidArgument))
    with psycopg.connect(database_url, autocommit=True) as plain, refused:
        put(plain, "snow ☃", key="☃")
        log.sequence(plain)


def test_a_database_without_an_encoding_is_migrated_and_used(
    postgres_server: PostgresServer,
) -> None:
    """Guard: client_encoding; psycopg gives bytes for the texts of such a session."""
    name = f"penstock_ascii_{os.getpid()}"
    with psycopg.connect(postgres_server.admin_url, autocommit=True) as admin:
        admin.execute(
            f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0".encode()
        )
    try:
        url = postgres_server.url(name)
        migrate.migrate(url)
        assert migrate.check(url) == []
        with database.connect(url) as own:
            topic(own)
            put(own, "snow ☃", key="☃")
            log.sequence(own)
            assert texts(own) == ["snow ☃"]
    finally:
        postgres_server.drop(name)

"""A server that is frozen: who connects to it, or has a statement there, is told after a while."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import closing

import pymysql
import pytest

from penstock import database
from penstock.database.async_connections import connect_async
from penstock.database.mysql import opening
from penstock.errors import DatabaseUnavailable
from tests.contract.databases import MySQLDatabase
from tests.faults.proxy import Proxies, address_of
from tests.kit.proof import proves
from tests.kit.silent import frozen_server

pytestmark = pytest.mark.mariadb_differs("how a session ends")


@proves("a frozen server is told of")
@pytest.mark.parametrize("way", ["sync", "async"])
def test_the_connect_ends_though_the_server_accepts(way: str) -> None:
    """Guard: opening._connected. PyMySQL's connect_timeout ends when TCP is connected."""
    begun = time.monotonic()
    with frozen_server() as place, pytest.raises(DatabaseUnavailable) as refused:
        url = f"mysql://ann:s3cret@{place}/bank?connect_timeout=1"
        if way == "sync":
            database.connect(url)
        else:
            asyncio.run(connect_async(url, application_name="test", seconds=30))
    assert time.monotonic() - begun < 10
    assert place in str(refused.value) and "s3cret" not in str(refused.value)
    assert "look whether it is frozen" in refused.value.hint


@proves("a frozen server is told of")
def test_a_statement_ends_though_the_server_says_nothing(
    mysql_db: MySQLDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: the limit that `opened` sets. The session knows that its connection is lost."""
    monkeypatch.setattr(opening, "SLACK_SECONDS", 0.2)
    with Proxies() as proxies:
        proxy = proxies.open(lambda: address_of(mysql_db.url))
        with closing(
            database.connect(proxy.url(mysql_db.url), statement_timeout_ms=100)
        ) as connection:
            assert database.execute(connection, "SELECT 1") == [(1,)]
            proxy.frozen_to_client = b""
            begun = time.monotonic()
            with pytest.raises(pymysql.OperationalError) as lost:
                database.execute(connection, "SELECT 1")
            assert time.monotonic() - begun < 30  # without the limit it waits for ever
            assert database.is_unavailable(lost.value)
            proxy.frozen_to_client = None


@proves("a frozen server is told of")
def test_a_wait_within_the_limit_ends_with_the_server_s_own_error(
    mysql_db: MySQLDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client waits for longer than the server lets a statement wait for a lock."""
    monkeypatch.setattr(opening, "SLACK_SECONDS", 0)
    with (
        closing(database.connect(mysql_db.url, autocommit=False)) as holder,
        closing(database.connect(mysql_db.url, statement_timeout_ms=1_000)) as waiting,
    ):
        lock = "SELECT * FROM penstock.sequencer FOR UPDATE"
        database.execute(holder, lock)
        with pytest.raises(pymysql.MySQLError) as late:
            database.execute(waiting, lock)
        assert not database.is_unavailable(late.value)
        assert database.is_contention(late.value) or database.is_cancelled(late.value)
        assert database.execute(waiting, "SELECT 1") == [(1,)]  # the connection is there still


@proves("a frozen server is told of")
def test_without_a_limit_for_statements_there_is_none_for_the_client(
    mysql_db: MySQLDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: read_seconds. Migrations and what removes storage may take an hour."""
    monkeypatch.setattr(opening, "SLACK_SECONDS", 0)
    url = f"{mysql_db.url}{'&' if '?' in mysql_db.url else '?'}connect_timeout=1"
    with closing(database.connect(url, statement_timeout_ms=0)) as connection:
        assert database.execute(connection, "SELECT SLEEP(1.2)") == [(0,)]


def test_the_limit_follows_from_that_of_statements() -> None:
    assert opening.read_seconds(0) is None
    assert opening.read_seconds(30_000) == 70
    assert opening.read_seconds(600_000) == 1_210


@proves("a silent connection stops nobody", how="TCP's own limits on MySQL")
def test_tcp_ends_a_connection_whose_packets_get_lost(mysql_db: MySQLDatabase) -> None:
    """Guard: opening._notice_silence; test_lost_packets.py shows in its long form what it is for.

    The connection of a handler has no limit of a call that is as short as a lease.
    """
    with closing(database.connect(mysql_db.url)) as connection:
        sock = connection._sock  # type: ignore[attr-defined]
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 5
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 10_000

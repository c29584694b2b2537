"""The Python blocks of docs/publishing.md and docs/lease-hand-over.md run as they stand there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import django.db
import psycopg
import pytest

import penstock
from penstock.database import migrate
from tests.kit.adapters import django_connection
from tests.kit.log import drain
from tests.servers import MySQLTestServer

DOCS = Path(__file__).resolve().parents[1] / "docs"
SCHEMA = f"penstock_publishing_{os.getpid()}"


def _blocks(page: str) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def _run(page: str, blocks: list[str], **names: Any) -> dict[str, Any]:
    """One after the other, as on one prompt; what they have named."""
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    return names


def _orders(url: str) -> list[str]:
    """What was published, by key and payload; waits for nothing."""
    with psycopg.connect(url, autocommit=True) as connection:
        drain(connection)
        found = [
            event.payload
            for partition in penstock.log.high_watermarks(connection, "shop/orders")
            for event in penstock.fetch(connection, "shop/orders", partition, 1, 10_000)
        ]
    return [payload.decode() for payload in found]


def test_every_way_of_publishing_publishes(database_url: str) -> None:
    """Each block of the page on PostgreSQL, and every event that it speaks of is in the log."""
    blocks = [block for block in _blocks("publishing.md") if "pymysql" not in block]
    assert len(blocks) == 11
    own = django.db.connections["default"] = django_connection(database_url)
    try:
        names = _run("publishing.md", blocks, url=database_url, penstock=penstock)
    finally:
        own.close()
        del django.db.connections["default"]
    names["engine"].dispose()
    names["waker"].close()
    published = _orders(database_url)
    expected = {
        f'{{"order": {number}}}'
        for number in (1, 2, 3, 5, 6, 7, 8, 11, 12, 20, 21, 22, 30, 31, 32, 33)
    }
    assert expected < set(published)
    assert published.count("x") == 1
    assert "remind Ada" not in published
    assert any('"customer"' in payload for payload in published)
    with psycopg.connect(database_url) as connection:
        rows = connection.execute("SELECT id FROM orders ORDER BY id").fetchall()
    assert rows == [(1,), (2,), (3,), (5,), (6,)]


@pytest.fixture(params=["mysql", "mariadb"])
def login(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, Any]]:
    """How to log in to an application's own database on a server with Penstock's schema."""
    monkeypatch.setenv("PENSTOCK_SCHEMA", SCHEMA)
    server: MySQLTestServer = request.getfixturevalue(f"{request.param}_server")
    shop = f"{SCHEMA}_shop"
    url = server.create(shop)
    migrate.migrate(url, schema=SCHEMA)
    address = urlsplit(url)
    try:
        yield {
            "host": address.hostname,
            "port": address.port,
            "user": unquote(address.username or ""),
            "password": unquote(address.password or ""),
            "database": shop,
            "url": url,
        }
    finally:
        server.drop(shop)
        server.drop(SCHEMA)


def test_pymysql_publishes(login: dict[str, Any]) -> None:
    """The first block, and that for PyMySQL, on MySQL and MariaDB."""
    blocks = _blocks("publishing.md")
    pymysql = [block for block in blocks if "pymysql" in block]
    assert len(pymysql) == 1
    url = login.pop("url")
    _run("publishing.md", [blocks[0], *pymysql], url=url, login=login, penstock=penstock)
    with penstock.connect(url) as connection:
        drain(connection)
        found = [
            event.payload
            for partition in range(4)
            for event in penstock.fetch(connection, "shop/orders", partition, 1)
        ]
    assert found == [b'{"order": 4}']


def test_a_lease_changes_hands(capsys: pytest.CaptureFixture[str]) -> None:
    """The page says what happens: the zombie is refused, and the successor commits."""
    (block,) = _blocks("lease-hand-over.md")
    _run("lease-hand-over.md", [block])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("lease_epoch 1")
    assert "lease_epoch 2" in lines[1]
    assert "no longer holds" in lines[2]
    assert lines[3] == "the position is 1"

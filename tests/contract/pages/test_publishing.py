"""The Python blocks of docs/reference/publishing.md run as they stand there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import django.db
import pytest

import penstock
from tests.contract.databases import ContractDatabase, MySQLDatabase, PostgresDatabase
from tests.contract.pages.blocks import blocks_of, run
from tests.kit.adapters import django_connection
from tests.kit.log import drain

if TYPE_CHECKING:
    from penstock.database import Connection

PAGE = "docs/reference/publishing.md"
#: What the blocks that are the same on every engine publish, and those of one engine's drivers.
ALL = {8, 10}
OF_POSTGRES = {1, 2, 3, 5, 6, 7, 11, 12, 30, 31, 32, 33}
OF_MYSQL = {4}
#: What the page says is for psycopg only.
COPIES = ("publish_bulk", "publish_table")


def published(connection: Connection) -> list[str]:
    """The payloads in the log."""
    drain(connection)
    found = [
        event.payload
        for partition in penstock.log.high_watermarks(connection, "shop/orders")
        for event in penstock.fetch(connection, "shop/orders", partition, 1, 10_000)
    ]
    return [payload.decode() for payload in found]


@pytest.fixture
def drivers(db: ContractDatabase) -> Iterator[dict[str, Any]]:
    """What the application of the page has: its login, or Django's connection."""
    if isinstance(db, MySQLDatabase):
        own: Any = db.connect()
        login = {"host": own.host, "port": own.port, "user": own.user, "password": own.password}
        yield {"login": {**login, "database": db.app}}
        return
    own = django.db.connections["default"] = django_connection(db.url)
    try:
        yield {}
    finally:
        own.close()
        del django.db.connections["default"]


def test_every_way_of_publishing_publishes(db: ContractDatabase, drivers: dict[str, Any]) -> None:
    """Each block, where its driver is one of the engine; each event is in the log then."""
    is_postgres = isinstance(db, PostgresDatabase)
    foreign = ("pymysql",) if is_postgres else ("psycopg", "django", *COPIES)
    blocks = [block for block in blocks_of(PAGE) if not any(driver in block for driver in foreign)]
    assert len(blocks) == (10 if is_postgres else 4)
    names = run(PAGE, *blocks, url=db.url, penstock=penstock, **drivers)
    if is_postgres:
        names["engine"].dispose()
        names["waker"].close()
    connection = db.connect()
    found = published(connection)
    orders = ALL | (OF_POSTGRES if is_postgres else OF_MYSQL)
    told = {f'{{"order": {number}}}' for number in orders - {10}}
    assert told < set(found)
    assert found.count("x") == 1
    assert "remind Ada" not in found
    assert any('"customer"' in payload for payload in found)  # order 10
    rows = connection.execute("SELECT id FROM orders ORDER BY id").fetchall()
    assert list(rows) == [(number,) for number in ((1, 2, 3, 5, 6) if is_postgres else (4,))]


def test_what_is_for_psycopg_says_so_elsewhere(mysql_db: MySQLDatabase) -> None:
    """The page names the other call, and so does the error."""
    first, *others = blocks_of(PAGE)
    given = {"url": mysql_db.url, "penstock": penstock, "Message": penstock.Message}
    run(PAGE, first, **given)
    copying = [block for block in others if any(name in block for name in COPIES)]
    assert len(copying) == len(COPIES)
    for block in copying:
        with pytest.raises(penstock.InvalidArgument, match="use publish_batch"):
            run(PAGE, block, **given)
